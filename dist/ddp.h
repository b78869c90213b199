#pragma once
/// Distributed data parallelism: replicas that start equal and step on the same gradient.
///
///   dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
///
/// Construction is collective:
/// 1. compares the models: names, shapes, dtypes, order, bucket cap. If two ranks differ, every rank
///    throws a StateError that names the first difference;
/// 2. broadcasts rank 0's parameters and buffers;
/// 3. gives the gradients their memory in buckets, and watches them (dist/reducer.h).
///
/// From then on every backward that reaches the parameters leaves the weighted mean over the ranks
/// in their gradients: sum_r(w_r g_r) / sum_r(w_r), see Tape::backward. The model itself is called
/// as ever. It must be destroyed before the World it was made with.

#include <memory>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/dist/reducer.h"
#include "lockstep/dist/world.h"

namespace lockstep::dist {

struct DdpOptions {
  double bucket_cap_mb = 25;  ///< MiB of gradients per bucket; fractions are allowed
};

class DistributedDataParallel {
 public:
  DistributedDataParallel(std::vector<Parameter> parameters, std::vector<Buffer> buffers,
                          const World& world, DdpOptions options = {});

  const Reducer& reducer() const { return *reducer_; }

 private:
  std::unique_ptr<Reducer> reducer_;
};

/// Throws StateError on every rank, naming the first difference, unless all ranks pass the same
/// text.
/// `text` has one line per item. Collective.
void check_same(Communicator& communicator, std::string_view what, std::string_view text);

/// The SHA-256 of all values, in order, as raw little-endian bytes.
std::string parameter_digest(const std::vector<Parameter>& parameters);

/// Every rank's text. Collective.
std::vector<std::string> gather_text(Communicator& communicator, std::string_view text);

}  // namespace lockstep::dist
