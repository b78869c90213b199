// Matrix products: what kernels/matmul.h offers, and what is the same for the rungs of the ladder.
#include "case.h"
#include "lockstep/kernels/matmul.h"
#include "peers.h"
#include "products.h"
#include "sizes.h"

namespace bench {

using namespace lockstep;

Product product_of(const Size& size, Source& source, DType dtype, bool tf32) {
  const std::int64_t m = size.dims[0], n = size.dims[1], k = size.dims[2];
  return {.a = source.normal(size.transpose_a ? Shape{k, m} : Shape{m, k}, dtype),
          .b = source.normal(size.transpose_b ? Shape{n, k} : Shape{k, n}, dtype),
          .out = source.empty({m, n}, dtype),
          .flags = {.transpose_a = size.transpose_a, .transpose_b = size.transpose_b},
          .tf32 = tf32};
}

Case product_case(const Product& product, Run run) {
  const std::int64_t m = product.out.size(0), n = product.out.size(1);
  const bool ta = product.flags.transpose_a, tb = product.flags.transpose_b;
  const std::int64_t k = product.a.size(ta ? 0 : 1);
  const auto expected = [=](const std::vector<Values>& in, std::int64_t i) {
    const std::int64_t row = i / n, column = i % n;
    double total = 0;
    for (std::int64_t j = 0; j < k; ++j)
      total += in[0][ta ? j * m + row : row * k + j] * in[1][tb ? column * k + j : j * n + column];
    return total + (in.size() > 2 ? in[2][column] : 0);
  };
  // Rounding of the inputs (tf32) or of the result (16 bits), or that of long sums (f32).
  const DType dtype = product.out.dtype();
  const double tolerance = product.tf32          ? 5e-3
                           : dtype == DType::f32 ? 2e-4
                           : dtype == DType::f64 ? 1e-10
                                                 : 1e-2;
  return {.run = std::move(run),
          .inputs = {product.a, product.b},
          .outputs = {{product.out, expected, k, tolerance}},
          .peers = product_peers(product)};
}

namespace {

Row matmul(DType dtype, bool tf32, std::vector<Size> sizes) {
  const std::string precision(tf32 ? "tf32" : name_of(dtype));
  const auto prepare = [=](const Size& size, Source& source) {
    const Product product = product_of(size, source, dtype, tf32);
    return product_case(product, [=] {
      kernels::allow_tf32(tf32);
      kernels::matmul(product.a, product.b, product.out, product.flags);
      kernels::allow_tf32(false);
    });
  };
  return {"matmul_" + precision, std::move(sizes), 0, precision, prepare};
}

Row chain(Scale scale) {
  const auto prepare = [](const Size& size, Source& source) {
    const Product product = product_of(size, source, DType::f32, false);
    return product_case(product, [=] {
      const kernels::ChainProducts chains;
      kernels::matmul(product.a, product.b, product.out, product.flags);
    });
  };
  return {"matmul_chain", networks(scale), 0, "f32", prepare};
}

/// Gradients of weights in 8 lanes, for a batch of 256 samples.
Row chain_lanes(Scale scale) {
  std::vector<Size> sizes;
  for (Size size : networks(scale)) {
    if (!size.transpose_a) continue;
    if (!scale.quick) size.dims[2] = 256;
    sizes.push_back(size);
  }
  const auto prepare = [](const Size& size, Source& source) {
    const Product product = product_of(size, source, DType::f32, false);
    std::vector<std::int64_t> lanes;
    for (std::int64_t i = 0; i <= 8; ++i) lanes.push_back(size.dims[2] * i / 8);
    Case result = product_case(product, [=] {
      const kernels::ChainProducts chains;
      kernels::matmul_blocks(product.a, product.b, product.out, lanes);
    });
    const auto one_lane = [=] {
      const kernels::ChainProducts chains;
      kernels::matmul(product.a, product.b, product.out, product.flags);
    };
    result.peers.push_back({"one-lane", one_lane});
    return result;
  };
  return {"matmul_chain_8_lanes", std::move(sizes), 0, "f32", prepare};
}

Row linear(const Scale scale) {
  const auto prepare = [](const Size& size, Source& source) {
    const Product product = product_of(size, source, DType::f32, false);
    const Tensor bias = source.normal({size.dims[1]});
    Case result =
        product_case(product, [=] { kernels::linear(product.a, product.b, {bias}, product.out); });
    result.inputs.push_back(bias);
    result.peers.clear();  // they add no bias
    return result;
  };
  return {"linear", {layers(scale)[0]}, 0, "f32", prepare};
}

}  // namespace

std::vector<Row> product_rows(Scale scale) {
  const std::vector<Size> square = squares(scale), of_layers = layers(scale);
  std::vector<Size> all = square;
  all.insert(all.end(), of_layers.begin(), of_layers.end());
  if (!scale.on_gpu)
    return {matmul(DType::f32, false, all), matmul(DType::f64, false, square), linear(scale),
            chain(scale), chain_lanes(scale)};
  // The large squares are the ladder's.
  const std::vector<Size> one = {square[square.size() / 2]};
  std::vector<Row> rows = {matmul(DType::f32, false, of_layers), matmul(DType::f32, true, one)};
  for (const DType dtype : {DType::f64, DType::bf16, DType::f16})
    rows.push_back(matmul(dtype, false, one));
  rows.push_back(linear(scale));
  return rows;
}

}  // namespace bench
