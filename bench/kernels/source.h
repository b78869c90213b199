#pragma once
/// Where the tensors of a case come from: random data on a device, every tensor its own.

#include <cstdint>

#include "lockstep/core/generator.h"
#include "lockstep/core/tensor.h"

namespace bench {

class Source {
 public:
  explicit Source(lockstep::Device device) : device_(device) {}

  lockstep::Device device() const { return device_; }

  /// Mean 0 and variance 1, in any floating dtype.
  lockstep::Tensor normal(const lockstep::Shape& shape,
                          lockstep::DType dtype = lockstep::DType::f32);
  /// f32 in [low, high).
  lockstep::Tensor uniform(const lockstep::Shape& shape, double low, double high);
  /// i64 (n,) in [0, classes).
  lockstep::Tensor labels(std::int64_t n, std::int64_t classes);
  /// For outputs: whatever was there.
  lockstep::Tensor empty(const lockstep::Shape& shape,
                         lockstep::DType dtype = lockstep::DType::f32) const;

 private:
  /// What draw(generator, tensor of the host) writes.
  template <class Draw>
  lockstep::Tensor drawn(const lockstep::Shape& shape, lockstep::DType dtype, const Draw& draw);

  lockstep::Device device_;
  std::uint64_t seed_ = 0;
};

}  // namespace bench
