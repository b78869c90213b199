#include <algorithm>
#include <thread>

#include "lockstep/dist/simulated/sim_world.h"

namespace lockstep::dist {
namespace {

constexpr nanoseconds call_time{100};
constexpr nanoseconds first_jump{1'000'000};  // of an idle world; doubled while nothing moves
constexpr int nobody = -1;

}  // namespace

SimWorld::SimWorld(const SimOptions& given)
    : options(given),
      random_(given.seed),
      ranks_(index(given.size)),
      jump_(first_jump),
      holder_(nobody) {}

SimGroup& SimWorld::group(const std::string& name, const std::vector<int>& members) {
  SimGroup& found = groups_.try_emplace(name, members).first->second;
  check<UsageError>(found.members == members, "[simulate] ranks give other members of '{}'", name);
  for (std::size_t place = 0; place < members.size(); ++place)
    if (state(members[place]).lost) found.gone[place] = true;
  return found;
}

void SimWorld::moved() { jump_ = first_jump; }

// ---- the baton ----

void SimWorld::stir(int rank) {
  state(rank).stirred = true;
  state(rank).waiting = false;
}

void SimWorld::stir_all() {
  for (int rank = 0; rank < options.size; ++rank) stir(rank);
}

void SimWorld::skip_time() {
  if (!events_.empty() && events_.top().first <= clock_ + jump_) {
    clock_ = events_.top().first;
    return;
  }
  clock_ += jump_;
  jump_ = std::min(2 * jump_, duration_cast<nanoseconds>(options.longest_jump));
  stir_all();  // to look at the clock: perhaps they have waited long enough
}

int SimWorld::pick() {
  const auto can_run = [this](const SimRank& it) {
    return !it.ended && !it.waiting && clock_ >= it.stalled_until;
  };
  for (;; skip_time()) {
    for (; !events_.empty() && events_.top().first <= clock_; events_.pop())
      stir(events_.top().second);
    if (std::ranges::all_of(ranks_, &SimRank::ended)) return nobody;
    const auto candidates = std::ranges::count_if(ranks_, can_run);
    if (candidates == 0) continue;
    std::uint64_t chosen = below(static_cast<std::uint64_t>(candidates));
    for (int rank = 0; rank < options.size; ++rank)
      if (can_run(state(rank)) && chosen-- == 0) return rank;
  }
}

void SimWorld::pass_baton(int to) {
  record({'b', static_cast<std::uint64_t>(to), static_cast<std::uint64_t>(clock_.count())});
  const std::lock_guard lock(mutex_);
  holder_ = to;
  if (to != nobody) state(to).turn.notify_one();
}

void SimWorld::wait_for_baton(int rank) {
  std::unique_lock lock(mutex_);
  state(rank).turn.wait(lock, [&] { return holder_ == rank; });
}

void SimWorld::yield(int rank) {
  const int next = pick();
  if (next == rank) return;
  pass_baton(next);
  wait_for_baton(rank);
  if (state(rank).lost) throw SimLost{};
}

// ---- calls of a rank ----

void SimWorld::begin_call(int rank) {
  clock_ += call_time;
  SimRank& me = state(rank);
  ++me.calls;
  if (me.lost) throw SimLost{};
  for (const SimFault& fault : options.faults) {
    if (fault.rank != rank || fault.at_call != me.calls) continue;
    if (fault.kind == SimFault::Kind::lost) {
      lose(rank);
      throw SimLost{};
    }
    stand_still(rank, fault.duration);
  }
}

void SimWorld::stand_still(int rank, Seconds duration) {
  state(rank).stalled_until = clock_ + duration_cast<nanoseconds>(duration);
  stir_at(state(rank).stalled_until, rank);
  yield(rank);
}

void SimWorld::begin_move(int rank) {
  begin_call(rank);
  if (below(static_cast<std::uint64_t>(options.switch_one_in)) == 0) yield(rank);
}

void SimWorld::lose(int rank) {
  state(rank).lost = true;
  state(rank).stalled_until = clock_;
  for (auto& [name, group] : groups_)
    for (std::size_t place = 0; place < group.members.size(); ++place)
      if (group.members[place] == rank) group.gone[place] = true;
  stir_all();
}

nanoseconds SimWorld::arrival(int from, int to, nanoseconds delay) const {
  nanoseconds time = clock_ + delay;
  for (const SimPartition& cut : options.partitions) {
    const auto begin = duration_cast<nanoseconds>(cut.begin),
               end = duration_cast<nanoseconds>(cut.end);
    const auto is_in = [&](int rank) {
      return std::ranges::find(cut.ranks, rank) != cut.ranks.end();
    };
    if (is_in(from) != is_in(to) && clock_ < end && time >= begin) time = std::max(time, end);
  }
  return time;
}

// ---- a run ----

void SimWorld::run_rank(int rank, const SimProgram& program) {
  wait_for_baton(rank);
  try {
    program(rank, sim_transport(*this, groups_.at(""), rank));
  } catch (const SimLost&) {
    // told by RankState::lost
  } catch (...) {
    report_.errors[index(rank)] = std::current_exception();
  }
  state(rank).ended = true;
  stir_all();
  pass_baton(pick());
}

SimReport SimWorld::run(const SimProgram& program) {
  report_.errors.resize(ranks_.size());
  std::vector<int> all;
  for (int rank = 0; rank < options.size; ++rank) all.push_back(rank);
  (void)group("", all);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < options.size; ++rank)
    threads.emplace_back([&, rank] { run_rank(rank, program); });
  pass_baton(pick());
  for (std::thread& thread : threads) thread.join();
  for (const SimRank& it : ranks_) report_.lost.push_back(it.lost);
  report_.end = clock_;
  report_.trace = trace_.value();
  return std::move(report_);
}

SimReport simulate(const SimOptions& options, const SimProgram& program) {
  check<UsageError>(options.size >= 1, "[simulate] a world has at least 1 rank, got {}",
                    options.size);
  return SimWorld(options).run(program);
}

}  // namespace lockstep::dist
