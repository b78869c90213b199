#include "lockstep/launch/survivors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstring>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/dist/rendezvous/frames.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::launch {

using dist::index;

namespace {

std::string name_of_signal(int number) {
  const char* const name = sigabbrev_np(number);
  return name ? fmt::format("SIG{}", name) : fmt::format("signal {}", number);
}

std::string go_on(std::size_t left) {
  return left == 0   ? std::string("the others have ended well")
         : left == 1 ? std::string("1 rank goes on")
                     : fmt::format("{} ranks go on", left);
}

}  // namespace

std::string Order::text() const {
  return dist::pack(
      {std::to_string(static_cast<int>(kind)), std::to_string(node), std::to_string(rank), line});
}

Order Order::parse(std::string_view text) {
  const std::vector<std::string> parts = dist::unpack(text);
  check<CommError>(parts.size() == 4, "[survive] an order of {} parts", parts.size());
  std::array<int, 3> numbers{};
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    const auto number = dist::parse_number<int>(parts[i]);
    check<CommError>(number && *number >= 0, "[survive] '{}' is not a number", parts[i]);
    numbers[i] = *number;
  }
  check<CommError>(numbers[0] <= static_cast<int>(Kind::show), "[survive] an order of kind {}",
                   numbers[0]);
  return {static_cast<Kind>(numbers[0]), numbers[1], numbers[2], parts[3]};
}

Survivors::Survivors(const std::vector<int>& nodes, std::vector<std::string> addresses, int respawn)
    : addresses_(std::move(addresses)), respawns_(respawn) {
  if (addresses_.empty()) addresses_.emplace_back();
  for (const int node : nodes) ranks_.push_back({.node = node, .joined = true});
  generation_.number = -1;
  publish();
  orders_.clear();  // the launchers begin with this generation
}

Survivors::Rank& Survivors::rank(int number) {
  check<CommError>(number >= 0 && index(number) < ranks_.size(), "[survive] there is no rank {}",
                   number);
  return ranks_[index(number)];
}

std::vector<Order> Survivors::take(const RankEvent& event) {
  using enum RankEvent::Kind;
  const int r = event.rank;
  switch (event.kind) {
    case killed: lose(r, event.number); break;
    case not_started: rank(r).state = State::lost; break;
    case ended_well: end_well(index(r)); break;
    case suspected: suspect(event); break;
    case ready: let_in(rank(r), r); break;
    case joined: rank(r).joined = true; break;
    case limited: most_ = event.number; break;
    case wanted: add(r); break;
    default: break;
  }
  return std::exchange(orders_, {});
}

bool Survivors::others_than_node(int node) const {
  return std::ranges::any_of(ranks_,
                             [&](const Rank& rank) { return rank.node != node && rank.counts(); });
}

bool Survivors::finished() const {
  return std::ranges::find(ranks_, State::ended_well, &Rank::state) != ranks_.end();
}

// The last rank is not lost: its end is the job's end. A rank beside others that have ended well is
// not the last: survive() ends with a barrier, so all ranks have done their work by then.
void Survivors::lose(int number, int signal) {
  Rank& lost = rank(number);
  if (lost.state == State::lost) return order(Order::Kind::forget, number);  // it came too late
  const bool alone = std::ranges::none_of(
      ranks_, [&](const Rank& other) { return &other != &lost && other.counts(); });
  if (alone) return order(Order::Kind::fail, number);
  const bool was_in = std::exchange(lost.state, State::lost) == State::living;
  if (was_in) publish();
  tell(fmt::format("rank {} {}was killed by {}{}; {}", number,
                   lost.suspicion.known() ? deed_of(lost.suspicion) + " and " : "",
                   name_of_signal(signal), was_in ? "" : " before it had joined",
                   go_on(generation_.members.size())));
  if (respawns_ > 0 && !finished()) {
    --respawns_;
    add(lost.node);
  }
  order(Order::Kind::forget, number);  // after a start: a launcher without ranks reports its end
  show_first();
}

std::vector<Order> Survivors::lose_node(int node, const std::string& how) {
  std::vector<int> gone;
  bool was_in = false;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    if (rank.node != node || (rank.state != State::living && rank.state != State::starting))
      continue;
    was_in |= rank.state == State::living;
    rank.state = State::lost;
    gone.push_back(static_cast<int>(r));
  }
  if (was_in) publish();
  if (!gone.empty())
    tell(fmt::format("node {} ({}) is lost: {}; {}", node, dist::name_ranks(gone), how,
                     go_on(generation_.members.size())));
  show_first();
  return std::exchange(orders_, {});
}

// A rank that joins must not wait for this one. Ranks that are only on their way come too late.
void Survivors::end_well(std::size_t r) {
  rank(static_cast<int>(r)).state = State::ended_well;
  for (std::size_t other = 0; other < ranks_.size(); ++other) {
    if (ranks_[other].joined || ranks_[other].state == State::lost) continue;
    ranks_[other].state = State::lost;
    order(Order::Kind::kill, static_cast<int>(other));
  }
  publish();
}

void Survivors::let_in(Rank& rank, int number) {
  if (rank.state != State::starting) return;
  rank.state = State::living;
  publish();
  tell(fmt::format("rank {} joins; {}", number, go_on(generation_.members.size())));
}

// One suspicion per generation: the loss of that rank makes a new generation, and what others say
// of the old one no longer counts.
void Survivors::suspect(const RankEvent& suspicion) {
  const int r = suspicion.rank;
  if (suspicion.number != generation_.number || suspicious_ == generation_.number ||
      !generation_.has(r))
    return;
  suspicious_ = generation_.number;
  rank(r).suspicion = suspicion.failure.blame;
  order(Order::Kind::kill, r);
}

// The new rank joins when it is ready.
void Survivors::add(int node) {
  if (finished()) return;
  if (ranks_.size() >= index(dist::max_ranks))
    return tell(fmt::format(
        "cannot add a rank: [launch] a job has had {} ranks, and can have no more", ranks_.size()));
  const auto there =
      std::ranges::count_if(ranks_, [](const Rank& rank) { return rank.state != State::lost; });
  if (most_ > 0 && there >= most_)
    return tell(fmt::format(
        "cannot add a rank: the job has {}, and its program trains on {} at most", there, most_));
  ranks_.push_back({.node = node, .state = State::starting});
  order(Order::Kind::start, static_cast<int>(ranks_.size()) - 1);
}

// Lets the user see what rank 0's successor writes to stderr.
void Survivors::show_first() {
  const auto first =
      std::ranges::find_if(ranks_, [](const Rank& rank) { return rank.state != State::lost; });
  const int number = static_cast<int>(first - ranks_.begin());
  if (first == ranks_.end() || number == shown_) return;
  shown_ = number;
  order(Order::Kind::show, number);
}

void Survivors::publish() {
  generation_ = {.number = generation_.number + 1};
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].state != State::living) continue;
    generation_.members.push_back(static_cast<int>(r));
    generation_.nodes.push_back(ranks_[r].node);
  }
  if (!generation_.members.empty())
    generation_.address = addresses_[index(generation_.nodes.front())];
  const std::string line = dist::write_generation(generation_);
  for (std::size_t node = 0; node < addresses_.size(); ++node)
    orders_.push_back({Order::Kind::publish, static_cast<int>(node), 0, line});
}

}  // namespace lockstep::launch
