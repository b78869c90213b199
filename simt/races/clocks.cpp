#include "lockstep/simt/races/clocks.h"

#include <algorithm>

namespace simt::detail::races {

void Clocks::begin(int threads) {
  const auto nothing = std::make_shared<const Times>(threads, 0);
  threads_.assign(threads, {1, nothing});
  barriers_.clear();
}

void Clocks::raise(Times& times, const Times& to) {
  times.resize(std::max(times.size(), to.size()));
  std::transform(to.begin(), to.end(), times.begin(), times.begin(),
                 [](std::uint32_t a, std::uint32_t b) { return std::max(a, b); });
}

void Clocks::meet(const std::vector<int>& threads) {
  auto all = std::make_shared<Times>(threads_.size());
  const Times* latest = nullptr;
  for (const int thread : threads) {
    const Times* known = threads_[thread].known.get();
    if (known != latest) raise(*all, *known);  // threads that met before share one
    latest = known;
  }
  for (const int thread : threads) (*all)[thread] = threads_[thread].now++;
  for (const int thread : threads) threads_[thread].known = all;
}

Clocks::Barrier& Clocks::barrier_at(const void* barrier) {
  const int number = static_cast<int>(barriers_.size());
  return barriers_.try_emplace(barrier, Barrier{.number = number}).first->second;
}

void Clocks::arrive(int thread, const void* barrier) {
  Times& arrived = barrier_at(barrier).arrived;
  raise(arrived, *threads_[thread].known);
  arrived[thread] = threads_[thread].now++;
}

Clocks::Copy Clocks::begin_copy(const void* barrier) {
  Barrier& one = barrier_at(barrier);
  return {threads() + one.number, ++one.copies};
}

void Clocks::copy_arrives(const void* barrier, const Copy& copy) {
  Times& arrived = barrier_at(barrier).arrived;
  arrived.resize(std::max(arrived.size(), static_cast<std::size_t>(copy.thread) + 1));
  arrived[copy.thread] = std::max(arrived[copy.thread], copy.time);
}

void Clocks::complete(const void* barrier) {
  Barrier& one = barrier_at(barrier);
  raise(one.completed, one.arrived);
  one.arrived.clear();
}

void Clocks::wait(int thread, const void* barrier) {
  const Times& completed = barrier_at(barrier).completed;
  if (completed.empty()) return;
  auto known = std::make_shared<Times>(*threads_[thread].known);
  raise(*known, completed);
  threads_[thread].known = std::move(known);
}

}  // namespace simt::detail::races
