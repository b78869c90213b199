#pragma once
/// One row of the table at one size: verified, then timed in turns with its peers.

#include <optional>

#include "lockstep/bench/figures.h"
#include "lockstep/bench/kernels/case.h"
#include "lockstep/bench/peer.h"

namespace bench {

struct Method {
  Device device;
  int rounds = 7;
  double round_seconds = 0.05;             ///< per contender and round, but at least one call
  std::size_t rotated_bytes = 256u << 20;  ///< that a contender goes through before it comes back
  Peer* pytorch = nullptr;  ///< speaks the protocol of bench/peers/pytorch_kernels.py
};

struct Measurement {
  Figures ours;
  std::vector<Figures> peers;
  std::size_t cases = 0;  ///< sets of tensors that took turns, at most 64
};

/// Throws VerificationError if the kernel, or a peer in this process, computes something else.
Measurement measure(const Row& row, const Size& size, const Method& method);

/// What the machine can do: the ceilings that rows are compared with. Best of the rounds.
double copy_bytes_per_second(const Method& method, Scale scale);
/// The best of the libraries for products of `precision` (a row's), or nothing where there is none.
std::optional<double> product_flops(const std::string& precision, const Method& method,
                                    Scale scale);

/// Bytes of a row at a size, or floating-point operations of a product.
double work_of(const Row& row, const Size& size);

}  // namespace bench
