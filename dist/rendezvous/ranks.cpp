#include "lockstep/dist/rendezvous/ranks.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::dist {

std::string describe_ranks(const std::vector<int>& ranks, std::string_view state,
                           std::string_view who) {
  const bool one = ranks.size() == 1;
  return fmt::format("{}{} {} {} {}", who, one ? "" : "s", fmt::join(ranks, ", "),
                     one ? "is" : "are", state);
}

LostPeer::LostPeer(int rank_, Fault how_)
    : PeerError(text_of({{rank_}, how_}) +
                (how_ == Fault::left ? ": it ended its World, or exited, without this call" : "")),
      rank(rank_),
      how(how_) {}

NodeMap node_map(const std::vector<std::string>& names) {
  NodeMap map;
  std::vector<std::string> seen;
  for (std::size_t r = 0; r < names.size(); ++r) {
    const auto node = static_cast<std::size_t>(std::ranges::find(seen, names[r]) - seen.begin());
    if (node == seen.size()) {
      seen.push_back(names[r]);
      map.ranks.emplace_back();
    }
    map.node_of.push_back(static_cast<int>(node));
    map.place_of.push_back(static_cast<int>(map.ranks[node].size()));
    map.ranks[node].push_back(static_cast<int>(r));
  }
  if (!map.ranks.empty())
    map.local_shards =
        static_cast<int>(std::ranges::min_element(map.ranks, {}, &std::vector<int>::size)->size());
  return map;
}

}  // namespace lockstep::dist
