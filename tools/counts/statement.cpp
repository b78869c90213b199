// The comments in kernels' files.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "lockstep/tools/counts/cells.h"
#include "lockstep/tools/counts/text.h"
#include "lockstep/tools/facts/text.h"

namespace lockstep::counts {
namespace {

constexpr std::string_view heading = "// Counted (./lockstep count --write; docs/counters.md):";
constexpr std::string_view item = "//   ";
constexpr std::size_t width = 100;

/// "loads 16.00 (100 %), shared stores 1.00 (1.00)".
std::vector<std::string> figures(const Launch& launch) {
  std::vector<std::string> parts;
  const auto add = [&](const char* name, const std::string& figure) {
    if (!figure.empty()) parts.push_back(fmt::format("{} {}", name, figure));
  };
  add("loads", sectors(launch.of(Class::global_load)));
  add("stores", sectors(launch.of(Class::global_store)));
  add("cp.async", sectors(launch.of(Class::copy_load)));
  add("into shared", wavefronts(launch.of(Class::copy_store)));
  add("shared loads", wavefronts(launch.of(Class::shared_load)));
  add("shared stores", wavefronts(launch.of(Class::shared_store)));
  if (launch.copied_4 > 0) add("in 4-byte copies", fmt::format("{} B", launch.copied_4));
  if (launch.copied_16 > 0) add("in 16-byte copies", fmt::format("{} B", launch.copied_16));
  if (launch.box_bytes > 0) add("TMA", fmt::format("{} B", launch.box_bytes));
  return parts;
}

/// Begins with `first`; as many lines as it takes.
void add_item(std::vector<std::string>& lines, const std::string& first,
              const std::vector<std::string>& parts) {
  std::string line = std::string(item) + first;
  const std::string indent(first.find_first_not_of(' ') + 2, ' ');
  for (std::size_t i = 0; i < parts.size(); ++i) {
    const std::string part = parts[i] + (i + 1 < parts.size() ? "," : "");
    if (line.size() + 1 + part.size() > width) {
      lines.push_back(line);
      line = std::string(item) + indent + part;
    } else {
      line += " " + part;
    }
  }
  lines.push_back(line);
}

bool same_figures(const Launch& a, const Launch& b) {
  return short_name(a.kernel) == short_name(b.kernel) && figures(a) == figures(b);
}

void add_counted(std::vector<std::string>& lines, const Counted& counted) {
  const std::string name = counted.problem.name + " " + counted.problem.size + ":";
  const std::string dram = fmt::format("DRAM {:.2f} of the fewest", counted.excess());
  const auto& launches = counted.launches;
  if (launches.size() == 1) {
    std::vector<std::string> parts = figures(launches[0]);
    parts.push_back(dram);
    return add_item(lines, name, parts);
  }
  add_item(lines, name, {fmt::format("{} launches", launches.size()), dram});
  for (auto launch = launches.begin(); launch != launches.end(); ++launch)
    if (std::none_of(launches.begin(), launch,
                     [&](const Launch& other) { return same_figures(*launch, other); }))
      add_item(lines, "  " + short_name(launch->kernel) + ":", figures(*launch));
}

/// The lines [first, second) of the statement.
std::pair<std::size_t, std::size_t> place_of(const std::vector<std::string_view>& lines) {
  const auto begin = std::ranges::find(lines, heading);
  auto end = begin;
  if (begin != lines.end())
    end = std::find_if(begin + 1, lines.end(), [](auto line) { return !line.starts_with(item); });
  return {begin - lines.begin(), end - lines.begin()};
}

}  // namespace

std::map<std::string, std::vector<std::string>> statements(const std::vector<Counted>& all) {
  std::map<std::string, std::vector<std::string>> result;
  for (const Counted& counted : all) {
    std::vector<std::string>& lines = result[counted.problem.source];
    if (lines.empty()) lines.emplace_back(heading);
    add_counted(lines, counted);
  }
  return result;
}

std::vector<std::string> stated_in(const std::string& text) {
  const auto lines = facts::lines_of(text);
  const auto [begin, end] = place_of(lines);
  return {lines.begin() + static_cast<std::ptrdiff_t>(begin),
          lines.begin() + static_cast<std::ptrdiff_t>(end)};
}

std::string with_statement(const std::string& text, const std::vector<std::string>& statement) {
  const auto lines = facts::lines_of(text);
  auto [begin, end] = place_of(lines);
  std::string before, after;
  if (begin == lines.size()) {  // behind the comment at the begin, if there is one
    begin = 0;
    while (begin < lines.size() && lines[begin].starts_with("//")) ++begin;
    end = begin;
    (begin == 0 ? after : before) = begin == 0 ? "\n" : "//\n";
  }
  std::string result;
  for (std::size_t i = 0; i < begin; ++i) result += fmt::format("{}\n", lines[i]);
  result += before;
  for (const std::string& line : statement) result += line + "\n";
  result += after;
  for (std::size_t i = end; i < lines.size(); ++i) result += fmt::format("{}\n", lines[i]);
  return result;
}

}  // namespace lockstep::counts
