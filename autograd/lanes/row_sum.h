#pragma once
/// Sums over samples, on tapes with lanes (core/lanes.h): second reading. Operations reach them by
/// sum_rows (rows.h).
///
/// Operations keep samples apart. The gradient of an operand that is made of no samples is a sum
/// over the samples. It is made lane by lane, and the lanes are added in the tree: at once for a
/// parameter that gets one contribution, else when its last one has come. A result that is made of
/// parameters alone keeps the lanes of its gradient, and its backward runs once for each lane.
///
/// Without lanes there is one part, of all rows, and it is written into its place.

#include <span>
#include <vector>

#include "lockstep/autograd/gradients.h"

namespace lockstep {

/// Rows [begin, end) of a first dimension. A scalar is one row.
struct RowRange {
  std::int64_t begin = 0, end = 0;
  /// These rows of x, not recorded.
  Tensor of(const Tensor& x) const {
    const bool all = x.rank() == 0 || (begin == 0 && end == x.size(0));
    return all ? x.detach() : x.detach().slice(begin, end);
  }
};
inline std::int64_t rows_in(const Tensor& x) { return x.rank() > 0 ? x.size(0) : 1; }

class RowSum {
 public:
  /// Of operand i, over `rows` rows, a first dimension that counts samples.
  RowSum(Gradients& g, int i, std::int64_t rows);
  RowSum(const RowSum&) = delete;
  RowSum& operator=(const RowSum&) = delete;

  explicit operator bool() const { return wanted_; }

  /// write(rows, destination) for each part.
  template <class F>
  void each(const F& write) {
    if (lanes_.empty()) return write(RowRange{0, rows_}, to_);
    make_parts();
    for (std::size_t k = 0; k + 1 < lanes_.size(); ++k)
      write(RowRange{lanes_[k], lanes_[k + 1]}, part(k));
    add_parts();
  }

  /// The same of two sums over the same lanes(): write(rows, destination, that of `other`).
  template <class F>
  void each_with(RowSum& other, const F& write) {
    if (lanes_.empty()) return write(RowRange{0, rows_}, to_, other.to_);
    make_parts();
    other.make_parts();
    for (std::size_t k = 0; k + 1 < lanes_.size(); ++k)
      write(RowRange{lanes_[k], lanes_[k + 1]}, part(k), other.part(k));
    add_parts();
    other.add_parts();
  }

  /// Where one kernel can write the sum of all lanes(), or of all rows if there are none, instead
  /// of each(); empty where it cannot.
  const Gradients::Destination& whole() const { return to_; }
  /// Where each lane begins, and the end; empty: there are none.
  std::span<const std::int64_t> lanes() const { return lanes_; }

 private:
  void take_lanes(Gradients& g, int i, const Lanes& lanes);
  void wait_in_parameter(const Gradients& g, detail::ParameterState& parameter);
  Gradients::Destination part(std::size_t k);
  void make_parts();
  void add_parts();

  bool wanted_ = false;
  std::int64_t rows_;
  Gradients::Destination to_;  // of the sum; empty if the tape adds the lanes later
  std::vector<std::int64_t> lanes_;
  Tensor parts_;             // (lanes, ...); undefined: to_ is the only part
  bool accumulate_ = false;  // parts_ are added to
};

/// Adds a parameter's lanes, which wait for their last contribution.
void add_waiting_lanes(detail::ParameterState& parameter);

/// The gradient of what is made of no samples becomes the sum of its lanes, if it has any.
void add_lanes(detail::Node& node);
/// The gradient of a result: the sum of its lanes, if they wait.
Tensor sum_of_lanes(detail::Node& node);

}  // namespace lockstep
