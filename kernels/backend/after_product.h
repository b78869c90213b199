#pragma once
/// What an epilogue does behind a product and its bias, for backends that do it in passes.

#include "lockstep/kernels/backend/in_f32.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep::kernels {

inline void after_product(const Epilogue& epilogue, const Tensor& out) {
  const auto relu = [](const Tensor& z, const Tensor& to) { unary(Unary::relu, z, to); };
  const auto masked = [](const Tensor& positive, const Tensor& to) {
    unary_backward(Unary::relu, to, positive, to, false);
  };
  const bool narrow = is_16_bit(out.dtype());
  if (epilogue.relu) narrow ? in_f32(out, out, false, relu) : relu(out, out);
  if (const Tensor& positive = epilogue.positive; positive.defined())
    narrow ? in_f32(positive, out, true, masked) : masked(positive, out);
}

}  // namespace lockstep::kernels
