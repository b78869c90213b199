#include "lockstep/dist/ddp/guards/replica_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <map>
#include <random>
#include <set>
#include <sstream>
#include <tuple>

#include "lockstep/core/hash.h"
#include "lockstep/core/text/number.h"
#include "lockstep/dist/collectives/object_collectives.h"
#include "lockstep/dist/rendezvous/events/left_replicas.h"
#include "lockstep/kernels/elementwise.h"

namespace lockstep::dist {
namespace {

/// Odd multiples tell the parameters apart.
std::uint32_t salt_of(std::size_t parameter) {
  return static_cast<std::uint32_t>(parameter) * 2246822519u + 1;
}

std::string fingerprint_of(const Tensor& tensor) {
  if (!is_differentiable(tensor.dtype()))  // a count of steps
    return fmt::format("{}", fmt::join(tensor.to_vector<std::int64_t>(), " "));
  const Tensor sum = Tensor::zeros({2}, DType::i64, tensor.device());
  kernels::add_fingerprint({&tensor, 1}, {&sum, 0});
  return fmt::format("{:016x}", std::bit_cast<std::uint64_t>(sum.to_vector<std::int64_t>()[0]));
}

/// Element i of a tensor on the host, so that different bits are different texts.
std::string element_text(const Tensor& host, std::size_t i) {
  if (host.dtype() == DType::i64) return fmt::format("{}", host.data<std::int64_t>()[i]);
  return visit_floating("replicas", host.dtype(), [&](auto zero) {
    using T = decltype(zero);
    using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
    const T value = host.data<T>()[i];
    return fmt::format("{} ({:#x})", value, std::bit_cast<Word>(value));
  });
}

/// The names in a list of lines. A line that it repeats is another name: "momentum (2)".
std::set<std::string> names_in(const std::string& list) {
  std::set<std::string> all;
  std::map<std::string, int> times;
  std::istringstream lines = classic_stream(list);
  for (std::string line; std::getline(lines, line);) {
    const int time = ++times[line];
    all.insert(time == 1 ? line : fmt::format("{} ({})", line, time));
  }
  return all;
}

/// Of lists of names, one for each rank: the names that some ranks lack, in words, and which ranks
/// keep and lack the first of them; empty if the lists are equal as sets.
std::pair<std::string, RanksByValue> find_lacked(const Communicator& communicator,
                                                 const std::vector<std::string>& lists) {
  std::map<std::string, std::vector<int>> ranks_with;
  for (std::size_t r = 0; r < lists.size(); ++r)
    for (const std::string& name : names_in(lists[r]))
      ranks_with[name].push_back(static_cast<int>(r));
  std::string text;
  RanksByValue said;
  std::size_t more = 0;
  for (const auto& [name, having] : ranks_with) {
    if (having.size() == lists.size()) continue;
    std::vector<int> without;
    for (int r = 0; index(r) < lists.size(); ++r)
      if (std::ranges::count(having, r) == 0) without.push_back(r);
    if (more++ > 0) continue;
    said = {{"kept", having}, {"missing", without}};
    text = fmt::format("{}: {}", name, describe(as_known(communicator, said)));
  }
  return {more < 2 ? text : fmt::format("{}; {} more", text, more - 1), said};
}

std::string index_text(const Shape& shape, std::int64_t i) {
  std::vector<std::int64_t> places(static_cast<std::size_t>(shape.rank()));
  for (int d = shape.rank() - 1; d >= 0; --d) {
    places[static_cast<std::size_t>(d)] = i % shape[d];
    i /= shape[d];
  }
  return fmt::format("({})", fmt::join(places, ", "));
}

/// Collective. Where the ranks' tensors first differ, and what they have there: first the block,
/// by a hash of each, then the element.
std::string locate(Communicator& communicator, const Tensor& tensor) {
  const Tensor host = tensor.to({});
  const auto numel = static_cast<std::size_t>(host.numel());
  const auto* bytes = reinterpret_cast<const char*>(host.raw());
  const std::size_t width = host.bytes() / std::max<std::size_t>(numel, 1), block = 4096;
  std::string text;
  for (std::size_t begin = 0; begin < numel; begin += block)
    text += fmt::format("{:x}\n",
                        fnv1a({bytes + begin * width, std::min(block, numel - begin) * width}));
  const auto blocks = differences(gather_text(communicator, text, "replicas"));
  if (blocks.empty()) return "";
  text.clear();
  const std::size_t begin = blocks[0].line * block, end = std::min(numel, begin + block);
  for (std::size_t i = begin; i < end; ++i) text += element_text(host, i) + "\n";
  const auto elements = differences(gather_text(communicator, text, "replicas"));
  if (elements.empty()) return "";
  return fmt::format(" at {}: {}",
                     index_text(host.shape(), static_cast<std::int64_t>(begin + elements[0].line)),
                     describe(as_known(communicator, elements[0].said)));
}

}  // namespace

ReplicaCheck::ReplicaCheck(std::vector<Parameter> parameters, Communicator& communicator,
                           bool compares, bool watches)
    : parameters_(std::move(parameters)),
      communicator_(communicator),
      compares_(compares && communicator.size() > 1 && !parameters_.empty()),
      watches_(watches),
      stepped_(parameters_.size()) {
  for (const Parameter& parameter : parameters_)
    names_.push_back(fmt::format("'{}'", parameter.name()));
  if (!compares_ && !watches_) return;
  for (const Parameter& parameter : parameters_) {
    const Device device = parameter.value().device();
    if (std::ranges::find(sums_, device, &Sum::device) == sums_.end())
      sums_.push_back({device, Tensor::zeros({2}, DType::i64, device)});
  }
  for (const Parameter& parameter : parameters_)
    sum_of_.push_back(&sum_on(parameter.value().device()));
  if (!compares_) return;
  const Tensor number = Tensor::empty({}, DType::i64);
  std::random_device random;
  *number.data<std::int64_t>() =
      static_cast<std::int64_t>(std::uint64_t{random()} << 32 | std::uint64_t{random()});
  communicator.broadcast(number, 0, "replicas").wait();
  model_ = static_cast<std::uint64_t>(*number.data<std::int64_t>());
  leave(not_ended);  // until this ends
}

ReplicaCheck::~ReplicaCheck() {
  if (!compares_ || birth_.forked_since()) return;
  if (difference_known_) {
    leave(not_compared);
    return;
  }
  try {
    record_events();
    Fnv1a last;
    last.add(sum());
    for (const Compared& tensor : tensors()) last.add(tensor.name + fingerprint_of(tensor.value));
    leave(last.value());
  } catch (const DataError&) {  // of a kernel of the last steps: nobody has waited since
    if (!birth_.unwinding()) leave_error(thread_);
  } catch (...) {  // a device that has failed: the rank that used it has been told
  }
}

Tensor& ReplicaCheck::sum_on(Device device) {
  return std::ranges::find(sums_, device, &Sum::device)->value;
}

kernels::Fingerprint ReplicaCheck::step_on(std::size_t i, bool part) {
  if (sum_of_.empty() || parameters_[i].kept_local()) return {};
  stepped_[i] = stepped_[i] || !part;
  return {sum_of_[i], salt_of(i), compares_ && !part};
}

void ReplicaCheck::note(const std::weak_ptr<Stepper>& stepper) {
  std::erase_if(steppers_, [](const auto& known) { return known.expired(); });
  const auto same = [&](const auto& known) {
    return !known.owner_before(stepper) && !stepper.owner_before(known);
  };
  if (std::ranges::none_of(steppers_, same)) steppers_.push_back(stepper);
}

void ReplicaCheck::begins(bool recorded) {
  if (recorded || sum_of_.empty()) return;
  for (std::size_t k = 0; compares_ && k < parameters_.size(); ++k) {
    const std::size_t i = (next_ + k) % parameters_.size();
    if (stepped_[i] || parameters_[i].kept_local()) continue;
    kernels::add_fingerprint({&parameters_[i].value(), 1}, step_on(i));
    next_ = i + 1;
    break;
  }
  stepped_.assign(stepped_.size(), false);
  record_events();
}

void ReplicaCheck::record_events() {
  for (Sum& sum : sums_) {
    if (sum.device == Device{}) continue;
    if (!sum.ready) sum.ready.emplace(sum.device);
    sum.ready->record(Stream::current(sum.device));
  }
}

std::uint64_t ReplicaCheck::sum() {
  std::uint64_t total = 0;
  nonfinite_ = 0;
  for (Sum& sum : sums_) {
    if (sum.ready) {  // what the current stream was given since then is not waited for
      if (world_.ended() || ranks_ == 1)
        sum.ready->synchronize();
      else
        communicator_.wait_for(*sum.ready, "replicas");
      const StreamGuard guard(Stream::reading(sum.device));
      sum.on_host.copy_from(sum.value);
    }
    const Tensor& readable = sum.ready ? sum.on_host : sum.value;
    total += std::bit_cast<std::uint64_t>(readable.data<std::int64_t>()[0]);
    nonfinite_ += readable.data<std::int64_t>()[1];
  }
  return compares_ ? total : 0;
}

bool ReplicaCheck::differ_before_replay() {
  if (sum_of_.empty() || ++replays_ % 64 != 0) return false;
  record_events();
  const std::uint64_t sum = this->sum();
  if (!compares_) return false;
  return !differences(gather_text(communicator_, fmt::format("{:x}", sum), "replicas")).empty();
}

bool ReplicaCheck::saw_nonfinite_in_last_replays() {
  if (!watches_ || replays_ == 0) return false;
  record_events();
  (void)sum();
  return saw_nonfinite();
}

std::vector<ReplicaCheck::Compared> ReplicaCheck::tensors() const {
  std::vector<Compared> all;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const Parameter& parameter = parameters_[i];
    const std::string& name = names_[i];
    if (parameter.kept_local()) continue;
    all.push_back({name, parameter.value(), i, false});
    for (const auto& known : steppers_)
      if (const auto stepper = known.lock())
        for (const StateTensor& state : stepper->state_of(parameter))
          all.push_back({fmt::format("{} of {}", state.name, name), state.value, i, true});
  }
  // The order depends on what there is, not on which optimizer has stepped first.
  const auto order = [](const Compared& tensor) {
    return std::tie(tensor.parameter, tensor.state, tensor.name);
  };
  std::ranges::stable_sort(all, {}, order);
  return all;
}

std::string ReplicaCheck::find_difference() {
  blame_ = {};
  if (communicator_.size() == 1) return "";
  const std::vector<Compared> all = tensors();
  std::string names, fingerprints;
  for (const Compared& tensor : all) {
    names += tensor.name + "\n";
    fingerprints += fingerprint_of(tensor.value) + "\n";
  }
  const auto [lacked, by] =
      find_lacked(communicator_, gather_text(communicator_, names, "replicas"));
  difference_known_ = !lacked.empty();
  if (difference_known_) {
    blame_ = in_minority(communicator_, by);
    return "one keeps what another does not: " + lacked;
  }
  const auto found = differences(gather_text(communicator_, fingerprints, "replicas"));
  difference_known_ = !found.empty();
  if (!difference_known_) return "";
  blame_ = in_minority(communicator_, found[0].said);
  const Compared& first = all[found[0].line];
  std::string text = first.name + locate(communicator_, first.value);
  for (std::size_t k = 1; k < std::min<std::size_t>(found.size(), 4); ++k)
    text += (k == 1 ? "; so do " : ", ") + all[found[k].line].name;
  return text + (found.size() > 4 ? fmt::format(" and {} more", found.size() - 4) : "");
}

Problem ReplicaCheck::explain_difference() {
  const std::string found = find_difference();
  if (!found.empty()) return {"the replicas differ: " + found, blame_};
  return {
      "the replicas have differed since the last step, and are equal now: was a parameter, what "
      "an optimizer keeps or the gradient of a sharded one changed on one rank?",
      blame_};
}

void ReplicaCheck::check(std::string_view operation) {
  const std::string found = find_difference();
  if (!found.empty())
    stop_all_ranks(communicator_, fmt::format("[{}] the replicas differ: {}", operation, found),
                   blame_);
}

std::string ReplicaCheck::find_options_difference() {
  blame_ = {};
  std::vector<std::string> texts;
  for (const auto& known : steppers_)
    if (const auto stepper = known.lock()) texts.push_back(stepper->options_text());
  std::ranges::sort(texts);  // the order in which they stepped first may differ between ranks
  const std::string text = fmt::format("{}", fmt::join(texts, ""));
  const auto found = differences(gather_text(communicator_, text, "options"));
  if (found.empty()) return "";
  blame_ = in_minority(communicator_, found[0].said);
  return describe(as_known(communicator_, found[0].said));
}

void ReplicaCheck::forget_what_some_lack() {
  std::string names;
  for (const Compared& tensor : tensors())
    if (tensor.state) names += tensor.name + "\n";
  std::vector<std::set<std::string>> kept;  // by rank
  for (const std::string& text : gather_text(communicator_, names, "average"))
    kept.push_back(names_in(text));
  const auto all_have = [&](const std::string& name) {
    return std::ranges::all_of(kept, [&](const auto& names) { return names.contains(name); });
  };
  for (const Compared& tensor : tensors())
    if (tensor.state && !all_have(tensor.name))
      for (const auto& known : steppers_)
        if (const auto stepper = known.lock()) stepper->forget(parameters_[tensor.parameter]);
}

void ReplicaCheck::average_state() {
  forget_what_some_lack();
  for (const Compared& state : tensors()) {
    if (!state.state) continue;
    // Collectives take memory of any kind on the host.
    const Tensor host = state.value.to({});
    if (!is_differentiable(host.dtype())) {
      communicator_.broadcast(host, 0, "average " + state.name).wait();
    } else {
      communicator_.all_reduce(host, "average " + state.name).wait();
      kernels::scale(1.0 / communicator_.size(), host, host, false);
    }
    state.value.copy_from(host);
  }
}

}  // namespace lockstep::dist
