#pragma once
/// Sums over samples, on tapes with lanes (core/lanes.h): second reading.
///
/// Such a tape knows of each recorded value what its elements belong to:
///
///   samples   the first dimension counts samples, or some equal parts of each, in their order
///   lanes     one number for each lane: a loss. The tensor shows that of the rank's whole batch;
///             its gradient has an element for each lane
///   neither   parameters, and what is made of them alone
///
/// Operations keep samples apart. Where an operand that belongs to neither gets a gradient, that is
/// a sum over the samples. It is computed lane by lane and added in the tree:
///
///   if (RowSum sum(g, 1, dy.size(0)); sum)     // operand 1's gradient is a sum over dy's rows
///     sum.each([&](std::int64_t begin, std::int64_t end, const Gradients::Destination& dw) {
///       kernels::matmul(rows(dy, begin, end), rows(x, begin, end), dw.tensor, ...);
///     });
///
/// Without lanes there is one part, of all rows, and it is written into its place.

#include <span>
#include <vector>

#include "lockstep/autograd/tape.h"

namespace lockstep {

class RowSum {
 public:
  /// Of operand i, over `rows` rows, a first dimension that counts samples.
  RowSum(Gradients& g, int i, std::int64_t rows);
  RowSum(const RowSum&) = delete;
  RowSum& operator=(const RowSum&) = delete;

  explicit operator bool() const { return wanted_; }

  /// write(begin, end, destination) for each part.
  template <class F>
  void each(const F& write) {
    if (lanes_.empty()) return write(std::int64_t{0}, rows_, to_);
    make_parts();
    for (std::size_t k = 0; k + 1 < lanes_.size(); ++k) write(lanes_[k], lanes_[k + 1], part(k));
    add_parts();
  }

  /// Where one kernel can write the sum of all lanes(), instead of each(); empty where it cannot.
  const Gradients::Destination& whole() const { return to_; }
  /// Where each lane begins, and the end; empty: there are none.
  std::span<const std::int64_t> lanes() const { return lanes_; }

 private:
  void take_lanes(Gradients& g, int i, const Lanes& lanes);
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

/// How many rows x has: its first dimension. A scalar is one row.
inline std::int64_t rows_in(const Tensor& x) { return x.rank() > 0 ? x.size(0) : 1; }

/// Rows [begin, end) of a value, not recorded.
inline Tensor rows_of(const Tensor& x, std::int64_t begin, std::int64_t end) {
  return x.rank() > 0 ? x.detach().slice(begin, end) : x.detach();
}

/// A value that belongs to lanes was made of samples, `rows` of them: f(begin, end, gradient) for
/// the rows of each lane, with the gradient of its number. Without lanes: once, for all rows.
template <class F>
void for_each_lane(const Gradients& g, std::int64_t rows, const F& f) {
  if (!g.per_lane()) return f(std::int64_t{0}, rows, g.output().detach());
  const std::vector<std::int64_t> offsets = g.lanes()->offsets(rows);
  for (std::int64_t k = 0; k < g.output().numel(); ++k) {
    const auto at = static_cast<std::size_t>(k);
    if (offsets[at] < offsets[at + 1])
      f(offsets[at], offsets[at + 1], g.output().slice(k, k + 1).view({}));
  }
}

/// Products whose rows must not depend on the rows beside them: f(begin, end) for each lane's rows.
/// Where nothing asks for that, once for all rows.
template <class F>
void for_each_block(const Lanes* lanes, std::int64_t rows, const F& f) {
  if (!lanes) return f(std::int64_t{0}, rows);
  const std::vector<std::int64_t> offsets = lanes->offsets(rows);
  for (std::size_t k = 0; k + 1 < offsets.size(); ++k)
    if (offsets[k] < offsets[k + 1]) f(offsets[k], offsets[k + 1]);
}

/// The lanes of this thread's tape, or if there is none of its batch, if x belongs to samples; else
/// null. What is not recorded does if its first dimension is this rank's number of samples, or if
/// it was made of such by an operation and has some equal parts of each.
const Lanes* lanes_of_rows(const Tensor& x);

/// What an operation makes of samples belongs to samples, if it is not recorded, too: -> output.
Tensor keep_samples(Tensor output, std::span<const Tensor* const> inputs);

/// Throws StateError if x is recorded and belongs to samples: the operation would mix the rows of
/// several lanes.
void keep_lanes_apart(const char* operation, const Tensor& x);

/// Adds a parameter's lanes, which wait for their last contribution.
void add_waiting_lanes(detail::ParameterState& parameter);

}  // namespace lockstep
