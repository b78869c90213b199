#include "lockstep/dist/rendezvous/survival/generation.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>

#include "lockstep/core/error.h"
#include "lockstep/core/text/number.h"
#include "lockstep/dist/rendezvous/ranks.h"
#include "lockstep/dist/rendezvous/socket.h"

namespace lockstep::dist {

namespace {

constexpr std::string_view no_address = "-";

}  // namespace

Place place_in(const Generation& generation, int member) {
  const auto& [number, members, nodes, address] = generation;
  const auto at = std::ranges::find(members, member) - members.begin();
  const int node = nodes[index(at)];
  return {.rank = static_cast<int>(at),
          .size = static_cast<int>(members.size()),
          .local_rank = static_cast<int>(std::count(nodes.begin(), nodes.begin() + at, node)),
          .local_size = static_cast<int>(std::ranges::count(nodes, node))};
}

// "4 - 0@0 2@0 3@1": number, address, member@node.
std::string write_generation(const Generation& generation) {
  std::string line = fmt::format("{} {}", generation.number,
                                 generation.address.empty() ? no_address : generation.address);
  for (std::size_t i = 0; i < generation.members.size(); ++i)
    line += fmt::format(" {}@{}", generation.members[i], generation.nodes[i]);
  return line + '\n';
}

Generation newest_generation(int descriptor) {
  std::string text;
  std::array<char, 4096> part{};
  while (true) {  // from the start: all processes share the descriptor's own position
    const ssize_t got = TEMP_FAILURE_RETRY(
        ::pread(descriptor, part.data(), part.size(), static_cast<off_t>(text.size())));
    check<CommError>(got >= 0, "[survive] cannot read who is left: {}", system_message(errno));
    if (got == 0) break;
    text.append(part.data(), static_cast<std::size_t>(got));
  }
  text.resize(text.rfind('\n') + 1);  // npos + 1 is 0
  check<CommError>(!text.empty(), "[survive] the launcher has not said who is in the job");
  text.pop_back();
  std::istringstream line = classic_stream(text.substr(text.rfind('\n') + 1));
  Generation newest;
  line >> newest.number >> newest.address;
  if (newest.address == no_address) newest.address.clear();
  char at = 0;
  for (int rank = 0, node = 0; line >> rank >> at >> node;) {
    newest.members.push_back(rank);
    newest.nodes.push_back(node);
  }
  return newest;
}

}  // namespace lockstep::dist
