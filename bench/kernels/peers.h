#pragma once
/// Other libraries doing the work of a case in this very process, on its tensors. All functions
/// return an empty function for what the library does not have or this build does not link.

#include "lockstep/bench/kernels/case.h"
#include "lockstep/kernels/matmul.h"

namespace bench {

using Run = std::function<void()>;

/// out = op(a) op(b).
struct Product {
  Tensor a, b, out;
  lockstep::kernels::MatmulFlags flags;
  bool tf32 = false;  ///< on a GPU: inputs may be rounded
};

/// On the cpu; elementwise operations, reductions, optimizer steps.
Run eigen(const std::string& kernel, const Case& work);
Run eigen_product(const Product& product);
Run onednn_product(const Product& product);

/// On a GPU.
Run cub(const std::string& kernel, const Case& work);
Run cublas_product(const Product& product);

/// Those of the first and the fourth that apply; those of the rest that apply.
std::vector<Contender> peers_of(const std::string& kernel, const Case& work);
std::vector<Contender> product_peers(const Product& product);

}  // namespace bench
