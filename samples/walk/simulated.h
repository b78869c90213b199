#pragma once
/// A training in a simulated world, traced: the real reducer and the real ring, but time is
/// virtual. The same events at the same times on every machine.

#include <cstdint>
#include <vector>

#include "lockstep/tools/trace/trace_file.h"

namespace lockstep::samples {

struct SimulatedTraining {
  int ranks = 2;
  int layers = 3;                ///< up to 5; each has a weight and a bias, and is a bucket
  std::int64_t elements = 1000;  ///< of a weight; a bias has 24
  double milliseconds = 2;       ///< of a layer's forward; its backward takes twice that
  double slower = 1.2;           ///< so many times as long takes the last rank
  double message = 1.5;          ///< milliseconds that a message takes at most
  int steps = 3;                 ///< the first one is not in figures: tools/trace/steps.h
};

/// By rank. Throws what a rank has thrown.
std::vector<traces::RankTrace> run(const SimulatedTraining& training);

}  // namespace lockstep::samples
