// Optimizers over a table of tensors: one launch updates as many tensors as fit into a kernel's
// parameters, each element once.
//
// Counted (./lockstep count --write; docs/counters.md):
//   sgd_step 65536: loads 16.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   adam_step 65536: loads 16.00 (100 %), stores 16.00 (100 %), shared loads 1.00 (1.00),
//     shared stores 1.00 (1.00), DRAM 1.00 of the fewest
//   rmsprop_step 65536: loads 16.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   lion_step 65536: loads 16.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   fingerprint 65536: loads 16.00 (100 %), shared loads 2.00 (2.00), shared stores 1.00 (1.00),
//     DRAM 1.00 of the fewest

#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/reduction.cuh"
#include "lockstep/kernels/cuda/tensor_table.cuh"
#include "lockstep/kernels/formulas/fingerprint_formulas.h"
#include "lockstep/kernels/formulas/optimizer_formulas.h"
#include "lockstep/kernels/formulas/with_flag.h"

namespace lockstep::kernels {
namespace {

using cuda::launch;
using cuda::Queue;
using cuda::queue_of;

/// Where a kernel adds the fingerprint of what it leaves.
struct DeviceFingerprint {
  unsigned long long* sum;  // null: nowhere
  std::uint32_t salt;
  bool terms;

  static DeviceFingerprint of(const Fingerprint& fingerprint) {
    if (!fingerprint.sum) return {nullptr, 0, false};
    return {reinterpret_cast<unsigned long long*>(fingerprint.sum->data<std::int64_t>()),
            fingerprint.salt, fingerprint.terms};
  }

  /// What all threads of the block have seen. Integer sums: the order does not matter. (Infinities
  /// are rare: each thread that has seen one says so itself.)
  template <class Seen>
  __device__ void add(const Seen& own, unsigned long long (&shared)[warp_size]) const {
    const unsigned long long total =
        team_fold(own.sum, Adding<unsigned long long>(), table_threads, shared);
    if (threadIdx.x == 0 && terms) atomicAdd(sum, total);
    if (!is_finite_magnitude(own.largest)) atomicAdd(sum + 1, 1ull);
  }
};

/// What a thread has seen: the sum of the terms, and the largest magnitude of the parameter.
template <class T>
struct Seen {
  unsigned long long sum = 0;
  decltype(magnitude_bits(T())) largest = 0;

  __device__ void add(std::uint32_t key, T value, T second, T third, T fourth) {
    sum += fingerprint_term(key, value, second, third, fourth);
    const auto magnitude = magnitude_bits(value);
    largest = magnitude > largest ? magnitude : largest;
  }
};

/// What of an item its step needs beside the tensors.
template <class Item>
struct Beside {};
template <>
struct Beside<SgdItem> {
  bool first;
};
template <>
struct Beside<AdamItem> {
  std::int64_t* step;
};

/// One item of a step by Formula<T> that keeps n tensors.
template <class T, class Item, int n>
struct UpdateEntry : Beside<Item> {
  TablePart part;
  T* value;
  const T* gradient;
  T* kept[n > 0 ? n : 1];
  DeviceFingerprint fingerprint;

  template <class Config>
  static UpdateEntry of(const Item& item, const Config& config) {
    UpdateEntry entry{};
    entry.value = item.value.template data<T>();
    entry.gradient = item.gradient.template data<T>();
    int k = 0;
    visit_kept(item, config, [&](std::string_view, const Tensor& tensor, bool is_kept) {
      if (is_kept) entry.kept[k++] = tensor.template data<T>();
    });
    entry.fingerprint = DeviceFingerprint::of(item.fingerprint);
    if constexpr (std::is_same_v<Item, SgdItem>) entry.first = item.first;
    if constexpr (std::is_same_v<Item, AdamItem>)
      entry.step = item.step.template data<std::int64_t>();
    return entry;
  }
  bool aligned() const {
    bool all = is_aligned(value) && is_aligned(gradient);
    for (const T* tensor : kept) all = all && is_aligned(tensor);
    return all;
  }
};

template <class T>
struct FingerprintEntry {
  TablePart part;
  const T* data[4];  // all but the first may be null
  DeviceFingerprint fingerprint;
};

/// Calls update(value, gradient, a, b, c) for each element of the block's chunk, of which the first
/// n of `a`, `b` and `c` are what is kept of it. Adds `own` and the fingerprint of what it leaves.
template <class T, class Item, int n, class Update>
__device__ void update_chunk(const UpdateEntry<T, Item, n>& entry, Seen<T> own,
                             unsigned long long (&shared)[warp_size], Update update) {
  for_chunk<T>(entry.part, [&](auto constant, std::int64_t i) {
    constexpr int width = decltype(constant)::value;
    Pack<T, width> value = load_pack<width>(entry.value + i);
    const Pack<T, width> gradient = load_pack<width>(entry.gradient + i);
    Pack<T, width> kept[3] = {};
#pragma unroll
    for (int k = 0; k < n; ++k) kept[k] = load_pack<width>(entry.kept[k] + i);
#pragma unroll
    for (int k = 0; k < width; ++k)
      update(value[k], gradient[k], kept[0][k], kept[1][k], kept[2][k]);
    store_pack(entry.value + i, value);
#pragma unroll
    for (int k = 0; k < n; ++k) store_pack(entry.kept[k] + i, kept[k]);
    if (entry.fingerprint.sum == nullptr) return;
#pragma unroll
    for (int k = 0; k < width; ++k)
      own.add(element_key<T>(entry.fingerprint.salt, i + k), value[k], kept[0][k], kept[1][k],
              kept[2][k]);
  });
  if (entry.fingerprint.sum != nullptr) entry.fingerprint.add(own, shared);
}

/// The number of this step, the same for all blocks of a tensor; the counter ends one higher. While
/// they run, its lower half is the number of steps done, and its upper half the number of blocks
/// that have read it. The block that reads it last knows that all others have read it, and writes
/// the new count.
__device__ std::int64_t next_step(std::int64_t* step, unsigned blocks) {
  auto* counter = reinterpret_cast<unsigned long long*>(step);
  const unsigned long long seen = atomicAdd(counter, 1ull << 32);
  const unsigned long long next = (seen & 0xffffffffu) + 1;
  if ((seen >> 32) + 1 == blocks) atomicExch(counter, next);
  return static_cast<std::int64_t>(next);
}

/// 16-byte loads of value, gradient and what is kept, where the entry is aligned. `keeping`: those
/// of the flags that say what is kept.
template <template <class> class Formula, class T, unsigned keeping, class Item, class Config>
__global__ void __launch_bounds__(table_threads) optimizer_step_kernel(
    const __grid_constant__ TensorTable<UpdateEntry<T, Item, kept_with<Formula<T>>(keeping)>> table,
    const Config config) {
  __shared__ unsigned long long shared[warp_size];
  const auto& entry = entry_of_block(table);
  unsigned flags = (flags_of(config) & ~keeping_flags) | keeping;
  Seen<T> own;
  Formula<T> formula;
  if constexpr (std::is_same_v<Item, AdamItem>) {
    __shared__ Formula<T> of_block;
    if (threadIdx.x == 0) {
      const std::int64_t step = next_step(entry.step, entry.part.blocks);
      of_block = Formula<T>::of(config, step);
      if (blockIdx.x == entry.part.first_block) own.sum = count_term(entry.fingerprint.salt, step);
    }
    __syncthreads();
    formula = of_block;
  } else {
    formula = Formula<T>::of(config);
  }
  if constexpr (std::is_same_v<Item, SgdItem>) flags |= when(entry.first, first_step);
  update_chunk(entry, own, shared, [&](T& value, T gradient, T& a, T& b, T& c) {
    formula(value, gradient, a, b, c, flags);
  });
}

/// 16-byte loads of all tensors, where the entry is aligned.
template <class T>
__global__ void __launch_bounds__(table_threads)
    fingerprint_kernel(const __grid_constant__ TensorTable<FingerprintEntry<T>> table) {
  __shared__ unsigned long long shared[warp_size];
  const FingerprintEntry<T>& entry = entry_of_block(table);
  Seen<T> own;
  for_chunk<T>(entry.part, [&](auto constant, std::int64_t i) {
    constexpr int width = decltype(constant)::value;
    Pack<T, width> x[4] = {};
#pragma unroll
    for (int t = 0; t < 4; ++t)
      if (entry.data[t] != nullptr) x[t] = load_pack<width>(entry.data[t] + i);
#pragma unroll
    for (int k = 0; k < width; ++k)
      own.add(element_key<T>(entry.fingerprint.salt, i + k), x[0][k], x[1][k], x[2][k], x[3][k]);
  });
  entry.fingerprint.add(own, shared);
}

/// Launches the kernel for the items of type T, a table at a time. (One without elements is
/// launched too: Adam counts its steps.)
template <template <class> class Formula, class T, unsigned keeping, class Item, class Config>
void update_items(std::span<const Item> items, const Config& config) {
  using Entry = UpdateEntry<T, Item, kept_with<Formula<T>>(keeping)>;
  const Queue queue = queue_of(items[0].value);
  for_each_table<Entry>(
      items,
      [&](TensorTable<Entry>& table, const Item& item) {
        if (item.value.dtype() != dtype_of<T>()) return;
        const Entry entry = Entry::of(item, config);
        table.template add<T>(entry, item.value, entry.aligned());
      },
      [&](const TensorTable<Entry>& table) {
        launch<optimizer_step_kernel<Formula, T, keeping, Item, Config>>(
            {.grid = table.blocks, .block = table_threads}, queue.stream, table, config);
      });
}

template <template <class> class Formula, class Item, class Config>
void step_on(std::span<const Item> items, const Config& config) {
  if (items.empty()) return;
  with_flags<Formula<float>::flags & keeping_flags>(flags_of(config), [&](auto constant) {
    constexpr unsigned keeping = decltype(constant)::value;
    update_items<Formula, float, keeping>(items, config);
    update_items<Formula, double, keeping>(items, config);
  });
}

template <class T>
void add_fingerprint_of(std::span<const Tensor> tensors, const Fingerprint& fingerprint,
                        const Queue& queue) {
  FingerprintEntry<T> entry{{}, {}, DeviceFingerprint::of(fingerprint)};
  bool aligned = true;
  for (std::size_t k = 0; k < tensors.size(); ++k) {
    entry.data[k] = tensors[k].data<T>();
    aligned = aligned && is_aligned(entry.data[k]);
  }
  TensorTable<FingerprintEntry<T>> table;
  table.template add<T>(entry, tensors[0], aligned);
  launch<fingerprint_kernel<T>>({.grid = table.blocks, .block = table_threads}, queue.stream,
                                table);
}

}  // namespace

void CudaBackend::sgd_step(std::span<const SgdItem> items, const SgdConfig& config) {
  step_on<Sgd>(items, config);
}

void CudaBackend::adam_step(std::span<const AdamItem> items, const AdamConfig& config) {
  step_on<Adam>(items, config);
}

void CudaBackend::rmsprop_step(std::span<const RmspropItem> items, const RmspropConfig& config) {
  step_on<Rmsprop>(items, config);
}

void CudaBackend::lion_step(std::span<const LionItem> items, const LionConfig& config) {
  step_on<Lion>(items, config);
}

void CudaBackend::add_fingerprint(std::span<const Tensor> tensors, const Fingerprint& fingerprint) {
  if (tensors[0].numel() == 0) return;
  visit_floating("add_fingerprint", tensors[0].dtype(), [&](auto zero) {
    add_fingerprint_of<decltype(zero)>(tensors, fingerprint, queue_of(tensors[0]));
  });
}

}  // namespace lockstep::kernels
