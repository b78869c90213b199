#include "lockstep/dist/ddp/ddp_options.h"

#include <algorithm>
#include <cmath>

namespace lockstep::dist {
namespace {

// By the enumerators' values.
constexpr std::string_view buffer_modes[] = {"broadcast", "average", "off"};
constexpr std::string_view nonfinite_policies[] = {"report", "ignore", "skip", "stop"};

std::size_t bytes_of(std::string_view name, double mebibytes) {
  check<UsageError>(std::isfinite(mebibytes) && mebibytes > 0,
                    "[DistributedDataParallel] {} must be positive, got {}", name, mebibytes);
  return static_cast<std::size_t>(std::min(std::max(1.0, mebibytes * (1 << 20)), 0x1p62));
}

}  // namespace

std::string to_text(const DdpOptions& options) {
  return fmt::format(
      "bucket_cap_mb {}\nfirst_bucket_mb {}\nlast_bucket_mb {}\nrebuild_buckets {}\n"
      "bucket_layout {}\nbuffers {}\nnonfinite {}\nhook {}\n"
      "deferred {}\ncheck_replicas {}\ndeterministic {}\n",
      options.bucket_cap_mb, options.first_bucket_mb, options.last_bucket_mb,
      options.rebuild_buckets, options.bucket_layout,
      buffer_modes[static_cast<std::size_t>(options.buffers)],
      nonfinite_policies[static_cast<std::size_t>(options.nonfinite)],
      options.hook ? options.hook->name() : "none", options.deferred, options.check_replicas,
      name_of(options.deterministic));
}

BucketCaps caps_of(const DdpOptions& options) {
  return {bytes_of("bucket_cap_mb", options.bucket_cap_mb),
          bytes_of("first_bucket_mb", options.first_bucket_mb),
          bytes_of("last_bucket_mb", options.last_bucket_mb)};
}

}  // namespace lockstep::dist
