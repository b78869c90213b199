#pragma once
/// What is counted: every kernel of the library at fixed sizes. The names are those of
/// `./lockstep bench kernels` where it has the operation too.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::counts {

/// An operation with its tensors, on a device.
struct Work {
  std::function<void()> run;  ///< only enqueues
  /// The fewest bytes of DRAM that it needs: every input read once, every output written once.
  std::uint64_t fewest_read = 0, fewest_written = 0;
};

struct Problem {
  std::string name;                     ///< "softmax"
  std::string size;                     ///< "64x1024", "256x256x64 NT"
  std::string source;                   ///< the file of its kernels, from the root of the sources
  std::function<Work(Device)> prepare;  ///< launches no kernel
};

/// Makes the tensors of one Work. Nothing is launched for it: they are copied from the host.
class Tensors {
 public:
  explicit Tensors(Device device) : device_(device) {}

  /// Zeros, which the operation reads; writes; reads and writes.
  Tensor read(const Shape& shape, DType dtype = DType::f32);
  Tensor written(const Shape& shape, DType dtype = DType::f32);
  Tensor both(const Shape& shape, DType dtype = DType::f32);
  /// i64 (n,): indices i * 7 mod `end`, which are read.
  Tensor indices(std::int64_t n, std::int64_t end);

  Device device() const { return device_; }
  Work work(std::function<void()> run) const { return {std::move(run), read_, written_}; }

 private:
  Tensor zeros(const Shape& shape, DType dtype) const;

  Device device_;
  std::uint64_t read_ = 0, written_ = 0;
};

// The parts of all_problems().
std::vector<Problem> elementwise_problems();  ///< and casts, transposes, indices
std::vector<Problem> row_problems();          ///< reductions, softmax, losses, normalization
std::vector<Problem> update_problems();       ///< random numbers, optimizers, clipping, folds
std::vector<Problem> ladder_problems();       ///< the rungs of kernels/cuda/gemm/

/// All but the ladder's: these move memory, and compute little.
std::vector<Problem> memory_bound_problems();

std::vector<Problem> all_problems();

/// Every rung of f32, tf32 and bf16, in ascending order, for a product (m, k) x (k, n).
std::vector<Problem> rung_problems(std::int64_t m, std::int64_t n, std::int64_t k, bool transpose_a,
                                   bool transpose_b);

/// Of those that a GPU has counted, at the sizes that it had (test/reference/counters_h100.txt).
std::vector<Problem> measured_problems();

/// Those whose names match one of the patterns ('gemm*'; all if there are none), in the order of
/// the list. Throws UsageError for a pattern that matches nothing.
std::vector<Problem> chosen(const std::vector<std::string>& patterns);

}  // namespace lockstep::counts
