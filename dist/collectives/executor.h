#pragma once
/// Carries out plans over a transport, one at a time, as a state machine that never waits:
/// progress() moves the bytes that can be moved now and returns. Nothing is allocated per step.
///
/// Within a step, sending and receiving go on independently. The next step begins when both are
/// done. Ranks that follow matching plans cannot block each other, however small the streams are:
/// every rank receives while it sends, so the ranks that are furthest behind can always go on.

#include <array>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "lockstep/dist/collectives/call_header.h"
#include "lockstep/dist/collectives/flight_recorder.h"
#include "lockstep/dist/collectives/plan/plan.h"
#include "lockstep/dist/transport/transport.h"

namespace lockstep::dist {

/// A plan's input and the memory that it works on, which the caller keeps alive.
struct Collective {
  PlanInput input;
  CallHeader header;
  std::byte* buffer = nullptr;  ///< input.count elements
  std::byte* part = nullptr;    ///< the input of an all_gather, the output of a reduce_scatter
  const SharedRegion* region = nullptr;  ///< for two_shot_shared; the header has the offset
};

class Executor {
 public:
  /// The transport and the recorder must outlive the executor.
  Executor(Transport& transport, FlightRecorder& recorder);

  /// Begins a collective. The previous one must be done.
  void start(const Collective& collective);
  /// Goes on as far as it can without waiting; true if anything moved. Throws CommError for a
  /// header that does not match, PeerError for a lost peer; the executor is then of no more use.
  bool progress();
  bool done() const { return index_ == plan_.size(); }

  std::uint64_t bytes_moved() const { return bytes_moved_; }  ///< see Communicator::bytes_moved
  /// The rank that has to move before this one can.
  int awaited() const { return received_ < to_receive_ ? step_.from : step_.to; }
  std::string position() const { return fmt::format("step {} of {}", index_ + 1, plan_.size()); }

 private:
  static constexpr std::size_t header_bytes = sizeof(CallHeader);
  // A message of at most this size, header included, travels in one piece: in one call.
  static constexpr std::size_t packed_bytes = 2048;
  // What is to be added arrives in blocks that are still in the cache when they are added.
  static constexpr std::size_t block_bytes = 32 * 1024;

  void begin_step();
  bool push();          // sends what the stream takes
  bool pull_head();     // receives the header, or a packed message, and what is behind it
  bool pull_payload();  // receives the rest: straight into place, or in blocks that are added
  std::span<std::byte> room() const;  // for what comes next behind the head
  void took(std::size_t count);       // so many bytes lie there

  void prepare(const PlanInput& input);  // the plan and its scratch memory
  void pack();                           // the head of the message that is sent
  void unpack(std::size_t payload);      // a small message, after its header
  void add(std::byte* target, const std::byte* other, std::size_t bytes) const;

  // --- second reading: executor_actions.cpp. The ring's steps have no action ---
  void act();
  void reduce_slots();
  void add_slots();
  void reduce_regions(), copy_into_regions(Range own);

  // How many bytes of a message go through outgoing_ or incoming_: none, its header, or all of it
  // if it is small. The rest is sent from, and received into, its place.
  std::size_t head(std::size_t message) const {
    return !step_.header ? 0 : message <= packed_bytes ? message : header_bytes;
  }
  std::size_t header() const { return step_.header ? header_bytes : 0; }
  std::size_t bytes(std::int64_t elements) const {
    return static_cast<std::size_t>(elements) * element_;
  }
  std::byte* at(std::int64_t element) const { return collective_.buffer + bytes(element); }
  std::byte* slot(int number) const { return scratch_ + index(number) * slot_bytes_; }
  std::byte* place() const {  // of what is being received
    return step_.into == Step::Into::slot ? slot(step_.slot) : at(step_.receive.begin);
  }

  Transport& transport_;
  FlightRecorder& recorder_;
  Collective collective_;
  PlanInput planned_{.world = 0};  // calls repeat: the last plan is kept
  Plan plan_;
  Scratch needs_;
  std::size_t element_ = 1;  // bytes

  std::size_t index_ = 0;  // of the step in hand
  Step step_;
  std::size_t sent_ = 0, to_send_ = 0;  // bytes of this step, its header included
  std::size_t received_ = 0, to_receive_ = 0;
  alignas(64) std::array<std::byte, packed_bytes> outgoing_;  // the head of the message
  alignas(64) std::array<std::byte, packed_bytes> incoming_;

  // Slots, and the block in which elements to be added arrive: in `small_`, or else in `large_`.
  std::byte* scratch_ = nullptr;
  std::byte* block_ = nullptr;
  std::size_t slot_bytes_ = 0;
  Tensor large_;
  alignas(64) std::array<std::byte, 2 * packed_bytes> small_;
  std::vector<const std::byte*> sources_;  // one per rank
  std::vector<std::byte*> destinations_;
  std::uint64_t bytes_moved_ = 0;
};

}  // namespace lockstep::dist
