// A launcher of a job that survives (survivors.h): node 0's launcher decides, each launcher carries
// out.

#include <fmt/format.h>

#include <csignal>
#include <cstdlib>

#include "lockstep/core/error.h"
#include "lockstep/launch/launcher.h"

namespace lockstep::launch {

using Kind = Order::Kind;

namespace {

/// In an order to fail: others could have gone on without the rank, but have to stop.
constexpr const char* job_ends = "the job ends";

void show(const std::string& line) { dist::write_all(STDERR_FILENO, line); }

}  // namespace

// What this launcher has seen.
void Launcher::hear(const RankEvent& event) {
  if (!job_.plan().respawn) return;
  if (!survivors_) return nodes_.send(event);
  // No rank is lost in a job that ends.
  if (event.kind == RankEvent::Kind::killed && (ends() || nodes_.stopping())) {
    const int node = survivors_->node_of(event.rank);
    return give({{Kind::fail, node, event.rank, job_ends}});
  }
  give(survivors_->take(event));
}

void Launcher::give(const std::vector<Order>& orders) {
  for (const Order& order : orders) {
    if (order.node == job_.plan().node) {
      carry_out(order);
      continue;
    }
    if (order.kind == Kind::kill) nodes_.doubt(order.node);
    nodes_.send(order);
  }
}

void Launcher::take_messages() {
  for (const RankEvent& event : nodes_.take_events()) hear(event);
  for (const Order& order : nodes_.take_orders()) carry_out(order);
}

void Launcher::carry_out(const Order& order) {
  switch (order.kind) {
    case Kind::tell: return show(order.line);
    case Kind::publish:
      ranks_changed_ = true;
      generation_ = std::atoi(order.line.c_str());
      return job_.publish(order.line);
    case Kind::start: return start_added(order.rank);
    default: break;
  }
  const std::size_t place = place_of(order.rank);
  if (place == ranks_.size()) return;  // it could not be started: node 0 will hear of that
  Rank& rank = ranks_[place];
  if (order.kind == Kind::show) {
    rank.shown = true;
    return;
  }
  if (order.kind == Kind::kill || order.kind == Kind::forget) kill(-rank.process, SIGKILL);
  if (order.kind == Kind::kill) return;
  rank.asked = false;
  if (order.kind == Kind::fail) {
    outcomes_[place].stopped = order.line == job_ends;
    return plan_to_stop();
  }
  rank.lost = true;
  outcomes_[place] = {.order = outcomes_[place].order, .lost = true};
}

// If it cannot be started, that is no reason for the others to end.
void Launcher::start_added(int number) {
  job_.add(number);
  try {
    start_one();
  } catch (const Error& error) {
    job_.drop_added();
    show(fmt::format("cannot add a rank: {}\n", error.what()));
    hear({RankEvent::Kind::not_started, number});
  }
}

// The user wants more, on this node.
void Launcher::want_ranks(int count) {
  if (!job_.plan().respawn)
    return show("cannot add a rank: [launch] a rank can join a job with --survive\n");
  if (nodes_.reported()) return show("cannot add a rank: the ranks of this node have ended\n");
  for (int i = 0; i < count; ++i) hear({RankEvent::Kind::wanted, job_.plan().node});
}

// Node 0 asks this about another node.
bool Launcher::may_lose_node(int node, const std::string& how) {
  if (ends() || !survivors_->others_than_node(node)) return false;
  give(survivors_->lose_node(node, how));
  return true;
}

// The number of ranks if there is no such rank.
std::size_t Launcher::place_of(int number) const {
  std::size_t place = 0;
  while (place < ranks_.size() && job_.plan().number(std::ptrdiff_t(place)) != number) ++place;
  return place;
}

}  // namespace lockstep::launch
