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

void tell_all(MPI_Comm comm, const MpiNote& note) noexcept {
  try {
    int rank = 0;
    check_mpi(MPI_Comm_rank(comm, &rank), "MPI_Comm_rank");
    outbox().remove_if(is_sent);
    Outgoing& outgoing = outbox().emplace_back(Outgoing{note, {}});
    for (int peer = 0; peer < ranks_of(comm); ++peer)
      if (peer != rank)
        check_mpi(MPI_Isend(&outgoing.note, sizeof note, MPI_BYTE, peer, tag, comm,
                            &outgoing.requests.emplace_back(MPI_REQUEST_NULL)),
                  "MPI_Isend");
  } catch (const std::exception&) {
    // A rank that misses the note waits until its timeout.
  }
}

std::optional<MpiNote> next_note(MPI_Comm comm) noexcept {
  int arrived = 0;
  MPI_Status status;
  if (MPI_Iprobe(MPI_ANY_SOURCE, tag, comm, &arrived, &status) != MPI_SUCCESS || !arrived)
    return {};
  MpiNote note;
  if (MPI_Recv(&note, sizeof note, MPI_BYTE, status.MPI_SOURCE, tag, comm, MPI_STATUS_IGNORE) !=
      MPI_SUCCESS)
    return {};
  note.from = status.MPI_SOURCE;
  return note;
}

}  // namespace lockstep::dist
