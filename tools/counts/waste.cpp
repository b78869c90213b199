#include "lockstep/tools/counts/waste.h"

#include <fmt/format.h>

#include <array>

#include "lockstep/tools/counts/cells.h"

namespace lockstep::counts {
namespace {

constexpr std::uint64_t least_percent = 95;
constexpr double most_dram = 1.03;

struct Kind {
  Class what;
  const char* name;
};
constexpr std::array<Kind, 6> kinds = {{{Class::global_load, "loads"},
                                        {Class::global_store, "stores"},
                                        {Class::copy_load, "cp.async"},
                                        {Class::copy_store, "into shared"},
                                        {Class::shared_load, "shared loads"},
                                        {Class::shared_store, "shared stores"}}};

constexpr const char* unaligned = "a row is no whole number of sectors";
constexpr const char* read_twice =
    "a row is longer than a block's registers: it is read for its sums, and to be mapped";
constexpr WasteException exceptions[] = {
    {"transpose_f32", "250x251", "loads", unaligned},
    {"transpose_f32", "250x251", "stores", unaligned},
    {"sum_rows", "128x10", "loads", unaligned},
    {"softmax", "2x32768", "DRAM", read_twice},
    {"log_softmax_backward", "2x32768", "DRAM", read_twice},
    {"cross_entropy", "2x32768", "DRAM", read_twice},
    {"cross_entropy", "2x32768", "reduce_chunks_kernel: loads",
     "of each of its two rows it reads one element"},
};

}  // namespace

std::vector<std::string> waste(const Counted& counted) {
  std::vector<std::string> all;
  for (const Launch& launch : counted.launches) {
    const std::string name = short_name(launch.kernel);
    for (const auto& [what, kind] : kinds) {
      const Sum& sum = launch.of(what);
      if (sum.fewest_sectors * 100 < sum.sectors * least_percent)
        all.push_back(fmt::format("{}: {} {}", name, kind, sectors(sum)));
      if (sum.wavefronts > sum.fewest_wavefronts)
        all.push_back(fmt::format("{}: {} {}", name, kind, wavefronts(sum)));
    }
    if (launch.copied_4 > 0) all.push_back(name + ": copies of 4 bytes");
  }
  if (counted.excess() > most_dram)
    all.push_back(fmt::format("DRAM {:.2f} of the fewest", counted.excess()));
  return all;
}

std::span<const WasteException> waste_exceptions() { return exceptions; }

bool is_for(const WasteException& exception, const Problem& problem, std::string_view item) {
  return exception.operation == problem.name && exception.size == problem.size &&
         item.find(exception.what) != std::string_view::npos;
}

}  // namespace lockstep::counts
