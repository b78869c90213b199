#pragma once
/// What a step has made of each lane (core/lanes.h), so that a rank can compute one of them once
/// more and compare it bit by bit (dist/audit/audit.h): second reading.
///
///   const std::vector<Parameter> parameters = model.parameters();
///   LaneRecord step(parameters);
///   {
///     const LaneRecord::Scope scope(step);
///     ... forward and backward ...
///     step.take_gradients();  // parts()[i].lanes: the gradient of parameters[i], a row per lane
///   }
///   LaneRecord again(parameters, step);
///   {
///     const LaneRecord::Scope scope(again);
///     Tape tape;  // under a LaneScope of one lane
///     const Tensor loss = ...;
///     const LaneRecord::OtherGradients aside(tape.parameters_of(loss));
///     tape.backward(loss, weight);
///     again.take_gradients();  // one row
///   }
///
/// In the scope of a record, backward keeps the lanes of every gradient until it adds them up: what
/// is recorded is what the step is made of. Where lanes need each other within forward or backward
/// (the statistics of BatchNorm), the record notes what each lane has given and the result of all
/// lanes; a recomputation takes that result from the record of the step, in the same order.
///
/// Thread-safety: one thread.

#include <initializer_list>
#include <string>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/core/system/thread_scope.h"

namespace lockstep {

class LaneRecord {
 public:
  /// Of one lane or several, in the order in which it was made.
  struct Part {
    std::string label;  ///< for messages
    Tensor lanes;       ///< (lanes of this rank, ...); undefined: there is no such gradient
  };

  /// Of a step: forgets the lanes that the parameters have kept of earlier steps.
  explicit LaneRecord(std::vector<Parameter> parameters);
  /// Of a recomputation of some lanes of `step`, which must outlive it.
  LaneRecord(std::vector<Parameter> parameters, const LaneRecord& step);

  /// Operations find the record while it lives.
  class [[nodiscard]] Scope : public ThreadScope<Scope> {
   public:
    explicit Scope(LaneRecord& record) : ThreadScope("LaneRecord::Scope"), record_(&record) {}

   private:
    friend class LaneRecord;
    LaneRecord* record_;
  };
  /// This thread's, or null.
  static LaneRecord* current();

  /// While it lives these parameters have other gradients, at first none, and no observers. Throws
  /// StateError if another one has put some of them aside.
  class [[nodiscard]] OtherGradients : public ThreadScope<OtherGradients> {
   public:
    explicit OtherGradients(std::vector<Parameter> parameters);
    ~OtherGradients();

   private:
    struct Kept;
    std::vector<Parameter> parameters_;
    std::vector<Kept> kept_;
    void exchange();
  };

  /// After backward: parts() begins with the gradients of the parameters, in their order. Throws
  /// StateError if a recomputation has shared less than the step.
  void take_gradients();
  const std::vector<Part>& parts() const { return parts_; }

  // --- for operations ---

  bool is_again() const { return step_ != nullptr; }
  /// (lanes of this rank, ...): what they give to a sum over all lanes. Copied.
  void note(const char* operation, const Tensor& lanes);
  /// `make` replaces `results` and `number`, which this rank's lanes have made, by the results of
  /// all lanes; a recomputation takes the step's results instead. `number` may be null.
  template <class F>
  static void of_all_lanes(std::initializer_list<Tensor> results, double* number, const F& make) {
    LaneRecord* const record = current();
    if (record && record->recall(results, number)) return;
    make();
    if (record) record->remember(results, number);
  }

 private:
  struct Shared {
    std::vector<Tensor> results;
    double number;
  };
  bool recall(std::initializer_list<Tensor> results, double* number);
  void remember(std::initializer_list<Tensor> results, const double* number);

  std::vector<Parameter> parameters_;
  const LaneRecord* step_ = nullptr;
  std::vector<Part> parts_;
  std::vector<Shared> shared_;
  std::size_t recalled_ = 0;
};

}  // namespace lockstep
