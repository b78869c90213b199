#pragma once

#include "lockstep/nn/optim/optimizer.h"

namespace lockstep::test {

inline constexpr optim::SGD::Options usual = {.lr = 0.1, .momentum = 0.9};

// What ranks say.
inline constexpr const char* differ = "the replicas differ: ";
inline constexpr const char* other_steps = "did not take the same optimizer steps";

}  // namespace lockstep::test
