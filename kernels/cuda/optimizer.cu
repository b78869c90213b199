// SGD and Adam over a table of tensors: one launch updates as many tensors as fit into a kernel's
// parameters, each element once.

#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/reduction.cuh"
#include "lockstep/kernels/cuda/tensor_table.cuh"
#include "lockstep/kernels/formulas/fingerprint_formulas.h"
#include "lockstep/kernels/formulas/optimizer_formulas.h"

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

template <class T>
struct SgdEntry {
  TablePart part;
  T* value;
  const T* gradient;
  T* momentum;  // null without momentum
  bool first;
  DeviceFingerprint fingerprint;
};

template <class T>
struct AdamEntry {
  TablePart part;
  T* value;
  const T* gradient;
  T *mean, *variance;
  std::int64_t* step;
  DeviceFingerprint fingerprint;
};

template <class T>
struct FingerprintEntry {
  TablePart part;
  const T *a, *b, *c;  // b and c may be null
  DeviceFingerprint fingerprint;
};

/// 16-byte loads of value, gradient and buffer, where the entry is aligned.
template <class T>
__global__ void __launch_bounds__(table_threads)
    sgd_step_kernel(const __grid_constant__ TensorTable<SgdEntry<T>> table,
                    const SgdConfig config) {
  __shared__ unsigned long long shared[warp_size];
  const SgdEntry<T>& entry = entry_of_block(table);
  unsigned long long own = 0;
  const SgdScalars<T> scalars = SgdScalars<T>::of(config, entry.first);
  const bool decay = config.weight_decay != 0;
  for_chunk<T>(entry.part, [&](auto constant, std::int64_t i) {
    constexpr int width = decltype(constant)::value;
    Pack<T, width> value = load_pack<width>(entry.value + i);
    const Pack<T, width> gradient = load_pack<width>(entry.gradient + i);
    Pack<T, width> buffer{};
    if (entry.momentum == nullptr) {
#pragma unroll
      for (int k = 0; k < width; ++k) sgd_plain(value[k], gradient[k], scalars, decay);
    } else {
      if (!entry.first) buffer = load_pack<width>(entry.momentum + i);
#pragma unroll
      for (int k = 0; k < width; ++k)
        sgd_momentum(value[k], gradient[k], buffer[k], scalars, decay, config.nesterov);
      store_pack(entry.momentum + i, buffer);
    }
    store_pack(entry.value + i, value);
    if (entry.fingerprint.sum == nullptr) return;
#pragma unroll
    for (int k = 0; k < width; ++k)
      own += fingerprint_term(element_key<T>(entry.fingerprint.salt, i + k), value[k], buffer[k]);
  });
  if (entry.fingerprint.sum != nullptr) entry.fingerprint.add(own, shared);
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
__global__ void __launch_bounds__(table_threads)
    adam_step_kernel(const __grid_constant__ TensorTable<AdamEntry<T>> table,
                     const AdamConfig config) {
  __shared__ AdamScalars<T> shared_scalars;
  __shared__ unsigned long long shared[warp_size];
  const AdamEntry<T>& entry = entry_of_block(table);
  unsigned long long own = 0;
  if (threadIdx.x == 0) {
    const std::int64_t step = next_step(entry.step, entry.part.blocks);
    shared_scalars = AdamScalars<T>::of(config, step);
    if (blockIdx.x == entry.part.first_block) own = count_term(entry.fingerprint.salt, step);
  }
  __syncthreads();
  const AdamScalars<T> scalars = shared_scalars;
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
    if (entry.fingerprint.sum == nullptr) return;
#pragma unroll
    for (int k = 0; k < width; ++k)
      own += fingerprint_term(element_key<T>(entry.fingerprint.salt, i + k), value[k], mean[k],
                              variance[k]);
  });
  if (entry.fingerprint.sum != nullptr) entry.fingerprint.add(own, shared);
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
    Pack<T, width> b{}, c{};
    if (entry.b != nullptr) b = load_pack<width>(entry.b + i);
    if (entry.c != nullptr) c = load_pack<width>(entry.c + i);
#pragma unroll
    for (int k = 0; k < width; ++k)
      own += fingerprint_term(element_key<T>(entry.fingerprint.salt, i + k), a[k], b[k], c[k]);
  });
  entry.fingerprint.add(own, shared);
}

template <class T>
void sgd_items(std::span<const SgdItem> items, const SgdConfig& config, const Queue& queue) {
  using Entry = SgdEntry<T>;
  for_each_table<Entry>(
      items,
      [&](TensorTable<Entry>& table, const SgdItem& item) {
        if (item.value.dtype() != dtype_of<T>() || item.value.numel() == 0) return;
        const Entry entry{{},
                          item.value.data<T>(),
                          item.gradient.data<T>(),
                          config.momentum != 0 ? item.momentum.data<T>() : nullptr,
                          item.first,
                          DeviceFingerprint::of(item.fingerprint)};
        table.template add<T>(
            entry, item.value,
            is_aligned(entry.value) && is_aligned(entry.gradient) && is_aligned(entry.momentum));
      },
      [&](const TensorTable<Entry>& table) {
        launch<sgd_step_kernel<T>>({.grid = table.blocks, .block = table_threads}, queue.stream,
                                   table, config);
      });
}

template <class T>
void adam_items(std::span<const AdamItem> items, const AdamConfig& config, const Queue& queue) {
  using Entry = AdamEntry<T>;
  for_each_table<Entry>(
      items,
      [](TensorTable<Entry>& table, const AdamItem& item) {
        if (item.value.dtype() != dtype_of<T>()) return;
        // One without elements counts its steps too.
        const Entry entry{{},
                          item.value.data<T>(),
                          item.gradient.data<T>(),
                          item.mean.data<T>(),
                          item.variance.data<T>(),
                          item.step.data<std::int64_t>(),
                          DeviceFingerprint::of(item.fingerprint)};
        table.template add<T>(entry, item.value,
                              is_aligned(entry.value) && is_aligned(entry.gradient) &&
                                  is_aligned(entry.mean) && is_aligned(entry.variance));
      },
      [&](const TensorTable<Entry>& table) {
        launch<adam_step_kernel<T>>({.grid = table.blocks, .block = table_threads}, queue.stream,
                                    table, config);
      });
}

template <class T>
void add_fingerprint_of(std::span<const Tensor> tensors, const Fingerprint& fingerprint,
                        const Queue& queue) {
  const auto data = [&](std::size_t k) {
    return k < tensors.size() ? tensors[k].data<T>() : nullptr;
  };
  const FingerprintEntry<T> entry{
      {}, data(0), data(1), data(2), DeviceFingerprint::of(fingerprint)};
  TensorTable<FingerprintEntry<T>> table;
  table.template add<T>(entry, tensors[0],
                        is_aligned(entry.a) && is_aligned(entry.b) && is_aligned(entry.c));
  launch<fingerprint_kernel<T>>({.grid = table.blocks, .block = table_threads}, queue.stream,
                                table);
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

void CudaBackend::add_fingerprint(std::span<const Tensor> tensors, const Fingerprint& fingerprint) {
  if (tensors[0].numel() == 0) return;
  visit_floating("add_fingerprint", tensors[0].dtype(), [&](auto zero) {
    add_fingerprint_of<decltype(zero)>(tensors, fingerprint, queue_of(tensors[0]));
  });
}

}  // namespace lockstep::kernels
