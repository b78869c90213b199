#pragma once
/// Mixed precision (Micikevicius et al., "Mixed precision training", ICLR 2018): while an Autocast
/// lives, products of f32 matrices have their factors rounded to bf16 or f16.
///
///   {
///     Autocast autocast(DType::bf16);
///     loss = nn::cross_entropy(model(x), y);
///   }
///   tape.backward(loss);                    // inside the scope or after it, as you like
///
/// Which operations. `matmul` and `linear`, and the operations that are made of them. Their factors
/// are rounded to 16 bits, products are exact, sums are f32 and stay f32. Backward does the same
/// with the same rounded factors, and with the incoming gradient rounded; a bias's gradient is the
/// f32 sum of that. Everything else stays as it is, in f32: biases, sums, softmax, losses, norms,
/// activations, weights, gradients of weights and what travels between ranks. Where linear layers
/// alone take a result (nn::Sequential knows), it is rounded before it is stored. (PyTorch's
/// autocast leaves products in 16 bits and has a list of operations that take them; here no other
/// operation sees a new dtype.) f64 and 16-bit operands are left alone.
///
/// Why. Tensor cores and AMX multiply 16-bit numbers 2 to 16 times as fast as f32. What it costs: a
/// tape keeps the rounded factors, beside the weights and other activations in f32. bf16 has the
/// range of f32 and 8 significant bits; f16 has 11 bits, but small gradients vanish: use
/// optim::GradScaler with it.
///
/// Thread-safety: a scope counts for the thread that made it, which must end it.

#include "lockstep/core/system/thread_scope.h"
#include "lockstep/core/tensor.h"

namespace lockstep {

class [[nodiscard]] Autocast : public ThreadScope<Autocast> {
 public:
  /// bf16, f16, or f32: off, also inside of another scope. Throws DTypeError for another one.
  [[nodiscard]] explicit Autocast(DType dtype);

  /// Of this thread's innermost scope; f32 outside of all.
  static DType current();

 private:
  DType dtype_;
};

namespace detail {

/// x itself if it is `dtype`, else rounded to it, in new memory. Not recorded.
Tensor rounded_to(DType dtype, const Tensor& x);

/// A factor of a product: rounded to Autocast::current() if it is f32, else x itself.
inline Tensor factor(const Tensor& x) {
  return x.dtype() == DType::f32 ? rounded_to(Autocast::current(), x) : x;
}

}  // namespace detail

}  // namespace lockstep
