#pragma once
/// The algorithms: each appends its steps to a plan. reduce_scatter leaves with every rank the sum
/// of the part that it owns; all_gather begins with that and leaves all parts with every rank.
/// `header`: the first message to each peer carries one, because no step before it has done that.
///
/// The costs in their files are those of the alpha-beta-gamma model, for S bytes, n ranks and p =
/// the largest power of two up to n:
///   a   seconds until a small message has arrived (alpha)
///   b   seconds per byte of a stream (beta)
///   g   seconds per byte that is added (gamma)

#include <span>

#include "lockstep/dist/collectives/plan/plan.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

void ring_reduce_scatter(const PlanInput& input, Plan& plan);
void ring_all_gather(const PlanInput& input, bool header, Plan& plan);

/// Ranks that run an algorithm among themselves, as one of them sees it, and what they work on.
struct Group {
  int size = 1;
  int place = 0;                 ///< of this rank among them
  Range elements{};              ///< of the buffer
  int owners = 1;                ///< the first so many members own a part of them
  std::span<const int> ranks{};  ///< by place; empty: all ranks of the world

  int rank(int member) const { return ranks.empty() ? member : ranks[index(member)]; }
  Range part(int member) const;
  /// Sends nothing to the member `distance` further on and receives nothing from the one as far
  /// behind, which is `from`.
  Step shift(int distance) const;
  int from(int distance) const { return (place - distance + size) % size; }
  /// The slot for what comes from a member.
  int slot(int member) const { return member < place ? member : member - 1; }
};
/// All ranks, on the whole buffer.
Group everyone(const PlanInput& input);

void two_shot_reduce_scatter(const Group& group, Plan& plan);
void two_shot_all_gather(const Group& group, bool header, Plan& plan);
void two_shot_shared(const PlanInput& input, Plan& plan);
void one_shot_all_reduce(const PlanInput& input, Plan& plan);
void halving_all_reduce(const PlanInput& input, Plan& plan);
void hierarchical_all_reduce(const PlanInput& input, Plan& plan);
void tree_broadcast(const PlanInput& input, Plan& plan);
void dissemination_barrier(const PlanInput& input, Plan& plan);

/// A header to the next rank and one from the rank before, for plans that do not begin with these.
void greet(const PlanInput& input, Plan& plan);

}  // namespace lockstep::dist
