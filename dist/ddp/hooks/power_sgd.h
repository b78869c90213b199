#pragma once
/// PowerSGD: gradients of low rank on the wire, with error feedback (Vogels, Karimireddy and Jaggi,
/// PowerSGD: Practical Low-Rank Gradient Compression for Distributed Optimization, NeurIPS 2019,
/// algorithm 1).
///
///   dist::DistributedDataParallel ddp(parameters, buffers, world, {.hook = dist::power_sgd()});
///
/// A gradient of shape (m, n) with r (m + n) < m n is approximated by the product of an (m, r) and
/// an (r, n) matrix: one step of the power iteration for its largest singular vectors, which begins
/// where the last step ended. Rank k has its gradient M_k, what it kept E_k, and a matrix Q (n, r)
/// that is the same on all ranks:
///
///     A_k  = M_k + E_k
///     P    = sum over ranks of A_k Q          all-reduced: m r elements
///     P    = orthonormal columns of P         Gram-Schmidt: alike on all ranks, as P is
///     Q_k  = A_k^T P
///     E_k  = A_k - P Q_k^T                    what this rank did not send: it is kept
///     Q    = sum over ranks of Q_k            all-reduced: n r elements
///     sum := P Q^T                            = sum over ranks of P P^T A_k
///
/// On every rank, what is sent and what is kept add up to the gradient, except for rounding. What
/// is left out in one step is sent in a later one. Other gradients (vectors; matrices that would
/// not become smaller; the steps before `start_after`) travel as they are: those of a bucket in one
/// all-reduce with its P.
///
/// The first Q is random, from a fixed seed and the parameter's place. It is the same on all ranks
/// and in every run. No generator of the program is used.
///
/// State. E_k and Q need memory of the size of the gradients, per rank. A checkpoint has them
/// (state_dict); on another number of ranks, each rank takes over the sum of the E_k of some, so
/// that nothing of what was not sent is lost. A skipped step
/// (NonFinite::skip) resets both, on all ranks. If no rank uses a parameter in a step, what was
/// kept of it is sent in this step, and dropped with it. The E_k have the unit in which gradients
/// are summed: accumulation windows, whose sums are divided at their end, should have equal
/// weights.
///
/// It helps where the link is slow and the matrices are large. It needs two collectives per bucket
/// in the place of one (nothing hides the second) and 6 m n r floating-point operations per matrix.
/// The result is not the mean gradient, so the learning rate needs tuning. Gradients on a GPU stay
/// there, but P goes through the host to be orthonormalized.
///
/// Thread-safety: as CommunicationHook.

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

#include "lockstep/dist/ddp/hooks/communication_hook.h"

namespace lockstep::dist {

/// Of power_sgd.
struct PowerSgdOptions {
  int rank = 4;                  ///< r, at least 1
  std::int64_t start_after = 0;  ///< synchronizations in which gradients travel as they are
};

/// For f32 and f64 gradients. Throws UsageError for options that make no sense.
class PowerSgd final : public CommunicationHook {
 public:
  explicit PowerSgd(PowerSgdOptions options);  ///< power_sgd makes one to be shared
  ~PowerSgd() override;

  std::string name() const override;
  void prepare(std::span<const BucketView> buckets, Communicator& communicator) override;
  Work reduce(const BucketView& bucket, Communicator& communicator) override;
  void complete(const BucketView& bucket, Communicator& communicator) override;
  void skipped() override;
  void scale_changes(double ratio) override;
  bool keeps_parts() const override { return true; }
  State state_dict() const override;  ///< "step", and "NAME.kept", "NAME.q" of each matrix
  void load_state_dict(const State& state) override;
  void load_of_other_world(std::span<const State> states, Shard mine) override;

  /// E_k, of the gradient's shape; undefined if this parameter's gradient travels as it is.
  Tensor kept(const Parameter& parameter) const;

 private:
  struct Matrix;
  struct Bucket;
  bool compresses() const { return step_ > options_.start_after; }
  static Work send_whole(Bucket& bucket, const BucketView& view, Communicator& communicator);
  static void receive_whole(Bucket& bucket, const BucketView& view);

  PowerSgdOptions options_;
  std::int64_t step_ = 0;                             // synchronizations begun
  std::vector<Bucket> buckets_;                       // by index
  std::unordered_map<const void*, Matrix> matrices_;  // by Parameter::id()
};

/// A PowerSgd for DdpOptions::hook: one per rank.
inline std::shared_ptr<PowerSgd> power_sgd(PowerSgdOptions options = {}) {
  return std::make_shared<PowerSgd>(options);
}

/// Columns of p (m, r), one after another, are made orthogonal to those before them and of length 1
/// (modified Gram-Schmidt, each twice, in f64). A column of which nothing but rounding is left
/// becomes zero; those are returned. f32 or f64, on any device; through the host.
std::vector<std::int64_t> orthonormalize(const Tensor& p);

}  // namespace lockstep::dist
