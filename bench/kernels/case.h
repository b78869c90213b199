#pragma once
/// The table that `bench kernels` goes through: one row per kernel, made in the files rows_*.cpp.
///
/// A row has sizes; at a size it prepares cases: a case is the kernel bound to a set of tensors of
/// its own. Cases of one size differ in their data alone; runs that take turns among enough of them
/// find nothing in the caches.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/bench/kernels/source.h"
#include "lockstep/core/tensor.h"

namespace bench {

using lockstep::Device;
using lockstep::DType;
using lockstep::Tensor;

/// One way to compute what the case computes, from its inputs into its outputs.
struct Contender {
  std::string name;
  std::function<void()> run;  ///< on a GPU: enqueues it on the current stream
};

/// The elements of a tensor as they are now, copied to the host and read in f64.
class Values {
 public:
  explicit Values(const Tensor& tensor);
  double operator[](std::int64_t i) const;
  std::int64_t size() const { return host_.numel(); }

 private:
  Tensor host_;
};

/// Element i of an output, computed as naively as it is defined, in f64.
using Expected = std::function<double(const std::vector<Values>& inputs, std::int64_t i)>;

struct Output {
  Tensor tensor;  ///< may also be an input: then the inputs are those from before the run
  Expected expected;
  std::int64_t cost;  ///< how many operations one call of `expected` takes
  double tolerance;   ///< see verify.h
};

struct Case {
  std::function<void()> run;
  std::vector<Tensor> inputs;
  std::vector<Output> outputs;
  std::vector<Contender> peers = {};  ///< besides those of peers.h
};

/// (rows, columns), or (m, n, k) of a product.
struct Size {
  std::vector<std::int64_t> dims;
  bool transpose_a = false, transpose_b = false;

  double numel() const;      ///< the product of dims
  std::string text() const;  ///< "128x512x784 NT"
};

struct Row {
  std::string name;
  std::vector<Size> sizes;
  /// The fewest bytes per element that the operation moves: every input read once, every output
  /// written once (what has one element per row or column is not counted). Of a product: 0.
  double bytes;
  /// Of a product: what is compared with the best library's product of this name.
  std::string precision;
  std::function<Case(const Size&, Source&)> prepare;
  /// Microseconds that are predicted for a GPU (tools/predict/); of nothing else.
  std::function<std::optional<double>(const Size&, const std::string& gpu)> predicted = {};
};

/// What the sizes are chosen for: a GPU, or one core; to be measured, or only to be tried out.
struct Scale {
  bool on_gpu = false;
  bool quick = false;
};

std::vector<Row> elementwise_rows(Scale scale);
std::vector<Row> reduce_rows(Scale scale);  ///< and softmax, and losses
std::vector<Row> batch_norm_rows(Scale scale);
std::vector<Row> update_rows(Scale scale);  ///< random numbers, optimizers, folds
std::vector<Row> product_rows(Scale scale);
/// The rungs of kernels/cuda/gemm/; none in builds without them.
std::vector<Row> ladder_rows(Scale scale);

/// All of the above.
std::vector<Row> all_rows(Scale scale);

}  // namespace bench
