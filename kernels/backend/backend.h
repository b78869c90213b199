#pragma once
/// What a kind of device has to be able to do. The functions of elementwise.h, reduce.h, ... check
/// their arguments, then call the backend of the device on which the tensors lie: one switch, in
/// `backend_of`. What the functions compute is documented in their headers; here they may rely on
/// checked arguments: everything defined, on this device, of dtypes and shapes that fit.
///
/// GPU work is only enqueued, on the device's current stream (core/gpu/stream.h).

#include <span>

#include "lockstep/core/tensor.h"
#include "lockstep/kernels/batch_norm.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/indexed.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/optimizer.h"
#include "lockstep/kernels/random.h"

namespace lockstep::kernels {

/// indexed.h; indexed_over.h defines them over the loop of a kind of device.
class IndexedFunctions {
 public:
  virtual ~IndexedFunctions() = default;
  virtual void compare(Compare op, const Tensor& a, const Tensor& b, const Tensor& out) = 0;
  /// binary() of integers.
  virtual void combine_integers(Binary op, const Tensor& a, const Tensor& b, const Tensor& out) = 0;
  /// cast() where x or `out` are integers.
  virtual void convert(const Tensor& x, const Tensor& out) = 0;
  virtual void masked_copy(const Tensor& mask, const Tensor& x, const Tensor& out) = 0;
  virtual void copy_window(const Shape& shape, const Tensor& x, const Window& from,
                           const Tensor& out, const Window& to, bool accumulate) = 0;
  virtual void take(const Taken& what, const Tensor& x, const Tensor& index, const Tensor& out) = 0;
  virtual void add_taken(const Taken& what, const Tensor& dy, const Tensor& index, const Tensor& dx,
                         bool accumulate) = 0;
  virtual void cumulative_sum(std::int64_t outer, std::int64_t n, std::int64_t inner, bool reverse,
                              const Tensor& x, const Tensor& out) = 0;
};

class Backend {
 public:
  virtual ~Backend() = default;

#define LOCKSTEP_BACKEND = 0
#include "lockstep/kernels/backend/functions.h"
#undef LOCKSTEP_BACKEND
};

/// The one place that chooses. Throws DeviceError for a device that this build does not drive.
Backend& backend_of(Device device);

Backend& cpu_backend();
/// Defined in cuda/ in builds with a GPU or the simulator, else in absent.cpp, where it throws.
Backend& gpu_backend();

}  // namespace lockstep::kernels
