#include "lockstep/dist/rendezvous/events/rank_event.h"

#include <fmt/format.h>

#include <algorithm>
#include <climits>
#include <utility>
#include <vector>

#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {
namespace {

constexpr char separator = '\t';  // no text of one line has it
constexpr std::size_t numbers = 8, longest_detail = 300, longest_list = 400;
constexpr std::size_t longest_line = PIPE_BUF - 1;  // and its newline

// Ranks that do not fit are left out: one is enough for what follows.
std::string list(const std::vector<int>& ranks) {
  std::string text;
  for (const int rank : ranks)
    if (text.size() < longest_list - 12) text += fmt::format("{}{}", text.empty() ? "" : ",", rank);
  return text;
}

std::vector<std::string_view> split(std::string_view text, char by) {
  std::vector<std::string_view> parts;
  for (std::size_t end = 0; end != text.npos; text.remove_prefix(end == text.npos ? 0 : end + 1)) {
    end = text.find(by);
    parts.push_back(text.substr(0, end));
  }
  return parts;
}

std::optional<std::vector<int>> read_list(std::string_view text) {
  std::vector<int> ranks;
  if (text.empty()) return ranks;
  for (const std::string_view part : split(text, ',')) {
    const auto rank = parse_number<int>(part);
    if (!rank || *rank < 0) return std::nullopt;
    ranks.push_back(*rank);
  }
  return ranks;
}

template <class T>
bool read_to(T& value, std::string_view text) {
  const auto number = parse_number<T>(text);
  value = number.value_or(T());
  return number && *number >= T();
}

}  // namespace

// Cut between two characters of UTF-8, so that cutting it once more changes nothing.
std::string one_line(std::string_view text, std::size_t longest) {
  std::string line = visible(std::string(text));
  const auto continues = [](char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; };
  std::size_t end = std::min(longest, line.size());
  while (end < line.size() && end > 0 && continues(line[end])) --end;
  line.resize(end);
  return line;
}

// The message has what the rest leaves.
std::string RankEvent::text() const {
  const auto& [consequence, message, blame] = failure;
  const std::string rest = fmt::format(
      "{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t{}\t", static_cast<int>(kind), rank, number, seconds,
      replica.model, replica.fingerprint, consequence ? 1 : 0, static_cast<int>(blame.fault),
      list(blame.ranks), one_line(blame.detail, longest_detail));
  return rest + one_line(message, longest_line - rest.size()) + '\n';
}

std::optional<RankEvent> RankEvent::read(std::string_view line) {
  if (line.ends_with('\n')) line.remove_suffix(1);
  const std::vector<std::string_view> parts = split(line, separator);
  if (parts.size() != numbers + 3) return std::nullopt;
  RankEvent event;
  int kind = 0, consequence = 0, fault = 0;
  const auto ranks = read_list(parts[numbers]);
  const bool whole = read_to(kind, parts[0]) && read_to(event.rank, parts[1]) &&
                     read_to(event.number, parts[2]) && read_to(event.seconds, parts[3]) &&
                     read_to(event.replica.model, parts[4]) &&
                     read_to(event.replica.fingerprint, parts[5]) &&
                     read_to(consequence, parts[6]) && read_to(fault, parts[7]) && ranks;
  if (!whole || kind > static_cast<int>(Kind::wanted) || consequence > 1 ||
      fault > static_cast<int>(Fault::miscomputed))
    return std::nullopt;
  event.kind = static_cast<Kind>(kind);
  event.failure = {
      consequence == 1,
      one_line(parts[numbers + 2], longest_line),
      {*ranks, static_cast<Fault>(fault), one_line(parts[numbers + 1], longest_detail)}};
  return event;
}

RankEvent suspicion(int generation, Blame blame) {
  RankEvent event{
      .kind = RankEvent::Kind::suspected, .rank = blame.ranks.at(0), .number = generation};
  event.failure.blame = std::move(blame);
  return event;
}

}  // namespace lockstep::dist
