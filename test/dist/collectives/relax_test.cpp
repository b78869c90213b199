// What a transport throws while a rank waits breaks the communicator, whatever kind of error it is.

#include <doctest/doctest.h>

#include "dist/collectives/exercise.h"
#include "lockstep/dist/transport/transports.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;
using namespace lockstep::dist::testing;

namespace {

/// A transport whose relax() finds that somebody sends what makes no sense.
class Confused final : public Transport {
 public:
  explicit Confused(std::unique_ptr<Transport> inner) : inner_(std::move(inner)) {}

  int rank() const override { return inner_->rank(); }
  int size() const override { return inner_->size(); }
  std::string_view name() const override { return inner_->name(); }
  bool has_shared_memory() const override { return inner_->has_shared_memory(); }
  std::size_t send(int peer, std::span<const std::byte> bytes) override {
    return inner_->send(peer, bytes);
  }
  std::size_t receive(int peer, std::span<std::byte> bytes) override {
    return inner_->receive(peer, bytes);
  }
  SharedRegion allocate(std::size_t bytes) override { return inner_->allocate(bytes); }
  void relax(unsigned) override { fail<CommError>("a frame of 5 bytes too many"); }
  Seconds now() const override { return inner_->now(); }
  void abort(std::string_view reason) noexcept override { inner_->abort(reason); }

 private:
  std::unique_ptr<Transport> inner_;
};

}  // namespace

TEST_CASE("an error while a rank waits breaks its communicator, and the others are told why") {
  for (const int world : {2, 3, 4, 7}) {
    for (const int confused : {0, world - 1}) {
      CAPTURE(world);
      CAPTURE(confused);
      std::atomic<bool> over{false};  // the others come only then: the confused one has to wait
      std::vector<std::string> again;
      const auto errors = on_threads(
          threads_transports(world), [&](int rank, std::unique_ptr<Transport> transport) {
            if (rank == confused) transport = std::make_unique<Confused>(std::move(transport));
            HostCommunicator comm(std::move(transport));
            if (rank != confused) {
              while (!over) std::this_thread::yield();
              comm.barrier("meeting").wait();
              return;
            }
            for (int call = 0; call < 2; ++call) try {
                comm.barrier("meeting").wait();
              } catch (const PeerError&) {
                again.emplace_back("a consequence");
              } catch (const CommError& error) {
                again.emplace_back(error.what());
              }
            over = true;
          });
      const std::string message =
          fmt::format("[barrier] rank {}, #0 'meeting': a frame of 5 bytes too many", confused);
      CHECK(again == std::vector<std::string>(2, message));
      for (int rank = 0; rank < world; ++rank) {
        const std::string other = message_of(errors[index(rank)]);
        CAPTURE(other);
        CHECK((other.find("a frame of 5 bytes too many") != std::string::npos) ==
              (rank != confused));
      }
    }
  }
}
