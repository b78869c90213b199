#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <set>

#include "lockstep/tools/counts/cells.h"
#include "lockstep/tools/counts/text.h"

namespace lockstep::counts {

std::string sectors(const Sum& sum) {
  if (sum.requests == 0) return "";
  const double each = static_cast<double>(sum.sectors) / static_cast<double>(sum.requests);
  // Not 100 for 99.9.
  const std::uint64_t percent = sum.sectors == 0 ? 100 : sum.fewest_sectors * 100 / sum.sectors;
  return fmt::format("{:.2f} ({} %)", each, percent);
}

std::string wavefronts(const Sum& sum) {
  if (sum.requests == 0) return "";
  const auto each = [&](std::uint64_t total) {
    return static_cast<double>(total) / static_cast<double>(sum.requests);
  };
  return fmt::format("{:.2f} ({:.2f})", each(sum.wavefronts), each(sum.fewest_wavefronts));
}

namespace {

std::string shape(const std::array<unsigned, 3>& volume) {
  if (volume[2] > 1) return fmt::format("{}x{}x{}", volume[0], volume[1], volume[2]);
  return volume[1] > 1 ? fmt::format("{}x{}", volume[0], volume[1]) : fmt::to_string(volume[0]);
}

std::string positive(std::uint64_t number) { return number == 0 ? "" : fmt::to_string(number); }

std::string kib(std::uint64_t bytes) {
  return fmt::format("{:.1f}", static_cast<double>(bytes) / 1024);
}

std::uint64_t blocks_of(const Launch& launch) {
  return std::uint64_t{launch.grid[0]} * launch.grid[1] * launch.grid[2];
}

/// "16 B: 128.0 KiB", what cp.async and TMA copy.
std::string copies(const Launch& launch) {
  std::vector<std::string> parts;
  if (launch.copied_4 > 0) parts.push_back(fmt::format("4 B: {}", kib(launch.copied_4)));
  if (launch.copied_16 > 0) parts.push_back(fmt::format("16 B: {}", kib(launch.copied_16)));
  if (launch.box_bytes > 0) parts.push_back(fmt::format("TMA: {}", kib(launch.box_bytes)));
  return fmt::format("{}", fmt::join(parts, ", "));
}

constexpr std::array<const char*, table_columns> headings = {
    "operation", "kernel",      "grid x block", "loads",         "stores",
    "cp.async",  "into shared", "shared loads", "shared stores", "copies, KiB",
    "atomics",   "barriers",    "shuffles",     "DRAM, KiB",     "DRAM / fewest"};

}  // namespace

std::vector<Cells> rows_of(const Counted& counted) {
  std::vector<Cells> rows;
  for (const Launch& launch : counted.launches) {
    const bool first = rows.empty();
    rows.push_back({first ? counted.problem.name + " " + counted.problem.size : "",
                    short_name(launch.kernel), shape(launch.grid) + " x " + shape(launch.block),
                    sectors(launch.of(Class::global_load)), sectors(launch.of(Class::global_store)),
                    sectors(launch.of(Class::copy_load)), wavefronts(launch.of(Class::copy_store)),
                    wavefronts(launch.of(Class::shared_load)),
                    wavefronts(launch.of(Class::shared_store)), copies(launch),
                    positive(launch.of(Class::global_atomic).requests +
                             launch.of(Class::shared_atomic).requests),
                    positive(launch.barriers() / blocks_of(launch)), positive(launch.shuffles()),
                    kib(launch.read) + " + " + kib(launch.written),
                    first ? fmt::format("{:.2f}", counted.excess()) : ""});
  }
  return rows;
}

const Cells& headings_of_table() {
  static const Cells all(headings.begin(), headings.end());
  return all;
}

std::string table(const std::vector<Counted>& all) {
  std::vector<Cells> rows{headings_of_table()};
  for (const Counted& counted : all)
    for (Cells& row : rows_of(counted)) rows.push_back(std::move(row));
  std::array<std::size_t, table_columns> widths{};
  for (const Cells& row : rows)
    for (std::size_t c = 0; c < table_columns; ++c) widths[c] = std::max(widths[c], row[c].size());
  std::string text;
  for (const Cells& row : rows) {
    std::string line;
    // A column that is empty everywhere is left out.
    for (std::size_t c = 0; c < table_columns; ++c)
      if (std::any_of(rows.begin() + 1, rows.end(), [&](const auto& r) { return !r[c].empty(); }))
        line += fmt::format("{:<{}}  ", row[c], widths[c]);
    line.resize(line.find_last_not_of(' ') + 1);
    text += (text.empty() ? "" : "\n") + line;
  }
  return text;
}

namespace {

std::uint64_t waste(const Sum& sum) {
  return sum.sectors - sum.fewest_sectors + sum.wavefronts - sum.fewest_wavefronts;
}

/// What wastes something in a launch, by its line: an instruction may have become several.
struct Wasteful {
  std::string place;
  Class what;
  Sum sum;
};

std::vector<Wasteful> wasteful_lines_of(const Launch& launch) {
  std::vector<Wasteful> lines;
  for (const auto& [caller, what, sum] : launch.lines) {
    if (waste(sum) == 0) continue;
    const std::string place = simt::counters::place_of(caller);
    const auto same = std::ranges::find_if(
        lines, [&, kind = what](const auto& l) { return l.place == place && l.what == kind; });
    if (same == lines.end())
      lines.push_back({place, what, sum});
    else
      same->sum += sum;
  }
  std::ranges::stable_sort(lines, std::greater{}, [](const auto& l) { return waste(l.sum); });
  return lines;
}

}  // namespace

std::string wasteful_lines(const std::vector<Counted>& all) {
  std::string text;
  for (const Counted& counted : all)
    for (const Launch& launch : counted.launches) {
      const std::vector<Wasteful> lines = wasteful_lines_of(launch);
      if (lines.empty()) continue;
      text += fmt::format("\n{} {}: {}\n", counted.problem.name, counted.problem.size,
                          short_name(launch.kernel));
      for (const auto& [place, what, sum] : lines)
        text += fmt::format("  {}: {}, {} requests, {}\n", place, simt::counters::name_of(what),
                            sum.requests,
                            simt::counters::is_global(what) ? sectors(sum) + " sectors"
                                                            : wavefronts(sum) + " wavefronts");
    }
  return text;
}

}  // namespace lockstep::counts
