#pragma once
// One suite for all communicators: every operation and dtype, in place, several calls under way at
// once. Throws where exercise.h does, so that it runs in threads and processes, on hosts and GPUs.

#include <algorithm>
#include <vector>

#include "exercise.h"

namespace lockstep::dist::testing {

// 16 bits: added up in f32 and rounded once. Rank 0 has the first number that has no successor in
// T, the others have 1, which would vanish one by one.
template <class T>
void exercise_narrow(Communicator& comm, std::int64_t count, Device device) {
  const double big = sizeof(T) == 2 && dtype_of<T>() == DType::f16 ? 2048 : 256;
  const auto right = [&](std::int64_t i) {
    return big * static_cast<double>(i % 2) + comm.size() - 1;
  };
  const auto fill_with_ones = [&](const Tensor& tensor) {
    const Tensor host = Tensor::full(tensor.shape(), 1, tensor.dtype());
    for (std::int64_t i = 0; i < host.numel() && comm.rank() == 0; ++i)
      host.data<T>()[i] = static_cast<T>(big * static_cast<double>(i % 2));
    tensor.copy_from(host);
  };
  const auto expect_sum = [&](const Tensor& tensor, std::int64_t begin) {
    const auto got = tensor.to_vector<T>();
    for (std::int64_t i = 0; i < tensor.numel(); ++i) {
      const auto x = static_cast<float>(got[static_cast<std::size_t>(i)]);
      const auto y = static_cast<float>(static_cast<T>(right(begin + i)));
      check<DataError>(x == y, "{}: element {} of {} is {}, not {}", tensor.dtype(), begin + i,
                       count, x, y);
    }
  };
  for (const bool allocated : {false, true}) {
    const Tensor data = allocated ? comm.allocate(count, dtype_of<T>(), device)
                                  : Tensor::empty({count}, dtype_of<T>(), device);
    fill_with_ones(data);
    comm.all_reduce(data, "narrow").wait();
    expect_sum(data, 0);
  }
  const Range own = partition(count, comm.size(), comm.rank());
  const Tensor input = Tensor::empty({count}, dtype_of<T>(), device);
  const Tensor part = Tensor::empty({own.size()}, dtype_of<T>(), device);
  fill_with_ones(input);
  comm.reduce_scatter(input, part, "narrow").wait();
  expect_sum(part, own.begin);
}

// What is never added up: bytes.
inline void exercise_bytes(Communicator& comm, std::int64_t count, Device device) {
  const auto byte = [](std::int64_t i, int rank) {
    return static_cast<std::uint8_t>(i * 7 + rank * 31);
  };
  const auto make = [&](Range range, int rank) {
    const Tensor host = Tensor::empty({range.size()}, DType::u8);
    for (std::int64_t i = 0; i < range.size(); ++i)
      host.data<std::uint8_t>()[i] = byte(range.begin + i, rank);
    return host;
  };
  const int last = comm.size() - 1;
  const Tensor data = make({0, count}, comm.rank()).to(device);
  comm.broadcast(data, last, "bytes").wait();
  check<DataError>(
      data.to_vector<std::uint8_t>() == make({0, count}, last).to_vector<std::uint8_t>(),
      "a broadcast of {} bytes", count);
  const Tensor own = make(partition(count, comm.size(), comm.rank()), comm.rank()).to(device);
  comm.all_gather(own, data, "bytes").wait();
  const auto got = data.to_vector<std::uint8_t>();
  for (int r = 0; r < comm.size(); ++r) {
    const Range part = partition(count, comm.size(), r);
    for (std::int64_t i = part.begin; i < part.end; ++i)
      check<DataError>(got[static_cast<std::size_t>(i)] == byte(i, r), "byte {} of {}", i, count);
  }
}

// The own part is a slice of the whole.
inline void exercise_in_place(Communicator& comm, std::int64_t count, Device device) {
  const Range own = partition(count, comm.size(), comm.rank());
  const auto sum = [&](std::int64_t i) { return sum_of_values(comm.size(), i); };
  const Tensor whole = Tensor::empty({count}, DType::f32, device);
  fill<float>(whole, comm.rank());
  const Tensor part = whole.slice(own.begin, own.end);
  comm.reduce_scatter(whole, part, "in place").wait();
  expect_elements<float>("reduce_scatter in place", comm.rank(), part, own.begin, sum);
  comm.all_gather(part, whole, "in place").wait();
  expect_elements<float>("all_gather in place", comm.rank(), whole, 0, sum);
}

// Eight calls of all kinds and sizes at once, waited for in an order that differs between ranks.
inline void exercise_several(Communicator& comm, Device device) {
  constexpr std::array<std::int64_t, 8> counts{5000, 1, 70'001, 0, 333, 20'000, 7, 4096};
  const Tensor memory = comm.allocate(100'000, DType::f32, device);
  std::vector<Tensor> tensors, parts;
  std::vector<Work> works;
  std::int64_t begin = 0;
  for (std::size_t k = 0; k < counts.size(); ++k) {
    const std::int64_t count = counts[k];
    const Range own = partition(count, comm.size(), comm.rank());
    const bool allocated = k % 3 == 0;
    tensors.push_back(allocated ? memory.slice(begin, begin + count)
                                : Tensor::empty({count}, DType::f32, device));
    begin += allocated ? count : 0;
    parts.push_back(Tensor::empty({own.size()}, DType::f32, device));
    fill<float>(tensors[k], comm.rank());
    fill<float>(parts[k], comm.rank(), own.begin);
  }
  const int root = comm.size() / 2;
  for (std::size_t k = 0; k < counts.size(); ++k) {
    const std::string name = fmt::format("call {}", k);
    if (k % 4 == 0) works.push_back(comm.all_reduce(tensors[k], name));
    if (k % 4 == 1) works.push_back(comm.all_gather(parts[k], tensors[k], name));
    if (k % 4 == 2) works.push_back(comm.reduce_scatter(tensors[k], parts[k], name));
    if (k % 4 == 3) works.push_back(comm.broadcast(tensors[k], root, name));
  }
  std::rotate(works.begin(), works.begin() + comm.rank() % 8, works.end());
  for (Work& work : works) work.wait();
  const auto sum = [&](std::int64_t i) { return sum_of_values(comm.size(), i); };
  for (std::size_t k = 0; k < counts.size(); ++k) {
    const std::string what = fmt::format("call {} of several", k);
    const std::int64_t first = partition(counts[k], comm.size(), comm.rank()).begin;
    if (k % 4 == 0) expect_elements<float>(what, comm.rank(), tensors[k], 0, sum);
    if (k % 4 == 1)
      for (int r = 0; r < comm.size(); ++r) {
        const Range part = partition(counts[k], comm.size(), r);
        expect_elements<float>(what, comm.rank(), tensors[k].slice(part.begin, part.end),
                               part.begin, [&](std::int64_t i) { return value(r, i); });
      }
    if (k % 4 == 2) expect_elements<float>(what, comm.rank(), parts[k], first, sum);
    if (k % 4 == 3)
      expect_elements<float>(what, comm.rank(), tensors[k], 0,
                             [&](std::int64_t i) { return value(root, i); });
  }
}

inline void exercise_everything(Communicator& comm, Device device = {}) {
  for (const std::int64_t count : {0, 1, 7, 1001}) exercise<float>(comm, count, device);
  exercise<double>(comm, 257, device);
  exercise<std::int32_t>(comm, 31, device);
  exercise<std::int64_t>(comm, 77, device);
  for (const std::int64_t count : {0, 1, 333}) {
    exercise_narrow<Half>(comm, count, device);
    exercise_narrow<BFloat16>(comm, count, device);
    exercise_bytes(comm, count, device);
    exercise_in_place(comm, count, device);
  }
  exercise_several(comm, device);
}

}  // namespace lockstep::dist::testing
