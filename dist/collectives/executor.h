#pragma once
/// Carries out plans over a transport, one at a time, as a state machine that never waits:
/// progress() moves the bytes that can be moved now and returns. Nothing is allocated per step;
/// scratch memory beyond a few KiB comes from the caching allocator once per plan.
///
/// Within a step sending and receiving advance independently, and the next step begins when both
/// are done. Ranks that follow matching plans cannot block each other, however small the streams
/// are: of the ranks that are furthest behind, each waits only for others of the same step, all of
/// which take what comes while they send.

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/core/tensor.h"
#include "lockstep/dist/collectives/call_header.h"
#include "lockstep/dist/collectives/flight_recorder.h"
#include "lockstep/dist/collectives/plan.h"
#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

/// A plan and the memory it works on, which the caller keeps alive.
struct Collective {
  Plan plan;
  CallHeader header;
  std::byte* buffer = nullptr;  ///< plan.count elements
  std::byte* part = nullptr;    ///< the input of an all_gather, the output of a reduce_scatter
  const SharedRegion* region = nullptr;  ///< for Algorithm::shared; the header has the offset
};

class Executor {
 public:
  /// The transport and the recorder must outlive the executor.
  Executor(Transport& transport, FlightRecorder& recorder);

  /// Begins a collective. The last one must be done.
  void start(const Collective& collective);

  /// Goes on as far as it can without waiting; true if anything moved. Throws CommError for a
  /// header that does not match, PeerError for a lost peer; the executor is then of no more use.
  bool progress();

  bool done() const { return index_ == steps(); }

  /// See Communicator::bytes_moved.
  std::uint64_t bytes_moved() const { return bytes_moved_; }

  /// The rank that has to move before this one can.
  int awaited() const { return received_ < to_receive_ ? step_.from : step_.to; }
  /// "step 2 of 5"
  std::string position() const { return fmt::format("step {} of {}", index_ + 1, steps()); }

 private:
  /// What a plan comes to. Calls repeat, and small ones take as long as working this out. (At first
  /// that of a plan for nobody. A node map does not change while there is an executor.)
  struct Outline {
    Plan plan{.world = 0};
    std::vector<Step> steps;
    int slots = 0;
    std::int64_t slot_elements = 0;
    bool sums = false;
  };

  static constexpr std::size_t header_bytes = sizeof(CallHeader);
  // A small message is handed over, and taken, in one piece with its header: one call of the
  // transport instead of two, and fewer cache lines between two cores.
  static constexpr std::size_t packed_bytes = 2048;

  bool packs(std::size_t message) const {
    return step_.header && message >= header_bytes && message <= packed_bytes;
  }
  std::span<const std::byte> next_to_send() const;
  bool push();          // sends what the stream takes
  bool pull();          // receives what has arrived
  bool pull_payload();  // ... behind the header
  void unpack();        // the payload of a packed message, to where it belongs
  void add(std::byte* target, const std::byte* other, std::size_t bytes) const;
  void outline(const Plan& plan);
  int steps() const { return static_cast<int>(outline_.steps.size()); }
  void next_step();
  void act();
  void fold_slots();
  void fold_rest();
  void reduce_regions();

  std::byte* at(std::int64_t element) const { return collective_.buffer + bytes(element); }
  std::byte* slot(int number) const;
  std::byte* place() const {  // of what is being received
    return step_.into == Step::Into::slot ? slot(step_.slot) : at(step_.receive.begin);
  }
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * element_;
  }

  Transport& transport_;
  FlightRecorder& recorder_;
  Collective collective_;
  Outline outline_;          // of the last plan
  std::size_t element_ = 1;  // bytes
  // Slots, and the block in which elements to be added arrive: in `small_`, or else in `large_`.
  std::byte* scratch_ = nullptr;
  std::size_t slot_bytes_ = 0, block_at_ = 0;
  Tensor large_;
  alignas(64) std::array<std::byte, 2 * packed_bytes> small_;
  alignas(64) std::array<std::byte, packed_bytes> outgoing_;  // a packed message
  alignas(64) std::array<std::byte, packed_bytes> incoming_;  // one, or a header

  std::uint64_t bytes_moved_ = 0;
  int index_ = 0;
  Step step_;
  std::size_t sent_ = 0, to_send_ = 0;  // bytes of this step, its header included
  std::size_t received_ = 0, to_receive_ = 0;

  std::vector<const std::byte*> sources_;  // one per rank, for folds
  std::vector<std::byte*> destinations_;
};

}  // namespace lockstep::dist
