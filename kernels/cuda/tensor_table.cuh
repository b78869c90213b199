#pragma once
/// Kernels over many tensors at once: the parameters of a model, mostly small ones. One launch
/// takes as many tensors as fit into a kernel's parameters, in a table. Each tensor is cut into
/// chunks, and a block does one chunk of one tensor.

#include <span>

#include "lockstep/core/tensor.h"
#include "lockstep/kernels/cuda/common.cuh"

namespace lockstep::kernels {

inline constexpr int table_threads = 256;
inline constexpr int table_chunk_bytes = 64 * table_threads;
/// Elements of a chunk.
template <class T>
inline constexpr std::int64_t table_chunk = table_chunk_bytes / static_cast<int>(sizeof(T));

/// Which blocks of the launch do a tensor's `count` elements.
struct TablePart {
  std::int64_t count;
  unsigned first_block, blocks;
  bool aligned;  ///< all of the tensor's pointers: 16-byte accesses may be used
};

/// Travels as a kernel parameter, of which CUDA guarantees 4 KB. An Entry has a TablePart `part`
/// and the pointers of one tensor and of what goes with it.
template <class Entry>
struct TensorTable {
  static constexpr int capacity = 3840 / static_cast<int>(sizeof(Entry));
  int size = 0;
  unsigned blocks = 0;
  Entry entries[capacity];

  template <class T>
  void add(Entry entry, const Tensor& value, bool aligned) {
    entry.part = {
        value.numel(), blocks,
        static_cast<unsigned>(divide_up(std::max<std::int64_t>(value.numel(), 1), table_chunk<T>)),
        aligned};
    blocks += entry.part.blocks;
    entries[size++] = entry;
  }
};

/// All items, a table at a time: `put(table, item)` adds one, or leaves it out; `start(table)`
/// launches.
template <class Entry, class Item, class Put, class Start>
void for_each_table(std::span<const Item> items, Put put, Start start) {
  TensorTable<Entry> table;
  for (const Item& item : items) {
    put(table, item);
    if (table.size < TensorTable<Entry>::capacity) continue;
    start(table);
    table.size = table.blocks = 0;
  }
  if (table.size > 0) start(table);
}

/// The entry of this block, by bisection: the last one that does not begin after it.
template <class Entry>
__device__ const Entry& entry_of_block(const TensorTable<Entry>& table) {
  int low = 0, high = table.size;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.entries[middle].part.first_block <= blockIdx.x ? low : high) = middle;
  }
  return table.entries[low];
}

/// Calls update(width as a constant, i) for this thread's elements [i, i + width) of the block's
/// chunk.
template <class T, class Update>
__device__ void for_chunk(const TablePart& part, Update update) {
  std::int64_t begin = (blockIdx.x - part.first_block) * table_chunk<T>;
  const std::int64_t end = min(begin + table_chunk<T>, part.count);
  if (part.aligned) {
    constexpr int width = pack_width<T>;
    const std::int64_t body = begin + (end - begin) / width * width;
    for (std::int64_t i = begin + threadIdx.x * width; i < body; i += table_threads * width)
      update(std::integral_constant<int, width>{}, i);
    begin = body;
  }
  for (std::int64_t i = begin + threadIdx.x; i < end; i += table_threads)
    update(std::integral_constant<int, 1>{}, i);
}

}  // namespace lockstep::kernels
