#pragma once
/// The queue of calls that the communicators for host memory share: the host communicator and the
/// one over MPI. Calls wait in the queue. Functions of the derived class carry out the one at the
/// front, whenever the rank calls a collective, progresses or waits. At most `queue_length` calls
/// can be waiting; a further one first waits for the oldest.
///
/// The first error breaks the communicator: it is kept with the rank, the operation, the call's
/// number and name in its message, the other ranks are told, and every later Work throws it.

#include <array>
#include <vector>

#include "lockstep/core/system/forks.h"
#include "lockstep/dist/collectives/communicator.h"
#include "lockstep/dist/collectives/flight_recorder.h"
#include "lockstep/dist/transport/wait_watch.h"

namespace lockstep::dist {

class QueuedCommunicator : public Communicator {
 public:
  static constexpr std::size_t queue_length = 256;

  void abort(std::string_view reason) noexcept override;
  Seconds waited() const override { return linked_ ? waited_ + linked_->waited() : waited_; }
  std::string flight_record() const override { return recorder_.text(now()); }
  Seconds timeout() const { return watch_.timeout(); }

 protected:
  /// `ranks` of the world. The watch says how long a wait goes on without anything moving.
  QueuedCommunicator(int ranks, WaitWatch watch)
      : recorder_(ranks), watch_(std::move(watch)), queue_(queue_length) {
    membership().ranks_in_job = watch_.members();
  }

  struct Call {
    CollectiveCall arguments;
    CallHeader header;
    std::array<char, 48> name{};  // for messages; the header has only its beginning
  };
  /// Appends a call and carries on. `algorithm` and `place` are part of its header.
  Work append(const CollectiveCall& arguments, std::string_view name, Algorithm algorithm,
              RegionPlace place = {});

  /// DeviceError for a tensor that is not on the cpu.
  static void check_on_host(const CollectiveCall& call, std::string_view name);

  // Carrying out the call at the front.
  enum class Progress { none, some, ended };
  virtual void begin(Call& call) = 0;
  virtual Progress carry_on(Call& call) = 0;

  /// now(), perhaps some milliseconds late.
  virtual Seconds roughly_now() const { return now(); }

  // Waiting for it.
  /// Spins, yields or sleeps, the longer the more rounds nothing has moved. `late`: that is half of
  /// the timeout already. Throws PeerError if another rank is found to be gone.
  virtual void relax(unsigned round, bool late) = 0;
  /// Whether relax(round) returns sooner than a look at the clock would.
  virtual bool spins(unsigned /*round*/) const { return false; }
  /// Throws the error of a timeout, "timed out after 60 s, waiting for rank 2 (step 1 of 5)"; not
  /// if another look finds that a rank has moved.
  virtual void look_again_or_time_out(Seconds limit) = 0;

  /// Tells the other ranks that this one is broken. `consequence`: by another rank's error.
  virtual void tell_failure(std::string_view reason, bool consequence) noexcept = 0;
  /// Breaks the communicator and throws, a PeerError if `why` is one: it is then the consequence of
  /// another rank's error. `call` says in what: "#17 'bucket 0'".
  [[noreturn]] void give_up(const CommError& why, std::string_view operation,
                            std::string_view call);
  /// The same for the call at the front.
  [[noreturn]] void give_up(const CommError& why);

  bool progress(std::uint64_t sequence) override;
  void wait(std::uint64_t sequence, std::optional<Seconds> timeout) override;

  /// Carries on with the queue; true if anything moved. `timed`: notes the time when a call ends.
  bool advance(bool timed = true);
  Call& front() { return queue_[front_ % queue_length]; }

  FlightRecorder recorder_;
  WaitWatch watch_;
  std::uint64_t front_ = 0;  // the call being carried out: all before it are done
  std::uint64_t next_ = 0;   // the number of the next call
  std::exception_ptr failure_;

 private:
  /// Throws StateError in a child by fork(), which would take bytes that are its parent's.
  void check_is_rank(Operation operation, std::string_view name) const;

  std::vector<Call> queue_;
  bool begun_ = false;  // the call at the front
  int made_in_ = forks();
  Seconds finished_{0};  // when the last call ended
  Seconds waited_{0};
};

}  // namespace lockstep::dist
