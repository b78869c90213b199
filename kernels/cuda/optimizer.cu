// SGD and Adam over a table of tensors: one launch updates as many tensors as fit into a kernel's
// parameters, each element once. A tensor is cut into chunks, a block does one chunk of one tensor.

#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/optimizer_formulas.h"

namespace lockstep::kernels {
namespace {

using cuda::launch;
using cuda::Queue;
using cuda::queue_of;

constexpr int threads = 256;
constexpr int chunk_bytes = 64 * threads;
template <class T>
constexpr std::int64_t chunk = chunk_bytes / static_cast<int>(sizeof(T));

/// Which blocks of the launch do a tensor's `count` elements.
struct Part {
  std::int64_t count;
  unsigned first_block, blocks;
  bool aligned;  // all of the tensor's pointers: 16-byte accesses may be used
};

template <class T>
struct SgdEntry {
  Part part;
  T* value;
  const T* gradient;
  T* momentum;  // null without momentum
  bool first;
};

template <class T>
struct AdamEntry {
  Part part;
  T* value;
  const T* gradient;
  T *mean, *variance;
  std::int64_t* step;
};

/// Travels as a kernel parameter, of which CUDA guarantees 4 KB.
template <class Entry>
struct Table {
  static constexpr int capacity = 3840 / static_cast<int>(sizeof(Entry));
  int size = 0;
  unsigned blocks = 0;
  Entry entries[capacity];

  template <class T>
  void add(Entry entry, const Tensor& value, bool aligned) {
    entry.part = {
        value.numel(), blocks,
        static_cast<unsigned>(divide_up(std::max<std::int64_t>(value.numel(), 1), chunk<T>)),
        aligned};
    blocks += entry.part.blocks;
    entries[size++] = entry;
  }
};

/// The entry of this block, by bisection: the last one that does not begin after it.
template <class Entry>
__device__ const Entry& entry_of_block(const Table<Entry>& table) {
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
__device__ void for_chunk(const Part& part, Update update) {
  std::int64_t begin = (blockIdx.x - part.first_block) * chunk<T>;
  const std::int64_t end = min(begin + chunk<T>, part.count);
  if (part.aligned) {
    constexpr int width = pack_width<T>;
    const std::int64_t body = begin + (end - begin) / width * width;
    for (std::int64_t i = begin + threadIdx.x * width; i < body; i += threads * width)
      update(std::integral_constant<int, width>{}, i);
    begin = body;
  }
  for (std::int64_t i = begin + threadIdx.x; i < end; i += threads)
    update(std::integral_constant<int, 1>{}, i);
}

/// 16-byte loads of value, gradient and buffer, where the entry is aligned.
template <class T>
__global__ void __launch_bounds__(threads)
    sgd_step_kernel(const __grid_constant__ Table<SgdEntry<T>> table, const SgdConfig config) {
  const SgdEntry<T>& entry = entry_of_block(table);
  const SgdScalars<T> scalars = SgdScalars<T>::of(config, entry.first);
  const bool decay = config.weight_decay != 0;
  for_chunk<T>(entry.part, [&](auto constant, std::int64_t i) {
    constexpr int width = decltype(constant)::value;
    Pack<T, width> value = load_pack<width>(entry.value + i);
    const Pack<T, width> gradient = load_pack<width>(entry.gradient + i);
    if (entry.momentum == nullptr) {
#pragma unroll
      for (int k = 0; k < width; ++k) sgd_plain(value[k], gradient[k], scalars, decay);
    } else {
      Pack<T, width> buffer{};
      if (!entry.first) buffer = load_pack<width>(entry.momentum + i);
#pragma unroll
      for (int k = 0; k < width; ++k)
        sgd_momentum(value[k], gradient[k], buffer[k], scalars, decay, config.nesterov);
      store_pack(entry.momentum + i, buffer);
    }
    store_pack(entry.value + i, value);
  });
}

/// The number of this step, the same for all blocks of a tensor; the counter ends one higher. While
/// they run, its lower half is the number of steps done, and its upper half the number of blocks
/// that have read it: whoever reads it last knows that the others have, and writes the new count.
__device__ std::int64_t next_step(std::int64_t* step, unsigned blocks) {
  auto* counter = reinterpret_cast<unsigned long long*>(step);
  const unsigned long long seen = atomicAdd(counter, 1ull << 32);
  const unsigned long long next = (seen & 0xffffffffu) + 1;
  if ((seen >> 32) + 1 == blocks) *counter = next;
  return static_cast<std::int64_t>(next);
}

/// 16-byte loads of value, gradient, mean and variance, where the entry is aligned.
template <class T>
__global__ void __launch_bounds__(threads)
    adam_step_kernel(const __grid_constant__ Table<AdamEntry<T>> table, const AdamConfig config) {
  __shared__ AdamScalars<T> shared;
  const AdamEntry<T>& entry = entry_of_block(table);
  if (threadIdx.x == 0)
    shared = AdamScalars<T>::of(config, next_step(entry.step, entry.part.blocks));
  __syncthreads();
  const AdamScalars<T> scalars = shared;
  const bool decay = adam_decays_gradient(config), from_end = adam_lerps_from_end(config);
  for_chunk<T>(entry.part, [&](auto constant, std::int64_t i) {
    constexpr int width = decltype(constant)::value;
    Pack<T, width> value = load_pack<width>(entry.value + i);
    const Pack<T, width> gradient = load_pack<width>(entry.gradient + i);
    Pack<T, width> mean = load_pack<width>(entry.mean + i);
    Pack<T, width> variance = load_pack<width>(entry.variance + i);
#pragma unroll
    for (int k = 0; k < width; ++k)
      adam(value[k], gradient[k], mean[k], variance[k], scalars, decay, from_end);
    store_pack(entry.value + i, value);
    store_pack(entry.mean + i, mean);
    store_pack(entry.variance + i, variance);
  });
}

/// All items of T, a table at a time: `put(table, item)` adds one, `start(table)` launches.
template <class T, class Entry, class Item, class Put, class Start>
void for_each_table(std::span<const Item> items, Put put, Start start) {
  Table<Entry> table;
  for (const Item& item : items) {
    if (item.value.dtype() != dtype_of<T>()) continue;
    put(table, item);
    if (table.size < Table<Entry>::capacity) continue;
    start(table);
    table.size = table.blocks = 0;
  }
  if (table.size > 0) start(table);
}

template <class T>
void sgd_items(std::span<const SgdItem> items, const SgdConfig& config, const Queue& queue) {
  using Entry = SgdEntry<T>;
  for_each_table<T, Entry>(
      items,
      [&](Table<Entry>& table, const SgdItem& item) {
        if (item.value.numel() == 0) return;
        const Entry entry{{},
                          item.value.data<T>(),
                          item.gradient.data<T>(),
                          config.momentum != 0 ? item.momentum.data<T>() : nullptr,
                          item.first};
        table.template add<T>(
            entry, item.value,
            is_aligned(entry.value) && is_aligned(entry.gradient) && is_aligned(entry.momentum));
      },
      [&](const Table<Entry>& table) {
        launch<sgd_step_kernel<T>>({.grid = table.blocks, .block = threads}, queue.stream, table,
                                   config);
      });
}

template <class T>
void adam_items(std::span<const AdamItem> items, const AdamConfig& config, const Queue& queue) {
  using Entry = AdamEntry<T>;
  for_each_table<T, Entry>(
      items,
      [](Table<Entry>& table, const AdamItem& item) {  // one without elements counts its steps too
        const Entry entry{{},
                          item.value.data<T>(),
                          item.gradient.data<T>(),
                          item.mean.data<T>(),
                          item.variance.data<T>(),
                          item.step.data<std::int64_t>()};
        table.template add<T>(entry, item.value,
                              is_aligned(entry.value) && is_aligned(entry.gradient) &&
                                  is_aligned(entry.mean) && is_aligned(entry.variance));
      },
      [&](const Table<Entry>& table) {
        launch<adam_step_kernel<T>>({.grid = table.blocks, .block = threads}, queue.stream, table,
                                    config);
      });
}

}  // namespace

void CudaBackend::sgd_step(std::span<const SgdItem> items, const SgdConfig& config) {
  if (items.empty()) return;
  const Queue queue = queue_of(items[0].value);
  sgd_items<float>(items, config, queue);
  sgd_items<double>(items, config, queue);
}

void CudaBackend::adam_step(std::span<const AdamItem> items, const AdamConfig& config) {
  if (items.empty()) return;
  const Queue queue = queue_of(items[0].value);
  adam_items<float>(items, config, queue);
  adam_items<double>(items, config, queue);
}

}  // namespace lockstep::kernels
