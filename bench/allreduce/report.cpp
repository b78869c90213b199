#include "report.h"

#include <fmt/format.h>

#include <algorithm>
#include <fstream>
#include <string_view>

#include "lockstep/dist/transport/backoff.h"

namespace bench {
namespace {

const Timing* find(const std::vector<Timing>& timings, std::string_view comm,
                   std::string_view transport) {
  const auto found = std::ranges::find_if(timings, [&](const Timing& timing) {
    return timing.label.comm == comm && (transport.empty() || timing.label.transport == transport);
  });
  return found == timings.end() ? nullptr : &*found;
}

// What users get of a transport: --comm auto, or else the first that was asked for.
const Timing* typical(const std::vector<Timing>& timings, std::string_view transport) {
  if (const Timing* const chosen = find(timings, "auto", transport)) return chosen;
  const auto found = std::ranges::find_if(timings, [&](const Timing& timing) {
    return timing.label.is_ours() && timing.label.transport == transport;
  });
  return found == timings.end() ? nullptr : &*found;
}

// The bound of ranks that share memory, or of those that do not.
const Timing* bound_of(const std::vector<Timing>& timings, const Label& label) {
  return find(timings, "bound", label.transport == "tcp" || label.comm == "gloo" ? "tcp" : "shm");
}

// How many times as long as `timing` the other takes, in `format`; "-" if one is missing.
std::string times(const Timing* other, const Timing* timing, bool percent = false) {
  if (!other || !timing || other == timing) return "-";
  const double ratio = other->figures.median() / timing->figures.median();
  return percent ? fmt::format("{:.0f} %", 100 * ratio) : fmt::format("{:.2f}x", ratio);
}

std::string microseconds(const Timing* timing) {
  if (!timing) return "-";
  const double us = timing->figures.median();
  return us < 100 ? fmt::format("{:.2f}", us) : fmt::format("{:.0f}", us);
}

std::string processor() {
  std::ifstream info("/proc/cpuinfo");
  for (std::string line; std::getline(info, line);)
    if (line.starts_with("model name") && line.find(": ") != std::string::npos)
      return line.substr(line.find(": ") + 2);
  return "unknown processor";
}

}  // namespace

double algorithm_bandwidth(const Timing& timing) {
  return static_cast<double>(timing.bytes) / timing.figures.median() / 1e3;
}

double bus_bandwidth(const Timing& timing, int ranks) {
  return algorithm_bandwidth(timing) * 2 * (ranks - 1) / ranks;
}

std::string size_text(std::int64_t bytes) {
  constexpr std::int64_t kib = 1 << 10, mib = 1 << 20;
  if (bytes >= mib && bytes % mib == 0) return fmt::format("{} MiB", bytes / mib);
  if (bytes >= kib && bytes % kib == 0) return fmt::format("{} KiB", bytes / kib);
  return fmt::format("{} B", bytes);
}

void print_heading(int ranks, int rounds) {
  fmt::print(
      "All-reduce of f32 among {} ranks on {} ({} cores)\n"
      "Everybody's sums are verified first; then {} rounds in turns, of which the median counts.\n"
      "algbw = bytes / time; busbw = algbw * 2 (n-1)/n, n = {}; GB = 10^9 bytes\n"
      "bound: what is necessary and nothing else, in the same run: each rank overwrites its share "
      "of\n"
      "everybody's memory with the sums; for TCP, streams of 2 (n-1)/n of the bytes without "
      "sums\n"
      "tags: what the tags of such streams cost alone, made and checked; poly1305: if OpenSSL's\n"
      "Poly1305 made them of the whole frames\n\n"
      "{:>8}  {:<14} {:>11} {:>22} {:>11} {:>11} {:>9} {:>10} {:>9}\n",
      ranks, processor(), lockstep::dist::available_cores(), rounds, ranks, "size", "who", "us",
      "min..max", "algbw GB/s", "busbw GB/s", "x gloo", "x Open MPI", "of bound");
}

void print_size(const std::vector<Timing>& timings, int ranks) {
  for (const Timing& timing : timings)
    fmt::print(
        "{:>8}  {:<14} {:>11} {:>22} {:>11.3f} {:>11.3f} {:>9} {:>10} {:>9}\n",
        size_text(timing.bytes), fmt::format("{} {}", timing.label.transport, timing.label.comm),
        microseconds(&timing),
        fmt::format("{:.2f}..{:.2f}", timing.figures.min(), timing.figures.max()),
        algorithm_bandwidth(timing), bus_bandwidth(timing, ranks),
        times(find(timings, "gloo", ""), &timing), times(find(timings, "openmpi", ""), &timing),
        times(bound_of(timings, timing.label), &timing, true));
  fmt::print("\n");
  std::fflush(stdout);
}

void print_summary(const std::vector<std::vector<Timing>>& sizes) {
  constexpr std::string_view line =
      "| {:>7} | {:>9} | {:>8} | {:>10} | {:>8} | {:>9} | {:>8} | {:>9} | {:>8} | {:>8} | {:>8} | "
      "{:>8} |\n";
  fmt::print("What users get, in us, and how many times as long the others take:\n");
  fmt::print(line, "size", "shm", "gloo", "Open MPI", "of bound", "tcp", "gloo", "of stream",
             "tags us", "Poly1305", "gloo us", "MPI us");
  fmt::print(
      "|{0:->9}|{0:->11}|{0:->10}|{0:->12}|{0:->10}|{0:->11}|{0:->10}|{0:->11}|{0:->10}|{0:->10}|"
      "{0:->10}|{0:->10}|\n",
      ":");
  for (const std::vector<Timing>& timings : sizes) {
    const Timing* const shm = typical(timings, "shm");
    const Timing* const tcp = typical(timings, "tcp");
    const Timing* const gloo = find(timings, "gloo", "");
    const Timing* const mpi = find(timings, "openmpi", "");
    fmt::print(line, size_text(timings.front().bytes), microseconds(shm), times(gloo, shm),
               times(mpi, shm), times(find(timings, "bound", "shm"), shm, true), microseconds(tcp),
               times(gloo, tcp), times(find(timings, "bound", "tcp"), tcp, true),
               microseconds(find(timings, "tags", "")), microseconds(find(timings, "poly1305", "")),
               microseconds(gloo), microseconds(mpi));
  }
}

nlohmann::ordered_json summary(const std::vector<std::vector<Timing>>& sizes, int ranks) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const std::vector<Timing>& timings : sizes)
    for (const Timing& timing : timings)
      list.push_back({{"comm", timing.label.comm},
                      {"transport", timing.label.transport},
                      {"ranks", ranks},
                      {"bytes", timing.bytes},
                      {"median_us", timing.figures.median()},
                      {"min_us", timing.figures.min()},
                      {"max_us", timing.figures.max()},
                      {"algbw_gbs", algorithm_bandwidth(timing)},
                      {"busbw_gbs", bus_bandwidth(timing, ranks)}});
  return list;
}

}  // namespace bench
