#include "lockstep/dist/transport/memory_transport.h"
#include "lockstep/dist/transport/regions.h"
#include "lockstep/dist/transport/transports.h"

namespace lockstep::dist {
namespace {

class ThreadsTransport final : public MemoryTransport {
 public:
  ThreadsTransport(std::shared_ptr<void> streams, std::shared_ptr<RegionTable> regions, int rank,
                   int size, const ThreadsOptions& options)
      : MemoryTransport(std::move(streams), rank, size, options.stream_bytes),
        regions_(std::move(regions)),
        join_timeout_(options.join_timeout) {}

  std::string_view name() const override { return "threads"; }
  SharedRegion allocate(std::size_t bytes) override {
    return regions_->allocate(*this, bytes, join_timeout_,
                              [&](int peer) { return presence_.of(peer) != Presence::here; });
  }

 private:
  std::shared_ptr<RegionTable> regions_;
  Seconds join_timeout_;
};

}  // namespace

std::vector<std::unique_ptr<Transport>> threads_transports(int size, ThreadsOptions options) {
  check<UsageError>(size >= 1, "[threads] a world has at least 1 rank, got {}", size);
  check<UsageError>(std::has_single_bit(options.stream_bytes),
                    "[threads] stream_bytes is a power of two, got {}", options.stream_bytes);
  options.stream_bytes = std::min(options.stream_bytes, stream_capacity(size));
  const auto streams = allocate_pages(MemoryTransport::bytes_needed(size, options.stream_bytes));
  const auto regions = std::make_shared<RegionTable>(size);
  std::vector<std::unique_ptr<Transport>> transports;
  for (int rank = 0; rank < size; ++rank)
    transports.push_back(std::make_unique<ThreadsTransport>(streams, regions, rank, size, options));
  return transports;
}

}  // namespace lockstep::dist
