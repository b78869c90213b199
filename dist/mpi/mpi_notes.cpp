#include "lockstep/dist/mpi/mpi_notes.h"

#include <algorithm>
#include <list>
#include <vector>

#include "lockstep/dist/mpi/mpi_process.h"

namespace lockstep::dist {
namespace {

constexpr int tag = 0;

/// A note must stay where it is until MPI has sent it, which may be after its communicator is gone.
struct Outgoing {
  MpiNote note;
  std::vector<MPI_Request> requests;
};

std::list<Outgoing>& outbox() {
  static auto* const box = new std::list<Outgoing>;  // never freed: MPI_Finalize still sends
  return *box;
}

bool is_sent(Outgoing& outgoing) {
  int sent = 0;
  MPI_Testall(static_cast<int>(outgoing.requests.size()), outgoing.requests.data(), &sent,
              MPI_STATUSES_IGNORE);
  return sent != 0;
}

}  // namespace

MpiNote MpiNote::gave_up(std::string_view reason) {
  MpiNote note{.kind = Kind::gave_up};
  std::copy_n(reason.begin(), std::min(reason.size(), note.text.size()), note.text.begin());
  return note;
}

void MpiNotes::tell_all(const MpiNote& note) noexcept {
  try {
    int rank = 0, size = 0;
    check_mpi(MPI_Comm_rank(comm_, &rank), "MPI_Comm_rank");
    check_mpi(MPI_Comm_size(comm_, &size), "MPI_Comm_size");
    outbox().remove_if(is_sent);
    Outgoing& outgoing = outbox().emplace_back(
        Outgoing{note, std::vector<MPI_Request>(index(size), MPI_REQUEST_NULL)});
    for (int peer = 0; peer < size; ++peer) {
      if (peer == rank) continue;
      check_mpi(MPI_Isend(&outgoing.note, sizeof note, MPI_BYTE, peer, tag, comm_,
                          &outgoing.requests[index(peer)]),
                "MPI_Isend");
    }
  } catch (const std::exception&) {
    // A rank that misses the note waits until its timeout.
  }
}

std::optional<MpiNotes::Received> MpiNotes::next() noexcept {
  int arrived = 0;
  MPI_Status status;
  if (MPI_Iprobe(MPI_ANY_SOURCE, tag, comm_, &arrived, &status) != MPI_SUCCESS || !arrived)
    return {};
  Received received{status.MPI_SOURCE, {}};
  if (MPI_Recv(&received.note, sizeof received.note, MPI_BYTE, received.from, tag, comm_,
               MPI_STATUS_IGNORE) != MPI_SUCCESS)
    return {};
  return received;
}

}  // namespace lockstep::dist
