#include "lockstep/simt/races/clocks.h"

#include <algorithm>

namespace simt::detail::races {

void Clocks::begin(int threads) {
  const auto nothing = std::make_shared<const Times>(threads + 1, 0);
  threads_.assign(threads, {1, nothing});
  engine_now_ = 0;
  barriers_.clear();
}

void Clocks::raise(Times& times, const Times& to) {
  if (times.empty()) times.resize(to.size());
  std::transform(to.begin(), to.end(), times.begin(), times.begin(),
                 [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); });
}

void Clocks::meet(const std::vector<int>& threads) {
  auto all = std::make_shared<Times>(threads_.size() + 1);
  const Times* latest = nullptr;
  for (const int thread : threads) {
    const Times* known = threads_[thread].known.get();
    if (known != latest) raise(*all, *known);  // threads that met before share one
    latest = known;
  }
  for (const int thread : threads) (*all)[thread] = threads_[thread].now++;
  for (const int thread : threads) threads_[thread].known = all;
}

void Clocks::arrive(int thread, const void* barrier) {
  Times& arrived = barriers_[barrier].arrived;
  raise(arrived, *threads_[thread].known);
  arrived[thread] = threads_[thread].now++;
}

void Clocks::copy_arrives(const void* barrier, std::uint32_t ticket) {
  Times& arrived = barriers_[barrier].arrived;
  arrived.resize(threads_.size() + 1);
  arrived.back() = std::max(arrived.back(), ticket);
}

void Clocks::complete(const void* barrier) {
  Barrier& one = barriers_[barrier];
  if (!one.arrived.empty()) raise(one.completed, one.arrived);
  one.arrived.clear();
}

void Clocks::wait(int thread, const void* barrier) {
  const Times& completed = barriers_[barrier].completed;
  if (completed.empty()) return;
  auto known = std::make_shared<Times>(*threads_[thread].known);
  raise(*known, completed);
  threads_[thread].known = std::move(known);
}

}  // namespace simt::detail::races
