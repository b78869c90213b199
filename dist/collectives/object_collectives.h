#pragma once
/// Object collectives: texts from all ranks to all, a sum of numbers, a check that ranks agree, and
/// work that one rank does for all. All block, throw what the communicator throws, and belong to
/// one thread like it.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/dist/collectives/communicator.h"

namespace lockstep::dist {

/// Every rank's text, by rank. Collective. Errors call it `name`. `timeout`: how long a rank waits
/// for the others to come, if not for the communicator's.
std::vector<std::string> gather_text(Communicator& communicator, std::string_view text,
                                     std::string_view name = "texts",
                                     std::optional<Seconds> timeout = {});

/// What ranks have, and which ranks have it: in the order of each one's first rank.
using RanksByValue = std::vector<std::pair<std::string, std::vector<int>>>;
RanksByValue ranks_by_value(std::span<const std::string> values);  ///< from what each rank has
/// A line that is not the same in all ranks' texts.
struct Difference {
  std::size_t line;
  RanksByValue said;
};
/// In the order of the lines; a text that is shorter has "nothing" there. A pure function.
std::vector<Difference> differences(std::span<const std::string> texts);
/// "lr 0.2 on rank 1, lr 0.1 on ranks 0, 2: rank 1 is in the minority". Without a majority it
/// blames no rank. A pure function.
std::string describe(const RanksByValue& said);
/// With the numbers by which people know the ranks (Membership::known_as).
RanksByValue as_known(const Communicator& communicator, RanksByValue said);
/// For Error::blame; no rank without a majority.
Blame in_minority(const Communicator& communicator, const RanksByValue& said);

/// All ranks are about to throw the same error, and each calls this before. No rank ends before all
/// have come here: else a slow rank would report that another has ended. Throws no such error
/// itself.
void meet_before_error(Communicator& communicator, std::string_view what);

/// Throws StateError on every rank, with what each has at the first difference, unless all ranks
/// pass the same text, which has one line per item. Collective.
void check_same(Communicator& communicator, std::string_view what, std::string_view text);

/// The sum of the ranks' values, the same bits on every rank. Collective.
///
///   sum += loss.item() * batch.weight.local;                     // in each step of an epoch
///   mean = dist::sum_over_ranks(world, sum) / train.size();      // after it
double sum_over_ranks(Communicator& communicator, double value);

/// Rank 0 runs `task` (writes a checkpoint, evaluates); no rank returns before it has ended. If it
/// throws, every rank throws: rank 0 the same exception, the others a PeerError with its message,
/// which is a consequence. Collective; but `task` itself must not call collectives.
///
/// The others wait as long as rank 0 is at work, an hour at most: it computes with tensors, hashes,
/// writes a file (core/system/atomic_file.h), or waits for a slow disk or the like
/// (core/system/progress.h). If it does nothing of that for the communicator's timeout, because it
/// was stopped, or loops, it hangs. A task that does other work for so long needs a `timeout`: then
/// the others wait for that long, also if rank 0 hangs.
void on_rank0(Communicator& communicator, const std::function<void()>& task,
              std::optional<Seconds> timeout = {});

/// Every rank runs its `task`; no rank returns before all have ended. If one throws, every rank
/// throws: that rank the same exception, the others a PeerError with the message of the first that
/// threw. Otherwise as on_rank0.
void on_every_rank(Communicator& communicator, const std::function<void()>& task,
                   std::optional<Seconds> timeout = {});

}  // namespace lockstep::dist
