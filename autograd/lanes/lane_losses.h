#pragma once
/// The losses of lanes (core/lanes.h): second reading. A loss is one number, the mean of a rank's
/// own samples, and how many these are depends on the ranks. So on a tape with lanes a loss also
/// knows that of each lane, from which dist::LossLog makes a mean with the same bits on any number
/// of ranks.

#include "lockstep/autograd/lanes/row_sum.h"
#include "lockstep/autograd/tape.h"

namespace lockstep {

/// A loss before it is recorded.
struct Loss {
  Tensor value;  // one number
  Tensor lanes;  // (lanes of this rank,); undefined: its samples have none
};

enum class LossKind : std::uint8_t { sum, mean };

/// The loss of x's rows: `write(begin, end, to)` writes that of some of them into `to`, a tensor of
/// one element. Where x belongs to samples with lanes, it is called for each lane (one without rows
/// has loss 0), and the value is their sum, or their mean, weighted by rows.
template <class F>
Loss loss_of(const Tensor& x, LossKind kind, const F& write);

/// `recorded` is a loss, and knows those of its lanes from now on, unless they are undefined.
Tensor with_lanes(const Tensor& recorded, const Tensor& losses);

/// Records a loss, which then knows those of its lanes.
template <class F>
Tensor record_loss(const char* operation, const Loss& loss,
                   std::initializer_list<const Tensor*> inputs, F backward) {
  return with_lanes(record(operation, loss.value, inputs, std::move(backward)), loss.lanes);
}

/// The losses (lanes of this rank,) that a recorded loss knows; undefined: none.
Tensor lane_losses(const Tensor& recorded);

/// If `operand` is a loss with lanes, so is `y`, which was made of it: its lanes are make().
template <class F>
Tensor with_lanes_of(const Tensor& y, const Tensor& operand, const F& make) {
  return lane_losses(operand).defined() ? with_lanes(y, make()) : y;
}

/// The sum of the lanes' losses, or their mean, weighted by rows: -> one element.
Tensor all_lanes(const Tensor& losses, const Lanes& lanes, LossKind kind);

template <class F>
Loss loss_of(const Tensor& x, LossKind kind, const F& write) {
  const Lanes* const lanes = lanes_of_rows(x);
  if (!lanes) {
    const Tensor value = Tensor::empty({}, x.dtype(), x.device());
    write(std::int64_t{0}, rows_in(x), value);
    return {value, {}};
  }
  const Tensor losses = Tensor::zeros({lanes->count()}, x.dtype(), x.device());
  const std::vector<std::int64_t> offsets = lanes->offsets(rows_in(x));
  for (std::int64_t k = 0; k < losses.numel(); ++k) {
    const auto at = static_cast<std::size_t>(k);
    if (offsets[at] < offsets[at + 1])
      write(offsets[at], offsets[at + 1], losses.slice(k, k + 1).view({}));
  }
  return {all_lanes(losses, *lanes, kind), losses};
}

}  // namespace lockstep
