#include "lockstep/nn/checkpoint/checkpoint.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <utility>

#include "lockstep/core/system/file_kind.h"
#include "lockstep/core/text/utf8.h"
#include "lockstep/dist/rendezvous/events/failure_record.h"
#include "lockstep/nn/checkpoint/random_state.h"
#include "lockstep/nn/checkpoint/safetensors.h"
#include "lockstep/nn/optim/optimizer.h"
#include "lockstep/version.h"

namespace lockstep::nn {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view random_name = "random";

std::string older(const std::string& path, int age) {
  return age == 0 ? path : fmt::format("{}.{}", path, age);
}

bool is_file(const std::string& path) { return kind_of_file(path) == FileKind::file; }

// The newest file keeps its name until another one takes it: there is always one. Another process
// that saves under the same name may do this at the same time.
void keep_older(const std::string& path, int keep) {
  if (keep < 2 || !is_file(path)) return;
  std::error_code error;
  const auto unless = [&](std::errc expected) {
    if (error == expected) error.clear();
  };
  for (int age = keep - 1; age >= 2 && !error; --age) {
    fs::rename(older(path, age - 1), older(path, age), error);
    unless(std::errc::no_such_file_or_directory);
  }
  const std::string kept = older(path, 1);
  if (!error) fs::remove(kept, error);
  if (!error) {
    fs::create_hard_link(path, kept, error);
    if (error && is_file(kept)) error.clear();  // by the other process, which has replaced `path`
    if (error) fs::copy_file(path, kept, error);
    unless(std::errc::file_exists);
  }
  check<DataError>(!error, "[save] cannot keep '{}' as '{}': {}", path, kept, error.message());
}

// What a user may try to go on from, among the files from `first` on.
std::string what_is_left(const std::string& path, int first) {
  std::vector<std::string> left;
  for (int age = first; is_file(older(path, age)); ++age)
    left.push_back(fmt::format("'{}'", older(path, age)));
  return left.empty() ? "there is no older one"
                      : fmt::format("still there: {}", fmt::join(left, ", "));
}

Manifest manifest_of(const std::string& path, const SafetensorsFile& file) {
  try {
    return parse_manifest(file.header().metadata);
  } catch (const DataError& error) {
    fail<DataError>("[load] {}: {}", path, error.what());
  }
}

// A tensor that is what it was when it was saved.
Tensor read_checked(const std::string& path, const SafetensorsFile& file, const Manifest& manifest,
                    const SafetensorsEntry& entry) {
  const auto hash = manifest.sha256.find(entry.name);
  check<DataError>(hash != manifest.sha256.end(), "[load] {}: its manifest does not know '{}'",
                   path, entry.name);
  const Tensor tensor = file.read(entry);
  check<DataError>(sha256_of(tensor) == hash->second,
                   "[load] {}: '{}' is damaged: its SHA-256 is not the one it was saved with", path,
                   entry.name);
  return tensor;
}

}  // namespace

Checkpoint::Checkpoint() {
  parts_.push_back({.name = std::string(random_name),
                    .per_rank = true,
                    .save = random_state,
                    .load = load_random_state,
                    .load_other_world =
                        [this](const std::vector<StateDict>& states) {
                          return load_random_state_of_other_world(
                              states, ddp_ ? &ddp_->communicator() : nullptr);
                        },
                    .changed_by_forward = random_state});
}

Checkpoint::Checkpoint(dist::DistributedDataParallel& ddp) : Checkpoint() {
  ddp_ = {&ddp, ddp.lifetime()};
}

void Checkpoint::check_name(const std::string& name) const {
  check<UsageError>(is_utf8(name), "[Checkpoint] the name '{}' is not UTF-8", name);
  check<UsageError>(!name.empty() && name.find('/') == name.npos && !name.starts_with("rank "),
                    "[Checkpoint] '{}' cannot be a name: it is empty, has a '/' or begins with "
                    "'rank '",
                    name);
  check<UsageError>(std::ranges::find(parts_, name, &Part::name) == parts_.end() &&
                        std::ranges::find(numbers_, name, &Number::name) == numbers_.end(),
                    "[Checkpoint] there is a '{}' already", name);
}

void Checkpoint::check_between_steps(std::string_view operation) const {
  for (const Part& part : parts_) {
    if (!part.parameters) continue;
    const std::vector<Parameter> now = part.parameters();
    check<StateError>(now.size() >= part.had,
                      "[{}] '{}' had {} parameters when it was added, and has {}: was it, or a "
                      "part of it, moved to another place? Add it there",
                      operation, part.name, part.had, now.size());
    optim::check_between_steps(operation, now);
  }
  if (ddp_) optim::check_between_steps(operation, ddp_->buckets().parameters());
}

// Of these parts one rank's state stands for all ranks'.
void Checkpoint::check_alike(std::string_view operation, int ranks) const {
  for (const Part& part : parts_) {
    if (ranks == 1 || part.per_rank || !part.parameters) continue;
    for (const Parameter& parameter : part.parameters())
      check<StateError>(!parameter.kept_local(),
                        "[{}] '{}' has {}, which is each rank's own (keep_local()): one rank's "
                        "state would stand for all. Add it by add_per_rank(), or what is alike and "
                        "what is not as two parts",
                        operation, part.name, parameter);
  }
}

void Checkpoint::add(const std::string& name, std::int64_t& number) {
  check_name(name);
  numbers_.push_back({name, &number});
}

void Checkpoint::on_every_rank(const std::function<void()>& task) const {
  if (ddp_) return dist::on_every_rank(ddp_->communicator(), task);
  task();
}

void Checkpoint::on_rank0(const std::function<void()>& task,
                          std::optional<dist::Seconds> timeout) const {
  if (ddp_) return dist::on_rank0(ddp_->communicator(), task, timeout);
  task();
}

std::string Checkpoint::prefix(const Part& part, int rank) const {
  return part.per_rank ? fmt::format("rank {}/{}/", rank, part.name) : part.name + "/";
}

// A part may be collective (a sharded optimizer). So every rank goes through all parts, whatever
// one of them throws; after that the ranks agree.
void Checkpoint::for_each_part(const std::function<void(std::size_t)>& task) const {
  std::exception_ptr first;
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    try {
      task(i);
    } catch (const std::exception&) {
      if (!first) first = std::current_exception();
    }
  }
  on_every_rank([&] {
    if (first) std::rethrow_exception(first);
  });
}

// What this rank has to save: of what all ranks have alike, rank 0's.
StateDict Checkpoint::own_tensors() const {
  StateDict own;
  for_each_part([&](std::size_t i) {
    const Part& part = parts_[i];
    StateDict mine;
    for (const auto& [name, tensor] : part.save())
      if (part.per_rank || rank() == 0) mine.emplace(prefix(part, rank()) + name, tensor);
    (void)plan_safetensors(mine);  // throws now what it would throw later
    own.merge(mine);
  });
  return own;
}

// Adds to rank 0's tensors the parts per rank of the others.
void Checkpoint::collect(StateDict& own) const {
  if (world() == 1) return;
  dist::Communicator& communicator = ddp_->communicator();
  const SafetensorsHeader mine = plan_safetensors(rank() == 0 ? StateDict() : own);
  const auto headers = dist::gather_text(communicator, to_bytes(mine), "checkpoint");
  for (int r = 1; r < world(); ++r) {
    const SafetensorsHeader header = header_of_bytes(headers[static_cast<std::size_t>(r)]);
    Tensor bytes;
    on_every_rank([&] {  // memory may be short
      bytes = Tensor::empty({static_cast<std::int64_t>(header.data_bytes())}, DType::u8);
    });
    const auto part = [&](const SafetensorsEntry& entry) {
      return Tensor::over(bytes.storage(), entry.begin, entry.shape, entry.dtype);
    };
    if (rank() == r)
      for (const auto& entry : header.entries) part(entry).copy_from(own.at(entry.name));
    communicator.broadcast(bytes, r, "checkpoint").wait();
    if (rank() == 0)
      for (const auto& entry : header.entries) own.emplace(entry.name, part(entry));
  }
}

Manifest Checkpoint::new_manifest() const {
  Manifest manifest;
  manifest.version = version();
  manifest.world = world();
  if (ddp_) manifest.bucket_layout = ddp_->bucket_layout();
  for (const Number& number : numbers_) manifest.numbers[number.name] = *number.value;
  return manifest;
}

void Checkpoint::save(const std::string& path, SaveOptions options) {
  check<UsageError>(options.keep >= 1, "[save] keep must be at least 1, got {}", options.keep);
  check<UsageError>(!options.timeout || *options.timeout > dist::Seconds(0),
                    "[save] the timeout must be positive, got {} s",
                    options.timeout.value_or(dist::Seconds(0)).count());
  on_every_rank([&] {
    check_alike("save", world());
    check_between_steps("save");
  });
  if (ddp_ && options.async)
    ddp_->communicator().membership().refuse_if_ranks_may_be_lost(
        "an asynchronous checkpoint", "the rank that writes it may be lost meanwhile");
  std::exception_ptr earlier;  // this state is saved all the same, and its file is waited for
  try {
    wait();
  } catch (const Error&) {
    earlier = std::current_exception();
  }
  if (ddp_) ddp_->check_replicas();
  StateDict tensors = own_tensors();
  collect(tensors);
  const auto write = [path, keep = options.keep](const StateDict& all, Manifest manifest) {
    for (const auto& [name, tensor] : all) manifest.sha256[name] = sha256_of(tensor);
    const std::string target = follow_links(path).value_or(path);  // older ones lie beside it
    try {
      save_safetensors(target, all, to_metadata(manifest), [&] { keep_older(target, keep); });
    } catch (const DataError& error) {
      fail<DataError>("{} ({})", error.what(), what_is_left(target, 0));
    }
  };
  if (!options.async || earlier) {
    on_rank0([&] { write(tensors, new_manifest()); }, options.timeout);
    if (earlier) std::rethrow_exception(earlier);
    return;
  }
  on_rank0(
      [&] {
        take_snapshot(tensors);
        write_aside([this, write, manifest = new_manifest()] { write(snapshot_, manifest); });
      },
      options.timeout);
  pending_ = true;
  pending_timeout_ = options.timeout;
}

Manifest Checkpoint::manifest(const std::string& path) {
  const SafetensorsFile file(path);
  return manifest_of(path, file);
}

// The parts that have something to save, and the numbers.
std::set<std::string> Checkpoint::names_here() const {
  std::set<std::string> here;
  for_each_part([&](std::size_t i) {
    if (!parts_[i].save().empty()) here.insert("'" + parts_[i].name + "'");
  });
  for (const Number& number : numbers_) here.insert("the number '" + number.name + "'");
  return here;
}

void Checkpoint::check_parts(const std::string& path, const SafetensorsHeader& header,
                             const Manifest& manifest, const std::set<std::string>& here) const {
  std::set<std::string> there;
  for (const auto& [name, value] : manifest.numbers) there.insert("the number '" + name + "'");
  for (const auto& entry : header.entries) {
    const std::size_t slash = entry.name.find('/');
    const bool per_rank = entry.name.starts_with("rank ");
    const std::size_t begin = per_rank ? slash + 1 : 0;
    there.insert("'" + entry.name.substr(begin, entry.name.find('/', begin) - begin) + "'");
  }
  for (const std::string& name : here)
    check<StateError>(there.contains(name), "[load] {} has no {}; it has {}", path, name,
                      fmt::join(there, ", "));
  for (const std::string& name : there)
    check<StateError>(here.contains(name), "[load] {} has {}, which was not added; {} was", path,
                      name, fmt::join(here, ", "));
}

// One state; or those of all ranks, if another number of them has saved.
std::vector<StateDict> Checkpoint::read_states(const Part& part, const std::string& path,
                                               const SafetensorsFile& file,
                                               const Manifest& manifest) const {
  const bool other_world = is_of_other_world(part, manifest);
  if (other_world && !part.load_other_world) return {};
  std::vector<StateDict> states;
  for (int k = other_world ? 0 : rank(); k < (other_world ? manifest.world : rank() + 1); ++k) {
    const std::string prefix = this->prefix(part, k);
    StateDict& state = states.emplace_back();
    for (const auto& entry : file.header().entries)
      if (entry.name.starts_with(prefix))
        state.emplace(entry.name.substr(prefix.size()), read_checked(path, file, manifest, entry));
  }
  return states;
}

void Checkpoint::load(const std::string& path) {
  wait();
  on_every_rank([&] { check_between_steps("load"); });
  const std::set<std::string> here = names_here();
  std::vector<std::vector<StateDict>> states;
  Manifest manifest;
  on_every_rank([&] {
    try {
      const SafetensorsFile file(path);
      manifest = manifest_of(path, file);
      check_parts(path, file.header(), manifest, here);
      for (const Part& part : parts_) states.push_back(read_states(part, path, file, manifest));
    } catch (const DataError& error) {
      fail<DataError>("{} ({})", error.what(), what_is_left(path, 1));
    }
  });
  if (ddp_)
    dist::check_same(ddp_->communicator(), "checkpoints",
                     "the hash of its manifest " + to_metadata(manifest).at("lockstep.sha256"));
  std::vector<std::string> stay;
  for_each_part([&](std::size_t i) {
    const Part& part = parts_[i];
    if (!is_of_other_world(part, manifest)) return part.load(states[i][0]);
    if (!part.load_other_world) return stay.push_back("'" + part.name + "'");
    for (const std::string& name : part.load_other_world(states[i]))
      stay.push_back(fmt::format("'{}/{}'", part.name, name));
  });
  if (!stay.empty() && rank() == 0)
    dist::write_all(
        STDERR_FILENO,
        visible(fmt::format("note: [load] {}: {} ranks have saved it, and {} load it: what each "
                            "had of its own is not loaded, {} (random generators draw other "
                            "numbers than the run that was saved would have drawn)",
                            path, manifest.world, world(), fmt::join(stay, " and "))) +
            "\n");
  for (const Number& number : numbers_) *number.value = manifest.numbers.at(number.name);
}

}  // namespace lockstep::nn
