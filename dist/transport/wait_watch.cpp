#include "lockstep/dist/transport/wait_watch.h"

#include <algorithm>

namespace lockstep::dist {

WaitWatch::WaitWatch(Seconds timeout, Seconds longest_nap, std::shared_ptr<WaitBoard> board,
                     std::vector<int> members)
    : timeout_(timeout),
      board_(std::move(board)),
      members_(std::move(members)),
      idle_(longest_nap),
      seen_(board_ ? index(board_->size()) : 0) {}

void WaitWatch::exchange(int awaited, std::string_view call) {
  const bool first = next_look_ == interval_;
  next_look_ = idle_.time() + interval_ / 8;
  if (idle_.time() >= next_note_) {
    next_note_ = idle_.time() + interval_;
    board_->tell(WaitNote::Kind::waits, in_job(awaited), call);
  }
  read_board(first);
  moved_ = std::max(moved_, last_move(awaited));
}

void WaitWatch::read_board(bool first) {
  for (int rank = 0; rank < board_->size(); ++rank) {
    const WaitNote note = board_->of(rank);
    Seen& seen = seen_[index(rank)];
    if (first || note.beat != seen.note.beat) seen = {note, idle_.time(), !first};
  }
}

// When the rank at the end of the chain of waits has told that it is at work, or has withdrawn a
// note. A rank that waits and moves in turn, elsewhere, is heard for one timeout only, and in the
// moment in which it ends.
Seconds WaitWatch::last_move(int awaited) const {
  int rank = in_job(awaited);
  for (int link = 0; link < board_->size() && rank != board_->rank(); ++link) {
    const auto& [note, at, replaced] = seen_[index(rank)];
    if (note.kind == WaitNote::Kind::works) return at;
    if (note.kind == WaitNote::Kind::none && replaced && at <= 9 * interval_) return at;
    const WaitNote* const waits = current(rank);
    if (!waits || waits->kind != WaitNote::Kind::waits) break;
    rank = waits->rank;
  }
  return Seconds(0);
}

const WaitNote* WaitWatch::current(int rank) const {
  const auto& [note, at, replaced] = seen_[index(rank)];
  const bool told = note.kind != WaitNote::Kind::none && note.rank >= 0 &&
                    note.rank < board_->size() && rank != board_->rank();
  const bool repeated = idle_.time() - at <= 3 * interval_;  // it may be late with one note
  return told && (repeated || note.kind == WaitNote::Kind::timed_out) ? &note : nullptr;
}

std::string WaitWatch::name(int rank_in_job) const {
  return fmt::format("rank {}{}", rank_in_job, members_.empty() ? "" : " of the world");
}

WaitWatch::Verdict WaitWatch::blame(int awaited, std::string_view position) {
  if (!board_) return {fmt::format("waiting for rank {} ({})", awaited, position), {}};
  read_board(false);  // this rank may have stood still since the last exchange
  std::vector<int> chain{board_->rank(), in_job(awaited)};
  std::string waits = fmt::format("{} waits for {} ({})", name(chain[0]), name(chain[1]), position);
  bool circle = false;
  while (const WaitNote* note = circle ? nullptr : current(chain.back())) {
    if (note->kind == WaitNote::Kind::works) break;  // for longer than any rank waits
    waits += fmt::format(", which waits for {} in {}", name(note->rank), note->call_text());
    circle = std::ranges::count(chain, note->rank) > 0;
    chain.push_back(note->rank);
    if (note->kind == WaitNote::Kind::timed_out) break;
  }
  board_->tell(WaitNote::Kind::timed_out, circle ? chain[1] : chain.back(), "");
  const std::string here = members_.empty() ? "" : fmt::format(", {}", name(chain[1]));
  if (circle)
    return {
        fmt::format("waiting for rank {}{}: ranks wait for each other: {}", awaited, here, waits),
        {}};
  const Blame blame{{chain.back()}, Fault::hangs};
  if (chain.size() > 2)
    return {fmt::format("waiting for {}, which has not moved: {}", name(chain.back()), waits),
            blame};
  return {fmt::format("waiting for rank {}{} ({})", awaited, here, position), blame};
}

std::string WaitWatch::verdict() const {
  if (!board_ || idle_.time() < interval_) return "";
  for (int rank = 0; rank < board_->size(); ++rank) {
    const WaitNote note = board_->of(rank);
    if (note.kind == WaitNote::Kind::timed_out)
      return fmt::format("{} timed out, waiting for {}", name(rank), name(note.rank));
  }
  return "";
}

}  // namespace lockstep::dist
