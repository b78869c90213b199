#pragma once
// What every transport must be able to carry: all collectives with known answers. Each element says
// which rank and which index it comes from, and sums are exact in every dtype. A wrong value
// throws, so that this runs in threads, in processes and in the simulated world alike.

#include <array>
#include <bit>
#include <cmath>
#include <exception>
#include <string>
#include <thread>
#include <vector>

#include "lockstep/dist/collectives/communicator.h"
#include "lockstep/dist/collectives/host_communicator.h"
#include "support/worlds.h"

namespace lockstep::dist::testing {

// Unique per (rank, index) for up to 8 ranks; the sum of all ranks is below 2^24, exact in f32.
inline double value(int rank, std::int64_t index) {
  return static_cast<double>(index % 65521 * 8 + rank);
}
inline double sum_of_values(int world, std::int64_t index) {
  return static_cast<double>(index % 65521 * 8 * world + world * (world - 1) / 2);
}

template <class T>
void fill(const Tensor& tensor, int rank, std::int64_t begin = 0) {
  const Tensor host = Tensor::empty(tensor.shape(), tensor.dtype());
  T* const data = host.data<T>();
  for (std::int64_t i = 0; i < host.numel(); ++i) data[i] = static_cast<T>(value(rank, begin + i));
  tensor.copy_from(host);
}

// Compares with expected(index).
template <class T, class F>
void expect_elements(std::string_view what, int rank, const Tensor& tensor, std::int64_t begin,
                     F expected) {
  const Tensor host = tensor.to(Device{});
  const T* const data = host.data<T>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    const auto got = static_cast<double>(data[i]);
    const auto right = static_cast<double>(static_cast<T>(expected(begin + i)));
    check<DataError>(got == right, "{}: rank {}, element {} of {} is {}, not {}", what, rank, i,
                     tensor.numel(), got, right);
  }
}

template <class T>
void exercise_all_reduce(Communicator& comm, const Tensor& tensor) {
  fill<T>(tensor, comm.rank());
  comm.all_reduce(tensor, "exercise").wait();
  expect_elements<T>("all_reduce", comm.rank(), tensor, 0,
                     [&](std::int64_t i) { return sum_of_values(comm.size(), i); });
}

template <class T>
void exercise_reduce_scatter(Communicator& comm, std::int64_t count, Device device = {}) {
  const Range own = partition(count, comm.size(), comm.rank());
  const Tensor input = Tensor::empty({count}, dtype_of<T>(), device);
  const Tensor output = Tensor::empty({own.size()}, dtype_of<T>(), device);
  fill<T>(input, comm.rank());
  comm.reduce_scatter(input, output, "scatter").wait();
  expect_elements<T>("reduce_scatter", comm.rank(), output, own.begin,
                     [&](std::int64_t i) { return sum_of_values(comm.size(), i); });
}

template <class T>
void exercise_all_gather(Communicator& comm, std::int64_t count, Device device = {}) {
  const Range own = partition(count, comm.size(), comm.rank());
  const Tensor input = Tensor::empty({own.size()}, dtype_of<T>(), device);
  const Tensor output = Tensor::zeros({count}, dtype_of<T>(), device);
  fill<T>(input, comm.rank(), own.begin);
  comm.all_gather(input, output, "gather").wait();
  for (int r = 0; r < comm.size(); ++r) {
    const Range part = partition(count, comm.size(), r);
    expect_elements<T>("all_gather", comm.rank(), output.slice(part.begin, part.end), part.begin,
                       [&](std::int64_t i) { return value(r, i); });
  }
}

template <class T>
void exercise_broadcast(Communicator& comm, std::int64_t count, int root, Device device = {}) {
  const Tensor tensor = Tensor::zeros({count}, dtype_of<T>(), device);
  if (comm.rank() == root) fill<T>(tensor, root);
  comm.broadcast(tensor, root, "weights").wait();
  expect_elements<T>("broadcast", comm.rank(), tensor, 0,
                     [&](std::int64_t i) { return value(root, i); });
}

// All operations on `count` elements, the all_reduce in a tensor of its own and in allocated
// memory.
template <class T>
void exercise(Communicator& comm, std::int64_t count, Device device = {}) {
  exercise_all_reduce<T>(comm, Tensor::empty({count}, dtype_of<T>(), device));
  exercise_all_reduce<T>(comm, comm.allocate(count, dtype_of<T>(), device));
  exercise_reduce_scatter<T>(comm, count, device);
  exercise_all_gather<T>(comm, count, device);
  exercise_broadcast<T>(comm, count, static_cast<int>(count % comm.size()), device);
  comm.barrier("between").wait();
}

// Values whose sums round, and the tree over the ranks as one would write it down for few ranks.
inline float rounding_value(int rank, std::int64_t i) {
  return static_cast<float>(std::sin(static_cast<double>(i) * 0.37 + rank * 1.7) *
                            std::exp2(static_cast<double>(rank)));
}
inline float tree_of_rounding_values(int first, int n, std::int64_t i) {
  if (n == 1) return rounding_value(first, i);
  int left = 1;
  while (left * 2 < n) left *= 2;
  return tree_of_rounding_values(first, left, i) +
         tree_of_rounding_values(first + left, n - left, i);
}

// Everything that an all-reduce can be asked to be. "hierarchical" takes neighbours as one node.
inline constexpr std::array every_algorithm{Algorithm::automatic, Algorithm::ring,
                                            Algorithm::two_shot,  Algorithm::one_shot,
                                            Algorithm::halving,   Algorithm::hierarchical};
// Of these, the ones whose sums are the tree over ranks.
inline constexpr std::array tree_algorithms{Algorithm::two_shot, Algorithm::one_shot,
                                            Algorithm::halving};

// Nodes of two ranks each; the last one may be smaller.
inline NodeMap pairs_of_ranks(int world) {
  std::vector<std::string> names;
  for (int r = 0; r < world; ++r) names.push_back(std::to_string(r / 2));
  return node_map(names);
}
inline CommunicatorOptions options_for(Algorithm algorithm, int world) {
  return {.algorithm = algorithm,
          .nodes = algorithm == Algorithm::hierarchical ? pairs_of_ranks(world) : NodeMap{}};
}

// All-reduces `tensor` (f32) as "direct" and compares with the tree, bit for bit.
inline void exercise_tree_order(Communicator& comm, const Tensor& tensor) {
  const Tensor host = Tensor::empty(tensor.shape());
  float* const data = host.data<float>();
  for (std::int64_t i = 0; i < tensor.numel(); ++i) data[i] = rounding_value(comm.rank(), i);
  tensor.copy_from(host);
  comm.all_reduce(tensor, "tree").wait();
  host.copy_from(tensor);
  for (std::int64_t i = 0; i < tensor.numel(); ++i) {
    const float right = tree_of_rounding_values(0, comm.size(), i);
    check<DataError>(std::bit_cast<std::uint32_t>(data[i]) == std::bit_cast<std::uint32_t>(right),
                     "tree order: rank {}, element {} is {}, not {}", comm.rank(), i, data[i],
                     right);
  }
}

using test::message_of;

// Runs f(rank, transport) on a thread per rank; the result has what each threw.
template <class Transports, class F>
std::vector<std::exception_ptr> on_threads(Transports transports, F f) {
  std::vector<std::exception_ptr> errors(transports.size());
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < transports.size(); ++r) {
    threads.emplace_back([&, r] {
      try {
        f(static_cast<int>(r), std::move(transports[r]));
      } catch (...) {
        errors[r] = std::current_exception();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

}  // namespace lockstep::dist::testing
