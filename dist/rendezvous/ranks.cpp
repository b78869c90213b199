#include "lockstep/dist/rendezvous/ranks.h"

#include <fmt/format.h>

#include <algorithm>

namespace lockstep::dist {

std::string name_ranks(const std::vector<int>& ranks, std::string_view who) {
  return fmt::format("{}{} {}", who, ranks.size() == 1 ? "" : "s", fmt::join(ranks, ", "));
}

std::string describe_ranks(const std::vector<int>& ranks, std::string_view state,
                           std::string_view who) {
  return fmt::format("{} {} {}", name_ranks(ranks, who), ranks.size() == 1 ? "is" : "are", state);
}

std::string text_of_peer(std::string_view text) {
  std::string result(text.substr(0, text.find('\0')));
  std::ranges::replace_if(
      result, [](char c) { return c < ' ' || c > '~'; }, '?');
  return result;
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
