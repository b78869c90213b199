#pragma once
/// What the exercises get and give.

#include <cstddef>
#include <optional>
#include <vector>

namespace exercise {

/// One step of a ring, on one rank. The buffer is cut into as many parts as there are ranks.
struct RingStep {
  int to = -1;       ///< the rank to send to
  int send = -1;     ///< the part that is sent
  int from = -1;     ///< the rank to receive from
  int receive = -1;  ///< the part that arrives
  bool add = false;  ///< what arrives is added to the part; else it takes its place
};

/// Of some rows of one channel.
struct Statistics {
  double count = 0;  ///< rows
  double mean = 0;   ///< 0 without rows
  double m2 = 0;     ///< the sum of (x - mean)^2
};

/// One recorded operation, and its value. `a` and `b` are places of earlier nodes.
struct Node {
  enum class Kind { input, add, multiply };
  Kind kind = Kind::input;
  int a = -1, b = -1;  ///< operands; an input has none
  double value = 0;
};

}  // namespace exercise
