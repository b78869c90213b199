// Optimizers over a table of tensors: one launch updates as many tensors as fit into a kernel's
// parameters, each element once.

#include <array>

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

  static DeviceFingerprint of(const Fingerprint& fingerprint) {
    if (!fingerprint.sum) return {nullptr, 0};
    return {reinterpret_cast<unsigned long long*>(fingerprint.sum->data<std::int64_t>()),
            fingerprint.salt};
  }

  /// The terms of `own` of all threads of the block. An integer sum: the order does not matter.
  __device__ void add(unsigned long long own, unsigned long long (&shared)[warp_size]) const {
    const unsigned long long total =
        team_fold(own, Adding<unsigned long long>(), table_threads, shared);
    if (threadIdx.x == 0) atomicAdd(sum, total);
  }
};

/// One tensor, and the n tensors that are kept of it.
template <class T, int n>
struct UpdateEntry {
  TablePart part;
  T* value;
  const T* gradient;
  T* kept[n > 0 ? n : 1];
  DeviceFingerprint fingerprint;

  template <class Item>
  static UpdateEntry of(const Item& item, const std::array<const Tensor*, 3>& tensors) {
    UpdateEntry entry{{},
                      item.value.template data<T>(),
                      item.gradient.template data<T>(),
                      {},
                      DeviceFingerprint::of(item.fingerprint)};
    for (int k = 0; k < n; ++k) entry.kept[k] = tensors[k]->template data<T>();
    return entry;
  }
  bool aligned() const {
    bool all = is_aligned(value) && is_aligned(gradient);
    for (const T* tensor : kept) all = all && is_aligned(tensor);
    return all;
  }
};

template <class T, bool momentum>
struct SgdEntry : UpdateEntry<T, momentum ? 1 : 0> {
  bool first;
};

template <class T, bool amsgrad>
struct AdamEntry : UpdateEntry<T, amsgrad ? 3 : 2> {
  std::int64_t* step;
};

template <class T, bool centered, bool momentum>
using RmspropEntry = UpdateEntry<T, 1 + centered + momentum>;

template <class T>
struct FingerprintEntry {
  TablePart part;
  const T *a, *b, *c, *d;  // all but a may be null
  DeviceFingerprint fingerprint;
};

/// Calls update(value, gradient, a, b, c) for each element of the block's chunk, of which the first
/// n of `a`, `b` and `c` are what is kept of it. Adds `own` and the fingerprint of what it leaves.
template <class T, int n, class Update>
__device__ void update_chunk(const UpdateEntry<T, n>& entry, unsigned long long own,
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
      own += fingerprint_term(element_key<T>(entry.fingerprint.salt, i + k), value[k], kept[0][k],
                              kept[1][k], kept[2][k]);
  });
  if (entry.fingerprint.sum != nullptr) entry.fingerprint.add(own, shared);
}

/// 16-byte loads of value, gradient and buffer, where the entry is aligned.
template <class T, bool momentum>
__global__ void __launch_bounds__(table_threads)
    sgd_step_kernel(const __grid_constant__ TensorTable<SgdEntry<T, momentum>> table,
                    const SgdConfig config) {
  __shared__ unsigned long long shared[warp_size];
  const SgdEntry<T, momentum>& entry = entry_of_block(table);
  const SgdScalars<T> s = SgdScalars<T>::of(config, entry.first);
  const SgdFlags flags = SgdFlags::of(config);
  update_chunk(entry, 0, shared, [&](T& value, T gradient, T& buffer, T&, T&) {
    if constexpr (momentum) {
      if (entry.first) buffer = 0;
      sgd_momentum(value, gradient, buffer, s, flags);
    } else {
      sgd_plain(value, gradient, s, flags);
    }
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

/// 16-byte loads of value, gradient and what is kept, where the entry is aligned.
template <class T, bool amsgrad>
__global__ void __launch_bounds__(table_threads)
    adam_step_kernel(const __grid_constant__ TensorTable<AdamEntry<T, amsgrad>> table,
                     const AdamConfig config) {
  __shared__ AdamScalars<T> shared_scalars;
  __shared__ unsigned long long shared[warp_size];
  const AdamEntry<T, amsgrad>& entry = entry_of_block(table);
  unsigned long long own = 0;
  if (threadIdx.x == 0) {
    const std::int64_t step = next_step(entry.step, entry.part.blocks);
    shared_scalars = AdamScalars<T>::of(config, step);
    if (blockIdx.x == entry.part.first_block) own = count_term(entry.fingerprint.salt, step);
  }
  __syncthreads();
  const AdamScalars<T> s = shared_scalars;
  AdamFlags flags = AdamFlags::of(config);
  flags.amsgrad = amsgrad;  // a constant
  update_chunk(entry, own, shared, [&](T& value, T gradient, T& mean, T& variance, T& largest) {
    adam(value, gradient, mean, variance, largest, s, flags);
  });
}

/// 16-byte loads of value, gradient and what is kept, where the entry is aligned.
template <class T, bool centered, bool momentum>
__global__ void __launch_bounds__(table_threads) rmsprop_step_kernel(
    const __grid_constant__ TensorTable<RmspropEntry<T, centered, momentum>> table,
    const RmspropConfig config) {
  __shared__ unsigned long long shared[warp_size];
  const RmspropScalars<T> s = RmspropScalars<T>::of(config);
  RmspropFlags flags = RmspropFlags::of(config);
  flags.centered = centered;  // constants
  flags.momentum = momentum;
  update_chunk(entry_of_block(table), 0, shared,
               [&](T& value, T gradient, T& square, T& second, T& third) {
                 rmsprop(value, gradient, square, second, centered ? third : second, s, flags);
               });
}

/// 16-byte loads of value, gradient and momentum, where the entry is aligned.
template <class T>
__global__ void __launch_bounds__(table_threads)
    lion_step_kernel(const __grid_constant__ TensorTable<UpdateEntry<T, 1>> table,
                     const LionConfig config) {
  __shared__ unsigned long long shared[warp_size];
  const LionScalars<T> s = LionScalars<T>::of(config);
  update_chunk(entry_of_block(table), 0, shared, [&](T& value, T gradient, T& momentum, T&, T&) {
    lion(value, gradient, momentum, s, config.maximize);
  });
}

/// 16-byte loads of all tensors, where the entry is aligned.
template <class T>
__global__ void __launch_bounds__(table_threads)
    fingerprint_kernel(const __grid_constant__ TensorTable<FingerprintEntry<T>> table) {
  __shared__ unsigned long long shared[warp_size];
  const FingerprintEntry<T>& entry = entry_of_block(table);
  unsigned long long own = 0;
  for_chunk<T>(entry.part, [&](auto constant, std::int64_t i) {
    constexpr int width = decltype(constant)::value;
    const Pack<T, width> a = load_pack<width>(entry.a + i);
    Pack<T, width> b{}, c{}, d{};
    if (entry.b != nullptr) b = load_pack<width>(entry.b + i);
    if (entry.c != nullptr) c = load_pack<width>(entry.c + i);
    if (entry.d != nullptr) d = load_pack<width>(entry.d + i);
#pragma unroll
    for (int k = 0; k < width; ++k)
      own +=
          fingerprint_term(element_key<T>(entry.fingerprint.salt, i + k), a[k], b[k], c[k], d[k]);
  });
  entry.fingerprint.add(own, shared);
}

/// Launches `kernel` for the items of type T, a table at a time: `entry_of(item)` for each. (One
/// without elements is launched too: Adam counts its steps.)
template <auto kernel, class T, class Item, class Config, class EntryOf>
void update_items(std::span<const Item> items, const Config& config, EntryOf entry_of) {
  using Entry = decltype(entry_of(items[0]));
  const Queue queue = queue_of(items[0].value);
  for_each_table<Entry>(
      items,
      [&](TensorTable<Entry>& table, const Item& item) {
        if (item.value.dtype() != dtype_of<T>()) return;
        const Entry entry = entry_of(item);
        table.template add<T>(entry, item.value, entry.aligned());
      },
      [&](const TensorTable<Entry>& table) {
        launch<kernel>({.grid = table.blocks, .block = table_threads}, queue.stream, table, config);
      });
}

template <class T>
void sgd_items(std::span<const SgdItem> items, const SgdConfig& config) {
  with_flag(config.momentum != 0, [&](auto constant) {
    constexpr bool momentum = decltype(constant)::value;
    using Entry = SgdEntry<T, momentum>;
    update_items<sgd_step_kernel<T, momentum>, T>(items, config, [](const SgdItem& item) {
      return Entry{{Entry::of(item, {&item.momentum})}, item.first};
    });
  });
}

template <class T>
void adam_items(std::span<const AdamItem> items, const AdamConfig& config) {
  with_flag(config.amsgrad, [&](auto constant) {
    constexpr bool amsgrad = decltype(constant)::value;
    using Entry = AdamEntry<T, amsgrad>;
    update_items<adam_step_kernel<T, amsgrad>, T>(items, config, [](const AdamItem& item) {
      return Entry{{Entry::of(item, {&item.mean, &item.variance, &item.max_variance})},
                   item.step.data<std::int64_t>()};
    });
  });
}

template <class T>
void rmsprop_items(std::span<const RmspropItem> items, const RmspropConfig& config) {
  const auto run = [&](auto first, auto second) {
    constexpr bool centered = decltype(first)::value, momentum = decltype(second)::value;
    using Entry = RmspropEntry<T, centered, momentum>;
    update_items<rmsprop_step_kernel<T, centered, momentum>, T>(
        items, config, [](const RmspropItem& item) {
          // The momentum comes behind the mean, if there is one.
          return Entry::of(item,
                           {&item.square, centered ? &item.mean : &item.momentum, &item.momentum});
        });
  };
  with_flags(run, config.centered, config.momentum != 0);
}

template <class T>
void lion_items(std::span<const LionItem> items, const LionConfig& config) {
  update_items<lion_step_kernel<T>, T>(items, config, [](const LionItem& item) {
    return UpdateEntry<T, 1>::of(item, {&item.momentum});
  });
}

template <class T>
void add_fingerprint_of(std::span<const Tensor> tensors, const Fingerprint& fingerprint,
                        const Queue& queue) {
  const auto data = [&](std::size_t k) {
    return k < tensors.size() ? tensors[k].data<T>() : nullptr;
  };
  const FingerprintEntry<T> entry{{},      data(0), data(1),
                                  data(2), data(3), DeviceFingerprint::of(fingerprint)};
  TensorTable<FingerprintEntry<T>> table;
  table.template add<T>(
      entry, tensors[0],
      is_aligned(entry.a) && is_aligned(entry.b) && is_aligned(entry.c) && is_aligned(entry.d));
  launch<fingerprint_kernel<T>>({.grid = table.blocks, .block = table_threads}, queue.stream,
                                table);
}

}  // namespace

void CudaBackend::sgd_step(std::span<const SgdItem> items, const SgdConfig& config) {
  if (items.empty()) return;
  sgd_items<float>(items, config);
  sgd_items<double>(items, config);
}

void CudaBackend::adam_step(std::span<const AdamItem> items, const AdamConfig& config) {
  if (items.empty()) return;
  adam_items<float>(items, config);
  adam_items<double>(items, config);
}

void CudaBackend::rmsprop_step(std::span<const RmspropItem> items, const RmspropConfig& config) {
  if (items.empty()) return;
  rmsprop_items<float>(items, config);
  rmsprop_items<double>(items, config);
}

void CudaBackend::lion_step(std::span<const LionItem> items, const LionConfig& config) {
  if (items.empty()) return;
  lion_items<float>(items, config);
  lion_items<double>(items, config);
}

void CudaBackend::add_fingerprint(std::span<const Tensor> tensors, const Fingerprint& fingerprint) {
  if (tensors[0].numel() == 0) return;
  visit_floating("add_fingerprint", tensors[0].dtype(), [&](auto zero) {
    add_fingerprint_of<decltype(zero)>(tensors, fingerprint, queue_of(tensors[0]));
  });
}

}  // namespace lockstep::kernels
