#pragma once
/// A training step on a loader's batches: on a GPU it is recorded once, and then replayed
/// (core/gpu/graph.h).
///
///   nn::RecordedSteps step([&](const data::Batch& batch) {
///     Tape tape;
///     const Tensor loss = nn::cross_entropy(model(batch.x), batch.y);
///     tape.backward(loss, batch.weight);
///     optimizer.step();
///     optimizer.zero_grad();
///     return loss.detach();
///   });
///   for (const data::Batch& batch : loader) log.add(step(batch), batch.weight);
///
/// A recording holds for batches of one size. That of the first batch is recorded: as many samples
/// of all ranks. Such a batch is copied into the memory that the recording reads, and the step
/// replayed. Any other batch, such as the last of an epoch, takes the function as it is. All ranks
/// have the same number of samples of all ranks, so they replay together. A batch whose total
/// weight is not known is never recorded; nor is one with a tensor on the cpu.
///
/// The function reads x, y, the fields, the weight and the lanes of its batch: to read its step or
/// its position while they are recorded is a StateError. If it keeps a tensor of its batch, the
/// next step is recorded anew. What a recorded step may not do stands in core/gpu/graph.h;
/// DistributedDataParallel::recordable() says what it allows.
///
/// On the cpu every call runs the function. Thread-safety: one thread.

#include <functional>
#include <optional>
#include <vector>

#include "lockstep/core/gpu/graph.h"
#include "lockstep/data/loader.h"

namespace lockstep::nn {

class RecordedSteps {
 public:
  /// `step` returns a result of a fixed shape, such as the loss, or an undefined Tensor. What it
  /// refers to must be there in every call.
  explicit RecordedSteps(std::function<Tensor(const data::Batch&)> step) : step_(std::move(step)) {}
  RecordedSteps(const RecordedSteps&) = delete;
  RecordedSteps& operator=(const RecordedSteps&) = delete;

  /// One step. Throws StateError for a batch of the recorded
  /// size whose fields have other shapes or dtypes than the recorded ones: the other ranks replay.
  Tensor operator()(const data::Batch& batch);

  std::int64_t replays() const { return replays_; }  ///< steps that were replayed
  /// How often a step has been recorded (StepGraph::recordings).
  int recordings() const { return graph_ ? graph_->recordings() : 0; }

 private:
  bool holds_for(const data::Batch& batch) const;
  void take_first();
  void check_like_first(const data::Batch& batch, const std::vector<data::Field>& then,
                        const std::vector<data::Field>& now) const;

  std::function<Tensor(const data::Batch&)> step_;
  std::optional<data::Batch> first_;  // whose memory a recording reads
  std::optional<StepGraph> graph_;
  Tensor result_;
  std::int64_t replays_ = 0;
};

}  // namespace lockstep::nn
