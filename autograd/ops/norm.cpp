#include "lockstep/autograd/lanes/lane_record.h"
#include "lockstep/autograd/lanes/row_sum.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep {
namespace {

/// The gradient of a per-channel parameter, of its dtype, from its f64 sum.
void contribute(const Gradients::Destination& to, const Tensor& sum) {
  if (!to.accumulate) return kernels::cast(sum, to.tensor);
  const Tensor rounded = Tensor::empty(sum.shape(), to.tensor.dtype(), sum.device());
  kernels::cast(sum, rounded);
  kernels::scale(1, rounded, to.tensor, true);
}

/// The sums over this rank's rows become the means over all rows, as batch_norm_dx takes them.
void means_of(const Tensor& sums, const BatchStatistics& statistics, bool zero_weight) {
  if (statistics.constant) return sums.fill_zero();
  LaneRecord::of_all_lanes({sums}, nullptr, [&] {
    if (!statistics.peers) return;
    if (zero_weight) sums.fill_zero();  // whatever they were: NaN, perhaps
    statistics.peers->add(sums);
  });
  if (statistics.count > 0) kernels::scale(1 / statistics.count, sums, sums, false);
}

// Where the lanes of `rows` rows begin, and the end; without lanes they are one part.
std::vector<std::int64_t> parts_of(const Lanes* lanes, std::int64_t rows) {
  return lanes ? lanes->offsets(rows) : std::vector<std::int64_t>{0, rows};
}

// batch_statistics of each lane's rows, merged.
void statistics_of_lanes(const Lanes& lanes, const Tensor& x, const BatchStatistics& result) {
  LaneRecord* const record = LaneRecord::current();
  check<StateError>(
      result.peers || lanes.count() == lanes.total() || (record && record->is_again()),
      "[batch_norm] with lanes the statistics are those of all samples, and this "
      "rank has {} of {}: nn::convert_sync_batchnorm(model, world)",
      lanes.rows(), lanes.all_rows());
  const std::vector<std::int64_t> offsets = lanes.offsets(x.size(0));
  const std::int64_t c = x.size(1);
  const Tensor all = Tensor::empty({lanes.count(), 2 * c}, DType::f64, x.device());
  std::vector<kernels::RowStatistics> parts;
  for (std::size_t k = 0; k + 1 < offsets.size(); ++k) {
    const auto at = static_cast<std::int64_t>(k);
    const Tensor row = all.slice(at, at + 1).view({2 * c});
    const Tensor mean = row.slice(0, c), m2 = row.slice(c, 2 * c);
    kernels::batch_statistics(rows_of(x, offsets[k], offsets[k + 1]), mean, m2);
    parts.push_back({static_cast<double>(offsets[k + 1] - offsets[k]), mean, m2});
  }
  if (record) record->note("batch_norm", all);
  for (kernels::RowStatistics& part : parts) {  // on a GPU: when all is under way
    part.mean = part.mean.to(Device{});
    part.m2 = part.m2.to(Device{});
  }
  kernels::merge_statistics(parts);
  result.mean.copy_from(parts[0].mean);
  result.m2.copy_from(parts[0].m2);
}

}  // namespace

BatchStatistics batch_statistics(const Tensor& x, std::shared_ptr<BatchReducer> peers) {
  check<ShapeError>(x.rank() == 2, "[batch_norm] x: expected 2 dimensions, got shape {}",
                    x.shape());
  if (is_16_bit(x.dtype())) return batch_statistics(cast(x.detach(), DType::f32), std::move(peers));
  BatchStatistics result{.mean = Tensor::empty({x.size(1)}, DType::f64, x.device()),
                         .m2 = Tensor::empty({x.size(1)}, DType::f64, x.device()),
                         .count = static_cast<double>(x.size(0)),
                         .constant = false,
                         .peers = std::move(peers)};
  if (const Lanes* const lanes = lanes_of_rows(x))
    statistics_of_lanes(*lanes, x, result);
  else
    kernels::batch_statistics(x, result.mean, result.m2);
  LaneRecord::of_all_lanes({result.mean, result.m2}, &result.count, [&] {
    if (result.peers) result.count = result.peers->merge(result.count, result.mean, result.m2);
  });
  return result;
}

Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  return batch_norm(x, weight, bias, batch_statistics(x), eps);
}

// y = xhat * weight + bias, xhat = (x - mean) / sqrt(variance + eps), over the rows of x (N, C):
// dbias = the sum of dy's rows, dweight = that of dy * xhat, and, since mean and variance depend on
// x, dx = weight / sqrt(variance + eps) * (dy - mean of dy - xhat * mean of dy * xhat). The means
// are over all rows that share the statistics; where those are constants, they are 0.
Tensor batch_norm(const Tensor& x, const Tensor& weight, const Tensor& bias,
                  const BatchStatistics& statistics, double eps) {
  if (all_16_bit("batch_norm", {{"x", x}, {"weight", weight}, {"bias", bias}}))
    return in_f32([&](const Tensor& wide, const Tensor& w,
                      const Tensor& b) { return batch_norm(wide, w, b, statistics, eps); },
                  x, weight, bias);
  const Tensor inverse_std = Tensor::empty(statistics.m2.shape(), DType::f64, x.device());
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::batch_inverse_std(statistics.m2, statistics.count, eps, inverse_std);
  kernels::batch_normalize(x, statistics.mean, inverse_std, weight, bias, y);
  return record(
      "batch_norm", y, {&x, &weight, &bias},
      [x = SavedTensor(x), weight = SavedTensor(weight), statistics, inverse_std](Gradients& g) {
        const Tensor& dy = g.output();
        const std::int64_t c = x->size(1);
        check<StateError>(!g.zero_weight() || !statistics.peers || x->size(0) == 0,
                          "[batch_norm] {} rows went into the statistics of all ranks, but "
                          "the loss has weight 0: leave them out of the batch",
                          x->size(0));
        // (parts, 2, c): of each lane the sums of dy and of dy * xhat.
        const std::vector<std::int64_t> offsets = parts_of(g.lanes_of_rows(), x->size(0));
        const std::int64_t parts = std::ssize(offsets) - 1;
        const Tensor sums = Tensor::empty({2 * parts, c}, DType::f64, x->device());
        const auto sum = [&](std::int64_t i) { return sums.slice(i, i + 1).view({c}); };
        for (std::int64_t k = 0; k < parts; ++k) {
          const auto at = static_cast<std::size_t>(k);
          const auto rows = [&](const Tensor& of) {
            return rows_of(of, offsets[at], offsets[at + 1]);
          };
          kernels::batch_norm_sums(rows(dy), rows(*x), statistics.mean, inverse_std, sum(2 * k),
                                   sum(2 * k + 1));
        }
        if (LaneRecord* const record = LaneRecord::current(); record && g.lanes_of_rows())
          record->note("batch_norm's gradient", sums.view({parts, 2 * c}));
        const auto add = [&](int operand, std::int64_t first) {
          RowSum total(g, operand, x->size(0));
          if (!total) return;
          total.each([&](std::int64_t, std::int64_t, const Gradients::Destination& to) {
            contribute(to, sum(std::exchange(first, first + 2)));
          });
        };
        add(1, 1);
        add(2, 0);
        if (const auto dx = g.into(0)) {
          const Tensor all = kernels::tree_sum(sums.view({parts, 2 * c})).view({2 * c});
          means_of(all, statistics, g.zero_weight());
          kernels::batch_norm_dx(dy, *x, statistics.mean, inverse_std, *weight, all.slice(0, c),
                                 all.slice(c, 2 * c), dx.tensor, dx.accumulate);
        }
      });
}

namespace {

void check_features(const char* name, const Tensor& x, std::initializer_list<Tensor> factors) {
  for (const Tensor& factor : factors)
    if (factor.defined() && factor.shape() != Shape{x.size(-1)})
      fail<ShapeError>("[{}] a weight or bias of shape {} for x of shape {}", name, factor.shape(),
                       x.shape());
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  if (all_16_bit("layer_norm", {{"x", x}, {"weight", weight}, {"bias", bias}}))
    return in_f32(layer_norm, x, weight, bias, eps);
  check_features("layer_norm", x, {weight, bias});
  const Tensor centered = x - mean(x, -1, keepdim);
  Tensor y = centered * rsqrt(mean(square(centered), -1, keepdim) + eps);
  if (weight.defined()) y = y * weight;
  return bias.defined() ? y + bias : y;
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  if (all_16_bit("rms_norm", {{"x", x}, {"weight", weight}}))
    return in_f32(rms_norm, x, weight, eps);
  check_features("rms_norm", x, {weight});
  const Tensor y = x * rsqrt(mean(square(x), -1, keepdim) + eps);
  return weight.defined() ? y * weight : y;
}

}  // namespace lockstep
