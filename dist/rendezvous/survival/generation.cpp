#include "lockstep/dist/rendezvous/survival/generation.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <sstream>

#include "lockstep/core/error.h"
#include "lockstep/core/text/number.h"
#include "lockstep/dist/rendezvous/left_replicas.h"
#include "lockstep/dist/rendezvous/socket.h"

namespace lockstep::dist {

namespace {

constexpr std::string_view no_address = "-";
constexpr std::string_view lost_word = "lost ", joined_word = "joined ", most_word = "most ",
                           ready_line = "ready", survives_line = "survives";

// Best effort: a line is shorter than PIPE_BUF, so it is written whole.
void tell_launcher(const std::string& line) {
  const std::optional<int> pipe = launcher_pipe();
  if (!pipe) return;
  [[maybe_unused]] const auto written = ::write(*pipe, line.data(), line.size());
}

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

void suspect(const Suspicion& suspicion) noexcept {
  try {
    tell_launcher(fmt::format("{}{} {} {}\n", lost_word, suspicion.generation, suspicion.rank,
                              suspicion.why.substr(0, 300)));
  } catch (...) {  // out of memory: another rank may tell it
  }
}

void tell_joined(int generation) noexcept {
  try {
    tell_launcher(fmt::format("{}{}\n", joined_word, generation));
  } catch (...) {  // out of memory: replicas of a world that failed may be compared
  }
}

void tell_most_ranks(int ranks) noexcept {
  try {
    tell_launcher(fmt::format("{}{}\n", most_word, ranks));
  } catch (...) {  // out of memory: another rank tells it
  }
}

std::optional<int> read_most_ranks(std::string_view line) {
  if (!line.starts_with(most_word)) return std::nullopt;
  return parse_number<int>(line.substr(most_word.size()));
}

void tell_ready() noexcept {
  try {
    tell_launcher(fmt::format("{}\n", ready_line));
  } catch (...) {  // out of memory: it is not let in, and says so
  }
}

void tell_survives() noexcept {
  try {
    tell_launcher(fmt::format("{}\n", survives_line));
  } catch (...) {  // out of memory: only what the launcher reports of a later failure is less clear
  }
}

bool is_survives_line(std::string_view line) { return line == survives_line; }

bool is_ready_line(std::string_view line) { return line == ready_line; }

bool is_joined_line(std::string_view line) { return line.starts_with(joined_word); }

std::optional<Suspicion> read_suspicion(std::string_view line) {
  if (!line.starts_with(lost_word)) return std::nullopt;
  std::istringstream words = classic_stream(line.substr(lost_word.size()));
  Suspicion suspicion{};
  if (!(words >> suspicion.generation >> suspicion.rank)) return std::nullopt;
  std::getline(words >> std::ws, suspicion.why);
  return suspicion;
}

}  // namespace lockstep::dist
