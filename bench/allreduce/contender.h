#pragma once
/// One contender of `bench allreduce` as the parent process sees it: a set of rank processes of its
/// own (bench/allreduce/rank.h) that are told what to do through a named pipe each and answer
/// through rank 0's stdout. Between its turns it is blocked in reads.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "../peer.h"
#include "lockstep/dist/rendezvous/socket.h"

namespace bench {

/// What it is, in the words of the JSON.
struct Label {
  std::string comm;       ///< auto, ring, direct, ...; gloo, openmpi; bound, tags, poly1305
  std::string transport;  ///< shm, tcp, threads
  bool is_part() const { return comm == "bound" || comm == "tags" || comm == "poly1305"; }
  bool is_ours() const { return comm != "gloo" && comm != "openmpi" && !is_part(); }
  bool operator==(const Label&) const = default;
};

class Contender {
 public:
  /// The command gets the folder of the pipes as a further argument. Throws UsageError if the
  /// contender says that it cannot do this here, Error if it fails.
  Contender(Label label, int ranks, std::vector<std::string> command);

  const Label& label() const { return label_; }
  const std::string& name() const { return peer_->name(); }

  /// From here on, all-reduces are of `bytes` bytes. The first one is verified. Throws Error if
  /// the sums are wrong.
  void verify(std::int64_t bytes);
  /// Microseconds per call, on rank 0.
  double time(std::int64_t calls);

 private:
  void tell(const std::string& what);

  Label label_;
  std::unique_ptr<Peer> peer_;                     // waits for its end, so:
  std::vector<lockstep::dist::Descriptor> turns_;  // closed before that; by rank
};

}  // namespace bench
