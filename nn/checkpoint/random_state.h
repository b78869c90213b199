#pragma once
/// The random generators of the calling thread, as a part of a checkpoint.

#include <string>
#include <vector>

#include "lockstep/dist/collectives/communicator.h"
#include "lockstep/nn/state_dict.h"

namespace lockstep::nn {

/// default_generator(): "mt19937", and default_philox(): "philox".
StateDict random_state();
void load_random_state(const StateDict& state);

/// Collective over `communicator`; null stands for one rank. `saved` are the states of all ranks
/// that have saved, another number than load. If all of these had the same generator, and all that
/// load have, before this, the same one, then it is one stream of the whole job, as with lanes: it
/// goes on. Any other generator stays as it is. Returns the names of those that stay, the same on
/// all ranks.
std::vector<std::string> load_random_state_of_other_world(const std::vector<StateDict>& saved,
                                                          dist::Communicator* communicator);

}  // namespace lockstep::nn
