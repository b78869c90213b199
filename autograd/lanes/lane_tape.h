#pragma once
/// What a tape asks about lanes: second reading.

#include <optional>
#include <span>

#include "lockstep/autograd/gradients.h"
#include "lockstep/core/shard.h"

namespace lockstep {

struct Contribution;

namespace detail {

/// The lanes of this thread's tape, or of the batch where there is no tape; null: none.
const Lanes* lanes_here();
/// Of an operation that is recorded on a tape with these lanes: what the rows of its output are
/// made of. Throws StateError if it mixes the samples of several lanes.
Node::Rows rows_recorded(const Lanes& lanes, std::string_view operation, const Tensor& output,
                         std::span<const Operand> operands, Makes makes);
/// Gives each lane of a loss its seed, the weight of its samples. `lanes` are the tape's, or null.
/// Throws StateError for a loss without lanes, and for a weight that is not theirs. Returns whether
/// the lanes of parameters wait for other backwards of their window.
bool seed_lanes(Node& loss, const Lanes* lanes, const std::optional<Weight>& weight,
                Contribution& told);

}  // namespace detail
}  // namespace lockstep
