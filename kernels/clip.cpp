#include "lockstep/kernels/clip.h"

#include "lockstep/kernels/backend/backend.h"
#include "lockstep/kernels/checks.h"

namespace lockstep::kernels {
namespace {

/// f32 or f64, on the device of `beside`.
void check_tensors(std::string_view operation, std::span<const Tensor> tensors,
                   const Tensor& beside) {
  for (const Tensor& tensor : tensors) {
    check_defined(operation, "tensor", tensor);
    check_differentiable(operation, tensor);
    check_beside(operation, "tensor", tensor, tensor.dtype(), beside);
  }
}

void check_norm(std::string_view operation, std::string_view name, const Tensor& norm) {
  check_defined(operation, name, norm);
  check_beside(operation, name, norm, DType::f64, norm);
  check<ShapeError>(norm.numel() == 1, "[{}] {}: expected one element, got shape {}", operation,
                    name, norm.shape());
}

}  // namespace

void global_norm(std::span<const Tensor> tensors, const Tensor& out) {
  check_norm("global_norm", "out", out);
  check_tensors("global_norm", tensors, out);
  backend_of(out.device()).global_norm(tensors, out);
}

void clip_by_norm(std::span<const Tensor> tensors, const Tensor& norm, double max_norm) {
  check_norm("clip_by_norm", "norm", norm);
  check_tensors("clip_by_norm", tensors, norm);
  for (const Tensor& tensor : tensors) tensor.storage().changed();
  backend_of(norm.device()).clip_by_norm(tensors, norm, max_norm);
}

void clip_by_value(std::span<const Tensor> tensors, double limit) {
  if (tensors.empty()) return;
  check_defined("clip_by_value", "tensor", tensors[0]);
  check_tensors("clip_by_value", tensors, tensors[0]);
  for (const Tensor& tensor : tensors) tensor.storage().changed();
  backend_of(tensors[0].device()).clip_by_value(tensors, limit);
}

}  // namespace lockstep::kernels
