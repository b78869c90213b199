#pragma once
/// Ranks as processes or threads, for tests of what crosses them: a board that all of them read and
/// write, and checks that may fail on any of them.

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <exception>
#include <new>
#include <thread>

#include "simt/support.h"
#include "support/forked_ranks.h"

namespace simt::test {

using lockstep::test::check_all_well;
using lockstep::test::expect;
using lockstep::test::Outcome;
using lockstep::test::run_processes;

/// A T in memory that this process and those that it forks later have in common.
template <class T>
class Board {
 public:
  Board()
      : value_(
            mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0)) {
    REQUIRE(value_ != MAP_FAILED);
    new (value_) T{};
  }
  ~Board() { munmap(value_, sizeof(T)); }
  Board(const Board&) = delete;
  Board& operator=(const Board&) = delete;
  T* operator->() const { return static_cast<T*>(value_); }
  T& operator*() const { return *operator->(); }

 private:
  void* value_;
};

/// Waits until it is so.
template <class F>
void await(F there) {
  while (!there()) std::this_thread::sleep_for(std::chrono::microseconds(50));
}

/// Meets all the others.
class Meeting {
 public:
  void meet(int size) {
    const int before = came_++;
    await([&] { return came_ >= before / size * size + size; });
  }

 private:
  std::atomic<int> came_ = 0;
};

inline void expect_ok(cudaError_t error) {
  expect(error == cudaSuccess, "{}: {}", cudaGetErrorName(error), cudaGetErrorString(error));
}

/// Runs body(rank) on as many threads; throws what one of them threw. As the others may wait for
/// that one, it is printed at once.
template <class F>
void run_threads(int size, F body) {
  std::vector<std::exception_ptr> errors(static_cast<std::size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank)
    threads.emplace_back([&, rank] {
      try {
        body(rank);
      } catch (const std::exception& error) {
        std::fprintf(stderr, "rank %d: %s\n", rank, error.what());
        errors[static_cast<std::size_t>(rank)] = std::current_exception();
      }
    });
  for (std::thread& thread : threads) thread.join();
  for (const std::exception_ptr& error : errors)
    if (error) std::rethrow_exception(error);
}

/// Eager, and late with seeds.
inline std::vector<Config> every_mode(std::uint64_t seeds) {
  std::vector<Config> configs{config()};
  for (std::uint64_t seed = 0; seed < seeds; ++seed) configs.push_back(late(seed));
  return configs;
}

}  // namespace simt::test
