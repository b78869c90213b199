#pragma once
/// Object collectives: texts from all ranks to all, a check that ranks agree, and work that one
/// rank does for all. All block, throw what the communicator throws, and belong to one thread like
/// it.

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

/// A line that is not the same in all ranks' texts, and which ranks have what there: in the order
/// of each one's first rank.
struct Difference {
  std::size_t line;
  std::vector<std::pair<std::string, std::vector<int>>> said;
};
/// In the order of the lines; a text that is shorter has "nothing" there. A pure function.
std::vector<Difference> differences(std::span<const std::string> texts);

/// Throws StateError on every rank, naming the first difference, unless all ranks pass the same
/// text, which has one line per item. Collective.
void check_same(Communicator& communicator, std::string_view what, std::string_view text);

/// Rank 0 runs `task` (writes a checkpoint, evaluates); no rank returns before it has ended. If it
/// throws, every rank throws: rank 0 the same exception, the others a PeerError with its message,
/// which is a consequence. Collective; but `task` itself must not call collectives. The others wait
/// for at most `timeout`, instead of the communicator's own.
void on_rank0(Communicator& communicator, const std::function<void()>& task,
              Seconds timeout = Seconds(3600));

}  // namespace lockstep::dist
