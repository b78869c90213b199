#pragma once
/// --precision: what the factors of matrix products are rounded to.

#include <fmt/format.h>

#include <string>

#include "lockstep/autograd/autocast.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep::cli {

struct Precision {
  std::string name = "f32";  ///< f32, tf32, bf16 or f16

  /// For Autocast.
  DType factors() const {
    return name == "bf16" ? DType::bf16 : name == "f16" ? DType::f16 : DType::f32;
  }

  /// Allows or forbids tf32 for this process. To be called before the first product.
  void apply() const { kernels::allow_tf32(name == "tf32"); }

  /// What multiplies on this device: "products of bf16 (AVX512-BF16)". Empty for f32.
  std::string describe(Device device) const {
    if (name == "f32") return "";
    if (device.kind != Device::Kind::cpu) return fmt::format("products of {} (tensor cores)", name);
    if (name == "tf32") return "products of f32 (the cpu has no tf32)";
    if (name == "bf16" && !kernels::bf16_unit().empty())
      return fmt::format("products of bf16 ({})", kernels::bf16_unit());
    return fmt::format("products of {} (rounded, then multiplied as f32: no gain on this cpu)",
                       name);
  }
};

}  // namespace lockstep::cli
