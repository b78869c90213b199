#include <algorithm>

#include "lockstep/nn/checkpoint/checkpoint.h"

namespace lockstep::nn {
namespace {

struct Furthest {
  int rank;
  std::int64_t progress;
};

// The rank whose number is the highest; of several, the first.
Furthest furthest(const World& world, std::int64_t progress) {
  const Tensor all = Tensor::empty({world.size()}, DType::i64);
  world.communicator()
      .all_gather(Tensor::full({1}, static_cast<double>(progress), DType::i64), all, "furthest")
      .wait();
  const auto ranks = all.span<std::int64_t>();
  const auto most = std::ranges::max_element(ranks);
  return {static_cast<int>(most - ranks.begin()), *most};
}

// The tensors of `root`, on all ranks.
StateDict broadcast(const World& world, int root, const StateDict& own) {
  dist::Communicator& communicator = world.communicator();
  const bool mine = world.rank() == root;
  const std::string text = mine ? to_bytes(plan_safetensors(own)) : "";
  const SafetensorsHeader header = header_of_bytes(
      dist::gather_text(communicator, text, "state")[static_cast<std::size_t>(root)]);
  const Tensor bytes = Tensor::zeros({static_cast<std::int64_t>(header.data_bytes())}, DType::u8);
  StateDict all;
  for (const SafetensorsEntry& entry : header.entries) {
    Tensor part = Tensor::over(bytes.storage(), entry.begin, entry.shape, entry.dtype);
    if (mine) part.copy_from(own.at(entry.name));
    all.emplace(entry.name, part);
  }
  communicator.broadcast(bytes, root, "state").wait();
  dist::check_same(communicator, "the shared state", sha256_of(bytes));
  return all;
}

}  // namespace

void Checkpoint::mark() {
  check_between_steps("mark");
  for (Part& part : parts_) {
    if (!part.changed_by_forward) continue;
    part.marked.clear();
    for (const auto& [name, tensor] : part.changed_by_forward())
      part.marked.emplace(name, tensor.clone());
  }
  ++marks_;
  if (const auto survival = survival_.lock()) survival->marked = true;
}

void Checkpoint::share(const World& world, std::int64_t progress) {
  constexpr const char* numbers_name = "rank numbers/";  // a name that no part can have
  if (shared_progress_)
    check<StateError>(progress - *shared_progress_ >= marks_,
                      "[share] progress is {}, and was {} when the state was shared last; since "
                      "then {} steps have been marked: it must rise with each, and be added to the "
                      "Checkpoint",
                      progress, *shared_progress_, marks_);
  dist::on_every_rank(world.communicator(), [&] {
    check_alike("share", world.size());
    check_between_steps("share");
  });
  const auto [root, most] = furthest(world, progress);
  StateDict own;
  if (world.rank() == root) {
    for (const Part& part : parts_)
      for (const auto& [name, tensor] : part.save()) {
        const auto marked = part.marked.find(name);
        own.emplace(part.name + "/" + name, marked == part.marked.end() ? tensor : marked->second);
      }
    for (const Number& number : numbers_)
      own.emplace(numbers_name + number.name, Tensor::of<std::int64_t>({1}, {*number.value}));
  }
  const StateDict shared = broadcast(world, root, own);
  for (const Part& part : parts_) {
    const std::string prefix = part.name + "/";
    StateDict state;
    for (const auto& [name, tensor] : shared)
      if (name.starts_with(prefix)) state.emplace(name.substr(prefix.size()), tensor);
    part.load(state);
  }
  for (const Number& number : numbers_)
    *number.value = *shared.at(numbers_name + number.name).data<std::int64_t>();
  shared_progress_ = most;
  survival_ = world.communicator().membership().survival;
  if (const auto survival = survival_.lock()) survival->shared = true;
  mark();
  marks_ = 0;
}

}  // namespace lockstep::nn
