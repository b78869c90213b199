/// How an operation of simulated NCCL runs: as a list of stages, each of which moves chunks through
/// channels as long as there are some. Nothing here waits: what lacks a chunk is called again.
///
/// Each collective begins with a signature from every rank to every other one; so does each send.
/// Ranks whose signatures differ (other sizes, another root, a send where a sum is wanted) go no
/// further: on GPUs they hang, or use each other's data for what they are not.

#include <algorithm>
#include <cstring>
#include <deque>

#include "lockstep/simt/nccl/nccl_communicator.h"
#include "lockstep/simt/races/races.h"

namespace simt::detail {
namespace {

struct Signature {
  NcclKind kind;
  ncclDataType_t type;
  std::uint64_t count;
  int root;
  int unused = 0;
  bool operator==(const Signature&) const = default;
};

Signature signature_of(const NcclCall& call) {
  const bool paired = call.kind == NcclKind::send || call.kind == NcclKind::receive;
  return {paired ? NcclKind::send : call.kind, call.type, call.count, paired ? 0 : call.peer};
}

/// A part of an operation: each call moves what can be moved and tells whether that was all.
class Stage {
 public:
  Stage() = default;
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  virtual ~Stage() = default;
  virtual bool go_on() = 0;

 protected:
  static void moved() { Runtime::get().moved(); }
};

/// What can be done one after the other, or all at once.
class Stages : public Stage {
 public:
  void add(std::unique_ptr<Stage> stage) { stages_.push_back(std::move(stage)); }
  template <class S, class... Args>
  void add(Args&&... args) {
    add(std::make_unique<S>(std::forward<Args>(args)...));
  }

 protected:
  std::deque<std::unique_ptr<Stage>> stages_;
};

class InOrder : public Stages {
 public:
  bool go_on() override {
    while (!stages_.empty() && stages_.front()->go_on()) stages_.pop_front();
    return stages_.empty();
  }
};

class AtOnce : public Stages {
 public:
  bool go_on() override {
    std::erase_if(stages_, [](const auto& stage) { return stage->go_on(); });
    return stages_.empty();
  }
};

class Send : public Stage {
 public:
  Send(Channel& channel, const std::byte* data, std::size_t bytes)
      : channel_(channel), data_(data), left_(bytes) {}
  bool go_on() override {
    while (left_ > 0) {
      std::byte* room = channel_.room();
      if (!room) return false;
      const std::size_t bytes = std::min(left_, Channel::chunk_bytes);
      std::memcpy(room, data_, bytes);
      channel_.send();
      data_ += bytes;
      left_ -= bytes;
      moved();
    }
    return true;
  }

 private:
  Channel& channel_;
  const std::byte* data_;
  std::size_t left_;
};

/// Ends when the receiver has taken all: a send alone blocks its stream, as on a GPU.
class Taken : public Stage {
 public:
  explicit Taken(const Channel& channel) : channel_(channel) {}
  bool go_on() override { return channel_.empty(); }

 private:
  const Channel& channel_;
};

class Receive : public Stage {
 public:
  Receive(Channel& channel, std::byte* data, std::size_t bytes)
      : channel_(channel), data_(data), left_(bytes) {}
  bool go_on() override {
    while (left_ > 0) {
      const std::byte* front = channel_.front();
      if (!front) return false;
      const std::size_t bytes = std::min(left_, Channel::chunk_bytes);
      std::memcpy(data_, front, bytes);
      races::defined(data_, bytes);
      channel_.take();
      data_ += bytes;
      left_ -= bytes;
      moved();
    }
    return true;
  }

 private:
  Channel& channel_;
  std::byte* data_;
  std::size_t left_;
};

class SendSignature : public Stage {
 public:
  SendSignature(Channel& channel, const Signature& signature)
      : signature_(signature),
        send_(channel, reinterpret_cast<const std::byte*>(&signature_), sizeof signature_) {}
  bool go_on() override { return send_.go_on(); }

 private:
  Signature signature_;
  Send send_;
};

/// Ends when the other side's signature is there and is the same: if it is another one, never.
class ExpectSignature : public Stage {
 public:
  ExpectSignature(Channel& channel, const Signature& signature)
      : expected_(signature), receive_(channel, reinterpret_cast<std::byte*>(&got_), sizeof got_) {}
  bool go_on() override { return receive_.go_on() && got_ == expected_; }

 private:
  Signature expected_, got_{};
  Receive receive_;
};

class CopyOwn : public Stage {
 public:
  CopyOwn(std::byte* to, const std::byte* from, std::size_t bytes)
      : to_(to), from_(from), bytes_(bytes) {}
  bool go_on() override {
    std::memmove(to_, from_, bytes_);
    races::defined(to_, bytes_);
    return true;
  }

 private:
  std::byte* to_;
  const std::byte* from_;
  std::size_t bytes_;
};

/// Sums chunk by chunk: each rank sends every other one what that needs of its own, and adds all
/// ranks' chunks in the order of ranks. So all have the same bits, and a result may overwrite what
/// it is of.
class Sum : public Stage {
 public:
  Sum(const Communicator& comm, const NcclCall& call)
      : comm_(comm), call_(call), element_(size_of(call.type)), sent_(comm.size) {}

  bool go_on() override {
    while (done_ < call_.count) {
      const std::size_t count = std::min(call_.count - done_, Channel::chunk_bytes / element_);
      if (!send_all(count) || !add_all(count)) return false;
      done_ += count;
      sent_.assign(sent_.size(), false);
      moved();
    }
    return true;
  }

 private:
  /// The present chunk of what `rank` is to have.
  const std::byte* own_for(int rank) const {
    const std::size_t part = call_.kind == NcclKind::reduce_scatter ? rank * call_.count : 0;
    return call_.from + (part + done_) * element_;
  }

  bool send_all(std::size_t count) {
    bool all = true;
    for (int peer = 0; peer < comm_.size; ++peer) {
      if (peer == comm_.rank || sent_[peer]) continue;
      Channel& channel = comm_.segment->channel(comm_.rank, peer);
      std::byte* room = channel.room();
      all = all && room;
      if (!room) continue;
      std::memcpy(room, own_for(peer), count * element_);
      channel.send();
      sent_[peer] = true;
      moved();
    }
    return all;
  }

  bool add_all(std::size_t count) {
    std::vector<const std::byte*> parts;
    for (int peer = 0; peer < comm_.size; ++peer) {
      parts.push_back(peer == comm_.rank ? own_for(peer)
                                         : comm_.segment->channel(peer, comm_.rank).front());
      if (!parts.back()) return false;
    }
    add_parts(parts, call_.to + done_ * element_, count, call_.type);
    races::defined(call_.to + done_ * element_, count * element_);
    for (int peer = 0; peer < comm_.size; ++peer)
      if (peer != comm_.rank) comm_.segment->channel(peer, comm_.rank).take();
    return true;
  }

  const Communicator& comm_;
  NcclCall call_;
  std::size_t element_;
  std::vector<char> sent_;  ///< to whom the present chunk has gone
  std::size_t done_ = 0;    ///< elements
};

/// One operation: collectives in their order, then sends and receives all at once.
class CallsRun {
 public:
  CallsRun(CommunicatorPointer comm, const std::vector<NcclCall>& calls) : comm_(std::move(comm)) {
    const auto paired = [](const NcclCall& call) {
      return call.kind == NcclKind::send || call.kind == NcclKind::receive;
    };
    for (const NcclCall& call : calls)
      if (!paired(call)) add_collective(call);
    auto transfers = std::make_unique<AtOnce>();
    for (int peer = 0; peer < comm_->size; ++peer)
      for (const NcclKind kind : {NcclKind::send, NcclKind::receive}) {
        auto queue = std::make_unique<InOrder>();
        for (const NcclCall& call : calls)
          if (call.kind == kind && call.peer == peer) add_transfer(*queue, call);
        transfers->add(std::move(queue));
      }
    stages_.add(std::move(transfers));
    comm_->running.push_back(this);
  }
  CallsRun(const CallsRun&) = delete;
  CallsRun& operator=(const CallsRun&) = delete;
  ~CallsRun() { comm_->running.remove(this); }

  /// Operations of a communicator run one by one, whatever their streams. After an abort they end
  /// as they are.
  bool go_on() {
    const bool stopped = comm_->aborted || comm_->destroyed;
    if (!stopped && (comm_->running.front() != this || !stages_.go_on())) return false;
    comm_->running.remove(this);
    return true;
  }

 private:
  Channel& to(int peer) { return comm_->segment->channel(comm_->rank, peer); }
  Channel& from(int peer) { return comm_->segment->channel(peer, comm_->rank); }

  void add_transfer(InOrder& queue, const NcclCall& call) {
    const std::size_t bytes = call.count * size_of(call.type);
    if (call.kind == NcclKind::send) {
      queue.add<SendSignature>(to(call.peer), signature_of(call));
      queue.add<Send>(to(call.peer), call.from, bytes);
      queue.add<Taken>(to(call.peer));
    } else {
      queue.add<ExpectSignature>(from(call.peer), signature_of(call));
      queue.add<Receive>(from(call.peer), call.to, bytes);
    }
  }

  void add_collective(const NcclCall& call) {
    const int rank = comm_->rank, size = comm_->size;
    auto greeting = std::make_unique<AtOnce>();
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      greeting->add<SendSignature>(to(peer), signature_of(call));
      greeting->add<ExpectSignature>(from(peer), signature_of(call));
    }
    stages_.add(std::move(greeting));
    if (call.kind == NcclKind::all_reduce || call.kind == NcclKind::reduce_scatter) {
      stages_.add<Sum>(*comm_, call);
      return;
    }
    const std::size_t bytes = call.count * size_of(call.type);
    const bool gather = call.kind == NcclKind::all_gather;
    const auto place_of = [&](int peer) { return call.to + (gather ? peer * bytes : 0); };
    auto transfers = std::make_unique<AtOnce>();
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      if (gather || call.peer == rank) transfers->add<Send>(to(peer), call.from, bytes);
      if (gather || call.peer == peer) transfers->add<Receive>(from(peer), place_of(peer), bytes);
    }
    if (gather || call.peer == rank) transfers->add<CopyOwn>(place_of(rank), call.from, bytes);
    stages_.add(std::move(transfers));
  }

  CommunicatorPointer comm_;
  InOrder stages_;
};

}  // namespace

Run begin_calls(const CommunicatorPointer& comm, const std::vector<NcclCall>& calls) {
  const auto run = std::make_shared<CallsRun>(comm, calls);
  return [run] { return run->go_on(); };
}

void submit_calls(Runtime& runtime, Stream& stream, const CommunicatorPointer& comm,
                  std::vector<NcclCall> calls) {
  const std::shared_ptr<int> held = stream.capture ? comm->in_graph : nullptr;
  submit_run(runtime, stream, cudaGraphNodeTypeKernel,
             [comm, held, calls = std::move(calls)] { return begin_calls(comm, calls); });
}

}  // namespace simt::detail
