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
/// Where it happens. Small products of a linear layer on a GPU round their factors themselves; what
/// a tape keeps for backward is then the f32 factor, such as the weight itself. Elsewhere a factor
/// is cast to new memory first, once for forward and backward, and the tape keeps that.
///
/// Why. Tensor cores and AMX multiply 16-bit numbers 2 to 16 times as fast as f32. What it costs: a
/// tape keeps the cast factors, beside the weights and other activations in f32. bf16 has the
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

/// How the factors of products get their 16 bits. Those of other dtypes than f32 stay as they are.
struct FactorRounding {
  DType dtype = DType::f32;  ///< of factors in the product; f32: they stay as they are
  bool by_products = false;  ///< the products round them themselves (kernels/matmul.h)

  /// x as these products take it: itself, or rounded, in new memory.
  Tensor operator()(const Tensor& x) const {
    return by_products || x.dtype() != DType::f32 ? x : rounded_to(dtype, x);
  }
};

/// Of the three products of a linear layer, whose weight is w: where Autocast rounds x (n, in) and
/// w (out, in), by the products if kernels::rounds_factors() says so. With `whole` false, whose
/// rows are a part of a batch, by a cast: a row's bits must not depend on how many others a rank
/// has.
FactorRounding layer_rounding(const Tensor& x, const Tensor& w, bool whole);

/// A factor of another product: rounded to Autocast::current() if it is f32, else x itself.
inline Tensor factor(const Tensor& x) { return FactorRounding{Autocast::current()}(x); }

}  // namespace detail

}  // namespace lockstep
