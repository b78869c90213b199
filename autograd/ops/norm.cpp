#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/ops/in_f32.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/autograd/saved_tensor.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/reduce.h"
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
  of_all_rows({sums}, nullptr, [&] {
    if (!statistics.peers) return;
    if (zero_weight) sums.fill_zero();  // whatever they were: NaN, perhaps
    statistics.peers->add(sums);
  });
  if (statistics.count > 0) kernels::scale(1 / statistics.count, sums, sums, false);
}

// batch_statistics of each part of x's rows, merged.
void merged_statistics(const Tensor& x, const RowParts& rows, const BatchStatistics& result) {
  const std::int64_t count = rows.count(), c = x.size(1);
  const Tensor all = Tensor::empty({count, 2 * c}, DType::f64, x.device());
  std::vector<kernels::RowStatistics> parts;
  for (std::int64_t k = 0; k < count; ++k) {
    const RowRange part = rows[k];
    const Tensor row = all.slice(k, k + 1).view({2 * c});
    const Tensor mean = row.slice(0, c), m2 = row.slice(c, 2 * c);
    kernels::batch_statistics(part.of(x), mean, m2);
    parts.push_back({static_cast<double>(part.end - part.begin), mean, m2});
  }
  note_parts("batch_norm", all);
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
  check_defined("batch_norm", {{"x", x}});
  check<ShapeError>(x.rank() == 2, "[batch_norm] x: expected 2 dimensions, got shape {}",
                    x.shape());
  if (is_16_bit(x.dtype())) return batch_statistics(cast(x.detach(), DType::f32), std::move(peers));
  if (of_no_samples(x)) peers = nullptr;  // they would add the same rows
  BatchStatistics result{.mean = Tensor::empty({x.size(1)}, DType::f64, x.device()),
                         .m2 = Tensor::empty({x.size(1)}, DType::f64, x.device()),
                         .count = static_cast<double>(x.size(0)),
                         .constant = false,
                         .peers = std::move(peers)};
  need_all_rows("batch_norm", x, result.peers != nullptr);
  if (const RowParts rows(x); rows.cut())
    merged_statistics(x, rows, result);
  else
    kernels::batch_statistics(x, keep_rows("batch_norm", result.mean, {shared(x)}),
                              keep_rows("batch_norm", result.m2, {shared(x)}));
  of_all_rows({result.mean, result.m2}, &result.count, [&] {
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
  check_defined("batch_norm", {{"mean", statistics.mean}, {"m2", statistics.m2}});
  if (all_16_bit("batch_norm", {{"x", x}, {"weight", weight, true}, {"bias", bias, true}}))
    return in_f32([&](const Tensor& wide, const Tensor& w,
                      const Tensor& b) { return batch_norm(wide, w, b, statistics, eps); },
                  x, weight, bias);
  for (const Tensor& of : {statistics.mean, statistics.m2})
    check<StateError>(of.gradient_ref().tape == GradientRef::nothing || !Tape::current(),
                      "[batch_norm] no gradient flows into given statistics: detach() them");
  const Tensor inverse_std = Tensor::empty(statistics.m2.shape(), DType::f64, x.device());
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  kernels::batch_inverse_std(statistics.m2, statistics.count, eps, inverse_std);
  kernels::batch_normalize(x, statistics.mean, inverse_std, weight, bias, y);
  return record(
      "batch_norm", y,
      {apart(x), shared(weight), shared(bias), shared(statistics.mean), shared(statistics.m2)},
      [x = SavedTensor(x), weight = SavedTensor(weight), mean = SavedTensor(statistics.mean),
       statistics, inverse_std](Gradients& g) {
        const Tensor& dy = g.output();
        const std::int64_t c = x->size(1);
        check<StateError>(!g.zero_weight() || !statistics.peers || x->size(0) == 0,
                          "[batch_norm] {} rows went into the statistics of all ranks, but "
                          "the loss has weight 0: leave them out of the batch",
                          x->size(0));
        // (2 * parts, c): of each part of the rows the sums of dy and of dy * xhat.
        const RowParts rows(g, x->size(0));
        const std::int64_t parts = rows.count();
        const Tensor sums = Tensor::empty({2 * parts, c}, DType::f64, x->device());
        const auto sum = [&](std::int64_t i) { return sums.slice(i, i + 1).view({c}); };
        for (std::int64_t k = 0; k < parts; ++k) {
          const RowRange part = rows[k];
          kernels::batch_norm_sums(part.of(dy), part.of(*x), *mean, inverse_std, sum(2 * k),
                                   sum(2 * k + 1));
        }
        if (rows.cut()) note_parts("batch_norm's gradient", sums.view({parts, 2 * c}));
        const auto add = [&](int operand, std::int64_t at) {
          sum_rows(g, operand, x->size(0), [&](const RowRange&, const auto& to) {
            contribute(to, sum(std::exchange(at, at + 2)));
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

// y = xhat * weight + bias by rows of the last dimension: dbias = the sum of dy over all others,
// dweight = that of dy * xhat; dx: kernels/batch_norm.h.
Tensor row_norm(const char* name, const Tensor& x, const Tensor& weight, const Tensor& bias,
                const kernels::RowNormConfig& config) {
  check_features(name, x, {weight, bias});
  const std::int64_t c = x.size(-1), samples = x.rank() > 1 ? x.size(0) : 1;
  const std::int64_t rows = c > 0 ? x.numel() / c : 0;
  const auto as_rows = [rows, c](const Tensor& of) { return of.detach().view({rows, c}); };
  const Tensor y = Tensor::empty(x.shape(), x.dtype(), x.device());
  const Tensor mean = Tensor::empty({rows}, DType::f64, x.device());
  const Tensor inverse_std = Tensor::empty({rows}, DType::f64, x.device());
  kernels::row_normalize(as_rows(x), weight, bias, config, as_rows(y), mean, inverse_std);
  return record(name, y, {x.rank() > 1 ? apart(x) : shared(x), shared(weight), shared(bias)},
                [=, x = SavedTensor(x), weight = SavedTensor(weight)](Gradients& g) {
                  const Tensor dy = as_rows(g.output()), from = as_rows(*x);
                  const std::int64_t each = rows / std::max<std::int64_t>(samples, 1);
                  const auto rows_of = [each](const RowRange& part, const Tensor& of) {
                    return of.slice(part.begin * each, part.end * each);
                  };
                  sum_rows(g, 1, samples, [&](const RowRange& part, const auto& dw) {
                    kernels::row_norm_dweight(rows_of(part, dy), rows_of(part, from),
                                              rows_of(part, mean), rows_of(part, inverse_std),
                                              dw.tensor, dw.accumulate);
                  });
                  sum_rows(g, 2, samples, [&](const RowRange& part, const auto& db) {
                    kernels::sum_rows(rows_of(part, dy), db.tensor, db.accumulate);
                  });
                  if (const auto dx = g.into(0))
                    kernels::row_norm_dx(dy, from, mean, inverse_std, *weight, config,
                                         as_rows(dx.tensor), dx.accumulate);
                });
}

}  // namespace

Tensor layer_norm(const Tensor& x, const Tensor& weight, const Tensor& bias, double eps) {
  if (all_16_bit("layer_norm", {{"x", x}, {"weight", weight, true}, {"bias", bias, true}}))
    return in_f32(layer_norm, x, weight, bias, eps);
  return row_norm("layer_norm", x, weight, bias, {.eps = eps, .centered = true});
}

Tensor rms_norm(const Tensor& x, const Tensor& weight, double eps) {
  if (all_16_bit("rms_norm", {{"x", x}, {"weight", weight, true}}))
    return in_f32(rms_norm, x, weight, eps);
  return row_norm("rms_norm", x, weight, {}, {.eps = eps, .centered = false});
}

}  // namespace lockstep
