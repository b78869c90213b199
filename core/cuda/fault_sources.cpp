#include "lockstep/core/cuda/fault_sources.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::cuda {
namespace {

void throw_faults(Faults& faults) {
  if (const unsigned long long bad = std::exchange(faults.bad_label, 0)) {
    const auto label = static_cast<std::int32_t>(bad & 0xffffffffu);
    fail<DataError>("[cross_entropy] label {} of sample {} is not one of the classes", label,
                    (bad >> 32) - 1);
  }
  if (const unsigned long long bad = std::exchange(faults.bad_index, 0))
    fail<DataError>("[take] index {} of a dimension of {}",
                    static_cast<std::int32_t>(bad & 0xffffffffu), bad >> 32 & 0x7fffffffu);
}

}  // namespace

void FaultSources::add(std::shared_ptr<FaultSource> source) {
  const std::lock_guard lock(mutex_);
  keep(std::move(source));
}

void FaultSources::add(const FaultSources& others) {
  if (this == &others) return;
  const std::scoped_lock lock(mutex_, others.mutex_);
  for (const auto& source : others.all_) keep(source);
}

void FaultSources::keep(std::shared_ptr<FaultSource> source) {
  if (std::ranges::find(all_, source) != all_.end()) return;
  std::erase_if(all_, [](const auto& one) { return one->ended.load() && !one->complains(); });
  all_.push_back(std::move(source));
}

void FaultSources::check() {
  const std::lock_guard lock(mutex_);
  for (const auto& source : all_) throw_faults(*source->faults.get());
  std::erase_if(all_, [](const auto& source) { return source->ended.load(); });
}

// Never destroyed: streams may still end while the program does.
FaultSources& left_behind() {
  static FaultSources& instance = *new FaultSources;
  return instance;
}

}  // namespace lockstep::cuda
