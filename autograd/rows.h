#pragma once
/// What operations say, and ask, about rows. The rows of a batch may be cut into parts (lanes,
/// core/lanes.h): then a sum over samples is made part by part, and a row must have the same bits
/// beside any other rows. An operation does not know whether rows are cut. It says what it does
/// with the rows of its operands, where it records:
///
///   record("linear", y, {apart(x), shared(w), shared(b)}, backward)
///
/// In backward, an operand that rows share gets its gradient through sum_rows() or add_product().
/// An operation that mixes rows that are to be kept apart is refused. Where nothing is recorded,
/// its result is marked instead, and refused as soon as a recorded operation uses it. An operation
/// that says nothing is refused beside samples.
///
/// A loss is a sum over all rows: record_loss(). Losses are added, subtracted and scaled:
/// record_linear().

#include <functional>
#include <initializer_list>
#include <span>
#include <utility>
#include <vector>

#include "lockstep/autograd/lanes/lane_record.h"
#include "lockstep/autograd/lanes/row_sum.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/core/philox.h"

namespace lockstep {

/// Row i of the output is made of row i of x, or of an equal part of it, and of no other one.
inline Operand apart(const Tensor& x) { return {&x, Operand::Rows::apart}; }
/// Every row of the output may be made of all of x.
inline Operand shared(const Tensor& x) { return {&x, Operand::Rows::shared}; }
/// x is broadcast to `shape` (NumPy's rule): apart if its first dimension is that of `shape`.
Operand aligned(const Tensor& x, const Shape& shape);

/// Does what record() does, except that it records nothing: for results without a gradient. `y` may
/// be undefined. -> y
Tensor keep_rows(std::string_view operation, Tensor y, std::initializer_list<Operand> operands);

/// Throws StateError if a recorded operand's rows would be mixed, in the name of an operation that
/// is made of others.
void refuse_mixing(std::string_view operation, std::initializer_list<Operand> operands);
/// Marks a, which `operation` has changed in place with b, broadcast to it.
void change_rows(std::string_view operation, const Tensor& a, const Tensor& b);

/// Records y = make(of), which is linear; `of(x)` is the value of operand x. If the operands are
/// losses, it is made once more, of the losses of their parts.
template <class Make, class F>
Tensor record_linear(const char* operation, std::initializer_list<Operand> operands,
                     const Make& make, F backward);

enum class LossKind : std::uint8_t { sum, mean };

/// Records the loss of the rows of the first operand: `of(rows, to)` writes that of some of them
/// into `to`, a tensor of one element. A loss is their sum, or their mean, weighted by rows. Its
/// backward goes through each_loss().
template <class Of, class F>
Tensor record_loss(const char* operation, LossKind kind, std::initializer_list<Operand> operands,
                   const Of& of, F backward);

/// A loss is a mean that is divided by `counted`, and not by its rows: backward() refuses to take
/// it for a mean over a batch's samples. NaN: not known. -> loss
Tensor counting(const Tensor& loss, double counted);

/// The parts of some rows, in their order; one part, unless they are cut.
class RowParts {
 public:
  explicit RowParts(const Tensor& x);                ///< of x's rows
  RowParts(const Gradients& g, std::int64_t count);  ///< of the output's, `count` in all
  bool cut() const { return !cuts_.empty(); }
  std::int64_t count() const { return cut() ? std::ssize(cuts_) - 1 : 1; }
  /// For products (kernels/matmul.h): empty, unless they are cut. Lives as long as this.
  std::span<const std::int64_t> blocks() const { return cuts_; }
  RowRange operator[](std::int64_t k) const {
    const auto at = static_cast<std::size_t>(k);
    return cut() ? RowRange{cuts_[at], cuts_[at + 1]} : RowRange{0, rows_};
  }

 private:
  std::int64_t rows_;
  std::vector<std::int64_t> cuts_;  // where parts begin, and the end
};

/// A loss was made of `count` rows: f(rows, the gradient of their loss), for each part with rows.
template <class F>
void each_loss(const Gradients& g, std::int64_t count, const F& f);

/// Operand i's gradient is a sum over `count` rows: write(rows, destination) for each part.
template <class F>
void sum_rows(Gradients& g, int i, std::int64_t count, const F& write) {
  if (RowSum sum(g, i, count); sum) sum.each(write);
}
/// Operand i's gradient is a^T b, the sum over their rows.
void add_product(Gradients& g, int i, const Tensor& a, const Tensor& b);

/// Both: operand i's gradient is a^T b, and operand j's the sum of a's rows. `round_to`: what both
/// do with factors of f32, as kernels::linear_gradients.
void add_product_and_rows(Gradients& g, int i, int j, const Tensor& a, const Tensor& b,
                          DType round_to);

/// Operand i's gradient (c,) is the sum of the rows of `rows` (n, c).
void add_rows(Gradients& g, int i, const Tensor& rows);

/// use(rows, numbers): where to draw from default_philox() for each part of x's rows. A row has the
/// same numbers on any rank.
void draw_for(const Tensor& x, const std::function<void(RowRange, PhiloxState)>& use);

/// Whether x is made of no samples where these are cut: then all ranks have the same rows.
bool of_no_samples(const Tensor& x);
/// Throws StateError unless this rank has all rows of x's batch, or `others_join` with theirs.
void need_all_rows(std::string_view operation, const Tensor& x, bool others_join);
/// (parts, ...): what the parts of rows give to a sum over all of them. An audit compares it.
void note_parts(const char* operation, const Tensor& parts);
/// make() overwrites results (and number, unless it is null) by what all ranks' rows come to.
template <class F>
void of_all_rows(std::initializer_list<Tensor> results, double* number, const F& make) {
  LaneRecord::of_all_lanes(results, number, make);
}

/// The losses (lanes of this rank,) that a loss on this thread's tape knows; undefined: none.
Tensor lane_losses(const Tensor& recorded);

// ---- implementation ----

namespace detail {
bool is_cut_loss(const Tensor& recorded);
Tensor with_losses(const Tensor& recorded, const Tensor& losses);
Tensor all_losses(const Tensor& losses, LossKind kind);
}  // namespace detail

template <class Make, class F>
Tensor record_linear(const char* operation, std::initializer_list<Operand> operands,
                     const Make& make, F backward) {
  const auto itself = [](const Tensor& x) { return x; };
  const Tensor y = record(operation, make(itself), operands, std::move(backward), Makes::linear);
  return detail::is_cut_loss(y) ? detail::with_losses(y, make(lane_losses)) : y;
}

template <class Of, class F>
Tensor record_loss(const char* operation, LossKind kind, std::initializer_list<Operand> operands,
                   const Of& of, F backward) {
  const Tensor& x = *operands.begin()->tensor;
  const RowParts rows(x);
  Tensor value, losses;
  if (rows.cut()) {
    losses = Tensor::zeros({rows.count()}, x.dtype(), x.device());
    for (std::int64_t k = 0; k < rows.count(); ++k)
      if (rows[k].begin < rows[k].end) of(rows[k], losses.slice(k, k + 1).view({}));
    value = detail::all_losses(losses, kind);
  } else {
    value = Tensor::empty({}, x.dtype(), x.device());
    of(rows[0], value);
  }
  return detail::with_losses(record(operation, value, operands, std::move(backward), Makes::loss),
                             losses);
}

template <class F>
void each_loss(const Gradients& g, std::int64_t count, const F& f) {
  const RowParts rows(g, count);
  if (!rows.cut()) return f(rows[0], g.output().detach());
  for (std::int64_t k = 0; k < rows.count(); ++k)
    if (rows[k].begin < rows[k].end) f(rows[k], g.output().slice(k, k + 1).view({}));
}

}  // namespace lockstep
