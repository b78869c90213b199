// What of kernels that reduce, choose and move elements takes how many times as long as a copy.
#include "kernels/ratios.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/broadcast.h"
#include "lockstep/kernels/indexed.h"
#include "lockstep/kernels/loss.h"
#include "lockstep/kernels/reduce.h"

namespace reduction_ratios {

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

/// (256, 256): as many elements as stay in a core's cache.
struct Data {
  static constexpr std::int64_t n = 256;
  Tensor x = varied<float>({n, n}, 1), y = varied<float>({n, n}, 2), out = nan<float>({n, n});
  Tensor row = varied<float>({n}, 3), one = nan<float>({}), mask = Tensor::empty({n, n}, DType::u8);
  Tensor of_rows = nan<double>({n}), also = nan<double>({n}), at = Tensor::zeros({n}, DType::i64);
  Tensor index = Tensor::zeros({n, n}, DType::i64);
  Data() {
    compare(Compare::lt, x, y, mask);
    for (std::int64_t i = 0; i < n * n; ++i) index.data<std::int64_t>()[i] = i * 37 % n;
  }
};

std::vector<Timed> reductions(const Data& t) {
  const std::int64_t n = Data::n;
  const Taken each{.outer = n, .n = n, .count = n, .each = true};
  const Taken rows{.n = n, .inner = n, .count = n};
  const RowNormConfig config;
  return {
      {"sum", 8, [&] { sum(t.x, t.one); }},
      {"sum_rows", 8, [&] { sum_rows(t.x, t.row); }},
      {"sum_cols", 8, [&] { sum_cols(t.x, t.row); }},
      {"sum_to", 12,
       [&t] {
         sum_to(t.x.view({4, 64, 256}), t.row.slice(0, 64).view({64, 1}));
       }},
      {"norm", 8, [&] { norm(t.x, t.one); }},
      {"argmax", 16, [&] { argmax(t.x, t.at); }},
      {"argmin of columns", 12, [&] { argmin(t.x, t.at, 0); }},
      {"mse", 12, [&] { mse(t.x, t.y, t.one); }},
      {"mse_backward", 12, [&] { mse_backward(t.one, t.x, t.y, t.out, false); }},
      {"huber", 16, [&] { huber(t.x, t.y, 0.7, t.one); }},
      {"huber_backward", 18, [&] { huber_backward(t.one, t.x, t.y, 0.7, t.out, false); }},
      {"softmax", 50, [&] { softmax(t.x, t.out); }},
      {"log_softmax", 50, [&] { log_softmax(t.x, t.out); }},
      {"log_softmax_backward", 50, [&] { log_softmax_backward(t.x, t.y, t.out, false); }},
      {"logsumexp", 50, [&] { logsumexp(t.x, t.row); }},
      {"cross_entropy", 50, [&] { cross_entropy(t.x, t.at, t.one, t.out); }},
      {"row_normalize", 26,
       [&, config] { row_normalize(t.x, t.row, t.row, config, t.out, t.of_rows, t.also); }},
      {"row_norm_dweight", 16,
       [&] { row_norm_dweight(t.y, t.x, t.of_rows, t.also, t.row, false); }},
      {"row_norm_dx", 30,
       [&, config] { row_norm_dx(t.y, t.x, t.of_rows, t.also, t.row, config, t.out, false); }},
      {"batch_statistics", 16, [&] { batch_statistics(t.x, t.of_rows, t.also); }},
      {"batch_normalize", 12,
       [&] { batch_normalize(t.x, t.of_rows, t.also, t.row, t.row, t.out); }},
      {"compare", 8, [&] { compare(Compare::lt, t.x, t.y, t.mask); }},
      {"masked_copy", 12, [&] { masked_copy(t.mask, t.x, t.out); }},
      {"take of each", 30, [&, each] { take(each, t.x, t.index, t.out); }},
      {"take of rows", 8, [&, rows] { take(rows, t.x, t.at, t.out); }},
      {"cumulative_sum of rows", 30, [&, n] { cumulative_sum(n, n, 1, false, t.x, t.out); }},
      {"cumulative_sum of columns", 16, [&, n] { cumulative_sum(1, n, n, true, t.x, t.out); }},
      {"transpose", 30, [&] { transpose(t.x, t.out); }},
  };
}

}  // namespace reduction_ratios

TEST_CASE("ratios: no kernel that reduces or moves takes many times as long as a copy") {
  using namespace reduction_ratios;
  if (!worth_timing()) return;
  const Data t;
  check_ratios(t.x, t.out, reductions(t));
}
