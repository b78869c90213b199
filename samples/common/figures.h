#pragma once
/// Figures as they are printed: brought together from all ranks, and compared with published ones.

#include <string>
#include <string_view>
#include <vector>

#include "lockstep/dist/world/world.h"

namespace lockstep::samples {

/// "0.04043"; what rounds to zero has no sign.
std::string fixed(double value, int decimals);

/// The larger one; NaN wins.
inline double larger(double a, double b) { return a >= b || a != a ? a : b; }

/// Of at least one value; of an even number, the upper one of the middle two.
double median(std::vector<double> values);

/// Seconds in which this thread could have run but had no core: Linux counts them in the second
/// number of /proc/thread-self/schedstat. 0 on a system that does not.
double waited_for_core();

/// Every rank's values, of which each has as many. Collective.
std::vector<std::vector<double>> gather(const World& world, const std::vector<double>& values);

/// Compares figures digit for digit at the precision at which they are printed, and remembers the
/// first one that differs.
class Comparison {
 public:
  void expect(std::string_view what, double actual, double published, int decimals);
  /// Any other claim.
  void claim(std::string_view what, bool holds);

  /// How many figures agree, as a sentence. Throws Error with the first difference, if there was
  /// one.
  std::string verdict() const;

 private:
  int figures_ = 0;
  std::string first_difference_;
};

}  // namespace lockstep::samples
