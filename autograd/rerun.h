#pragma once
/// Running a forward once more, with the bits of the first time: second reading.

#include "lockstep/autograd/autocast.h"
#include "lockstep/core/generator.h"

namespace lockstep {

/// What a forward depends on beside its operands: the thread's random state and its Autocast.
struct Surroundings {
  Surroundings();        ///< as they are now
  void restore() const;  ///< the random state
  DType precision;
  Generator generator;
  PhiloxGenerator philox;
};

/// The second run of a forward, in its scope: with the surroundings of the first one, and
/// recomputing() (checkpoint.h). Afterwards the random state is what it was.
class Rerun : public ThreadScope<Rerun> {
 public:
  explicit Rerun(const Surroundings& first);
  ~Rerun();

 private:
  Surroundings now_;
  Autocast autocast_;
};

}  // namespace lockstep
