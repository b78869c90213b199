#pragma once

#include <cstdint>

namespace lockstep::test {

/// Ranks train over TCP, and save. A bit of what one rank sends to another changes on the way: the
/// seed says which. Throws unless every rank fails, the receiver names rank, peer and call, and the
/// old checkpoint is untouched.
void flip_over_tcp(std::uint64_t seed);

}  // namespace lockstep::test
