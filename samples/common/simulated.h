#pragma once
/// A training in a simulated world, traced: the real reducer and the real ring, but time is
/// virtual. The same events at the same times on every machine.

#include <cstdint>
#include <vector>

#include "lockstep/tools/trace/trace_file.h"

namespace lockstep::samples {

struct SimulatedTraining {
  int ranks = 2;
  int layers = 3;  ///< up to 40; each has a weight and a bias
  int layers_of_a_bucket = 1;
  std::int64_t elements = 1000;  ///< of a weight; a bias has 24
  double milliseconds = 2;       ///< of a layer's forward; its backward takes twice that
  double slower = 1.2;           ///< the last rank takes so many times as long
  double message = 1.5;          ///< milliseconds that a message takes at most
  double bandwidth = 0;          ///< MB/s of a link; 0: the bytes themselves take no time
  bool overlap = true;           ///< false: everything travels after backward
  int steps = 3;                 ///< the first one is not in figures: tools/trace/steps.h
};

/// By rank. Throws what a rank has thrown.
std::vector<traces::RankTrace> run(const SimulatedTraining& training);

/// Milliseconds per step, of the rank that takes, or waits, longest.
struct SimulatedCost {
  double step = 0, exposed = 0;
};

SimulatedCost cost_of(const SimulatedTraining& training);

}  // namespace lockstep::samples
