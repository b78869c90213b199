// What the arguments of a collective must satisfy, the same for every communicator.

#include "lockstep/dist/collectives/communicator.h"

#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/trace/recorder.h"

namespace lockstep::dist {
namespace {

constexpr std::string_view summable_dtypes = "f32, f64, i32, i64, f16 or bf16";

/// [operation] 'name': `whole` is cut into parts, of which `part` must be this rank's.
void check_part(Operation operation, const Tensor& part, std::string_view role, const Tensor& whole,
                const Communicator& communicator, std::string_view name) {
  const std::int64_t size =
      partition(whole.numel(), communicator.size(), communicator.rank()).size();
  check<ShapeError>(part.numel() == size,
                    "[{}] '{}': {} has {} elements, this rank's part of {} is {}",
                    name_of(operation), name, role, part.numel(), whole.numel(), size);
}

// What a rank has made of its samples together, stays that where ranks exchange it.
void hand_on_mixture(const Tensor& input, const Tensor& output) {
  if (const RowOrigin origin = input.row_origin(); origin.is_mixed())
    output.changed_by("collective", origin);
}

}  // namespace

void CommunicatorRef::fail_ended(std::string_view what) {
  fail<StateError>(
      "{}: its communicator has ended, with the World or the group that it was of: "
      "end what uses a World before the World",
      what);
}

// ---- calls ----

Work Communicator::all_reduce(const Tensor& data, std::string_view name) {
  check<DTypeError>(data.dtype() != DType::u8, "[all_reduce] '{}' takes {}, got {}", name,
                    summable_dtypes, data.dtype());
  return issue({Operation::all_reduce, data}, name);
}

Work Communicator::reduce_scatter(const Tensor& input, const Tensor& output,
                                  std::string_view name) {
  check<DTypeError>(input.dtype() != DType::u8 && input.dtype() == output.dtype(),
                    "[reduce_scatter] '{}' takes {} twice, got {} and {}", name, summable_dtypes,
                    input.dtype(), output.dtype());
  check_part(Operation::reduce_scatter, output, "output", input, *this, name);
  hand_on_mixture(input, output);
  return issue({Operation::reduce_scatter, input, output}, name);
}

Work Communicator::all_gather(const Tensor& input, const Tensor& output, std::string_view name) {
  check<DTypeError>(input.dtype() == output.dtype(), "[all_gather] '{}': input is {}, output {}",
                    name, input.dtype(), output.dtype());
  check_part(Operation::all_gather, input, "input", output, *this, name);
  hand_on_mixture(input, output);
  return issue({Operation::all_gather, output, input}, name);
}

Work Communicator::broadcast(const Tensor& data, int root, std::string_view name) {
  check<CommError>(root >= 0 && root < size(),
                   "[broadcast] '{}': there is no root {} in a world of {}", name, root, size());
  return issue({Operation::broadcast, data, {}, root}, name);
}

Work Communicator::barrier(std::string_view name) { return issue({}, name); }

Seconds Communicator::exposed() {
  if (!exposed_) exposed_ = Seconds(0);
  return linked_ ? *exposed_ + linked_->exposed() : *exposed_;
}

void Communicator::link_failure(Communicator& linked) {
  linked_ = &linked;
  if (exposed_) (void)linked.exposed();  // begins to count
}

// ---- the computing thread in a communicator ----

/// As long as it lives: a slice of a trace, and a part of Communicator::exposed().
class Communicator::Inside {
 public:
  Inside(Communicator& communicator, trace::Kind kind, std::string_view name)
      : slice(kind, name), communicator_(communicator) {
    if (communicator_.exposed_) begin_ = communicator_.now();
  }
  ~Inside() {
    if (communicator_.exposed_) *communicator_.exposed_ += communicator_.now() - begin_;
  }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;

  trace::Slice slice;

 private:
  Communicator& communicator_;
  Seconds begin_{0};
};

Work Communicator::issue(const CollectiveCall& call, std::string_view name) {
  for (const Tensor* tensor : {&call.buffer, &call.part})
    tensor->check_writable(name_of(call.operation),
                           "take dist::all_reduce_varying or all_reduce_invariant "
                           "(dist/collectives/differentiable.h), or detach() it");
  const bool on_host = !call.buffer.defined() || call.buffer.device() == Device{};
  check<NotRecordable>(!on_host || !StepGraph::noting() || !StepGraph::recording(),
                       "[{}] '{}' on the host, in a step that is recorded: no replay would call it",
                       name_of(call.operation), name);
  const auto& survival = membership_.survival;
  check<StateError>(
      !survival || !survival->in_body || survival->marked,
      "[{}] '{}': an optimizer has stepped and the step is not marked. If a rank "
      "was lost now, the step would be taken twice: call nn::Checkpoint::mark() after "
      "each step, before the next collective (dist/world/survive.h)",
      name_of(call.operation), name);
  const Inside here(*this, trace::Kind::call, name);
  Work work = enqueue(call, name);
  work.operation_ = call.operation;
  return work;
}

Communicator* Work::living(const char* call) const {
  if (communicator_ && life_.expired()) [[unlikely]]
    CommunicatorRef::fail_ended(fmt::format("[{}] {} #{}", call, name_of(operation_), sequence_));
  return communicator_;
}

bool Work::progress() {
  Communicator* const communicator = living("progress");
  if (!communicator) return true;
  Communicator::Inside here(*communicator, trace::Kind::progress, "progress");
  if (!here.slice.noted()) return communicator->progress(sequence_);
  const auto moved = [&] {
    return std::pair(communicator->bytes_moved(), trace::here.recorder->size());
  };
  const auto before = moved();
  const bool done = communicator->progress(sequence_);
  if (moved() == before) here.slice.give_up();
  return done;
}

void Work::wait(std::optional<Seconds> timeout) {
  Communicator* const communicator = living("wait");
  if (!communicator) return;
  const Communicator::Inside here(*communicator, trace::Kind::wait, "wait");
  communicator->wait(sequence_, timeout);
}

void Work::finish(std::optional<Seconds> timeout) {
  Communicator* const communicator = living("finish");
  if (!communicator) return;
  const Communicator::Inside here(*communicator, trace::Kind::wait, "finish");
  communicator->finish(sequence_, timeout);
}

}  // namespace lockstep::dist
