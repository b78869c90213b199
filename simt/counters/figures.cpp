#include "lockstep/simt/counters/counters.h"

namespace simt::counters {

const char* name_of(Class what) {
  constexpr std::array<const char*, classes> names = {
      "global load",      "global store", "global atomic", "cp.async, global",
      "cp.async, shared", "shared load",  "shared store",  "shared atomic"};
  return names[static_cast<int>(what)];
}

Sum& Sum::operator+=(const Sum& other) {
  requests += other.requests;
  bytes += other.bytes;
  sectors += other.sectors;
  fewest_sectors += other.fewest_sectors;
  wavefronts += other.wavefronts;
  fewest_wavefronts += other.fewest_wavefronts;
  return *this;
}

namespace {

std::uint64_t with_prefix(const Launch& launch, const std::string& prefix) {
  std::uint64_t count = 0;
  for (const auto& [name, times] : launch.instructions)
    if (name.starts_with(prefix)) count += times;
  return count;
}

}  // namespace

std::uint64_t Launch::barriers() const { return with_prefix(*this, "__syncthreads"); }
std::uint64_t Launch::shuffles() const { return with_prefix(*this, "__shfl"); }

}  // namespace simt::counters
