#pragma once
/// What can be asked of a communicator: the operations, the algorithms, and one call of them. How
/// data travel is the plan's business (dist/collectives/plan/plan.h).

#include <array>
#include <cstdint>
#include <span>
#include <string_view>

#include "lockstep/core/tensor.h"

namespace lockstep::dist {

enum class Operation : std::uint8_t { all_reduce, reduce_scatter, all_gather, broadcast, barrier };

inline std::string_view name_of(Operation operation) {
  static constexpr std::array<std::string_view, 5> names{"all_reduce", "reduce_scatter",
                                                         "all_gather", "broadcast", "barrier"};
  const auto number = static_cast<std::size_t>(operation);
  return number < names.size() ? names[number] : "?";  // of a peer's header: any number
}

enum class Algorithm : std::uint8_t {
  automatic,
  ring,
  two_shot,
  two_shot_shared,  ///< two-shot in memory that all ranks address
  one_shot,
  halving,
  hierarchical,
  device,  ///< the data travel between GPUs; the host only compares headers, by a barrier's plan
};

/// As messages print it.
inline std::string_view name_of(Algorithm algorithm) {
  static constexpr std::array<std::string_view, 8> names{
      "auto",     "ring",    "two-shot",     "two-shot-shared",
      "one-shot", "halving", "hierarchical", "device"};
  const auto number = static_cast<std::size_t>(algorithm);
  return number < names.size() ? names[number] : "?";
}

/// Elements [begin, end).
struct Range {
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t size() const { return end - begin; }
  bool operator==(const Range&) const = default;
};

/// Part `index` of `count` elements cut into `parts`: sizes differ by at most one, and the larger
/// parts come first. A part may be empty. Requires count >= 0 and 0 <= index < parts, unchecked.
constexpr Range partition(std::int64_t count, int parts, int index) {
  const std::int64_t size = count / parts;
  const std::int64_t larger = count % parts;  // so many parts have one element more
  const auto begin = [&](std::int64_t k) { return k * size + (k < larger ? k : larger); };
  return {begin(index), begin(index + 1)};
}

/// The bytes of part `index` of a buffer's elements, cut into `parts` as by partition().
inline std::span<std::byte> part_of(const Tensor& buffer, int parts, int index) {
  const Range part = partition(buffer.numel(), parts, index);
  const std::size_t element = size_of(buffer.dtype());
  return {buffer.raw() + static_cast<std::size_t>(part.begin) * element,
          static_cast<std::size_t>(part.size()) * element};
}

/// Whether a call adds 16-bit elements. They are added up in f32 and rounded once; an algorithm
/// that passes sums on in 16 bits would round at every hop.
inline bool adds_16_bit(Operation operation, DType dtype) {
  return size_of(dtype) == 2 &&
         (operation == Operation::all_reduce || operation == Operation::reduce_scatter);
}

/// The arguments of one call. The tensors share their storage with the caller's.
struct CollectiveCall {
  Operation operation = Operation::barrier;
  Tensor buffer{};  ///< what the collective works on; undefined for a barrier
  Tensor part{};    ///< the input of an all_gather, the output of a reduce_scatter
  int root = 0;     ///< of a broadcast
};

}  // namespace lockstep::dist
