// Counted (./lockstep count --write; docs/counters.md):
//   tree_reduce_2 65536: loads 16.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest
//   tree_reduce_8 65536: loads 16.00 (100 %), stores 16.00 (100 %), DRAM 1.00 of the fewest

#include "lockstep/kernels/cuda/backend.h"
#include "lockstep/kernels/cuda/common.cuh"
#include "lockstep/kernels/cuda/convert.cuh"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep::kernels {
namespace {

using cuda::launch;
using cuda::Queue;
using cuda::queue_of;

// For each multiprocessor: beside other work (StreamUse) a quarter of 2048 threads, else all.
constexpr int threads = 256;
int blocks_per_multiprocessor(StreamUse use) { return use == StreamUse::communicating ? 2 : 8; }

constexpr int most_pointers = 16;

struct FoldTable {
  const std::byte* sources[most_pointers];
  std::byte* destinations[most_pointers];
  int source_count, destination_count;
};

/// In which elements are added up.
template <class T>
using Sum =
    std::conditional_t<std::is_same_v<T, __half> || std::is_same_v<T, __nv_bfloat16>, float, T>;

/// Elements [i, i + width): every source is read before a destination, which may be one of them, is
/// written. Neighbours are added, then neighbouring sums, and so on; one without a neighbour waits:
/// that is the tree of tree_reduce.h.
template <class T, int most, int width>
__device__ __forceinline__ void fold_at(const FoldTable& table, std::int64_t i) {
  Pack<T, width> loaded[most];
#pragma unroll
  for (int s = 0; s < most; ++s)
    if (s < table.source_count)
      loaded[s] = load_pack<width>(reinterpret_cast<const T*>(table.sources[s]) + i);
  Pack<Sum<T>, width> sums[most / 2];  // of two each: 16-bit elements take up more room as sums
#pragma unroll
  for (int s = 0; s < most; s += 2) {
    if (s >= table.source_count) continue;
#pragma unroll
    for (int k = 0; k < width; ++k) {
      sums[s / 2][k] = convert<Sum<T>>(loaded[s][k]);
      if (s + 1 < table.source_count) sums[s / 2][k] += convert<Sum<T>>(loaded[s + 1][k]);
    }
  }
  const int pairs = (table.source_count + 1) / 2;
#pragma unroll
  for (int distance = 1; distance < most / 2; distance *= 2) {
#pragma unroll
    for (int s = 0; s < most / 2; s += 2 * distance) {
      if (s + distance < pairs) {
#pragma unroll
        for (int k = 0; k < width; ++k) sums[s][k] += sums[s + distance][k];
      }
    }
  }
  Pack<T, width> result;
#pragma unroll
  for (int k = 0; k < width; ++k) result[k] = convert<T>(sums[0][k]);
  for (int d = 0; d < table.destination_count; ++d)
    store_pack(reinterpret_cast<T*>(table.destinations[d]) + i, result);
}

/// 16-byte loads of elements [head, head + packs * width) of `count`; the others, before and after,
/// one at a time. At most `most` sources.
template <class T, int most>
__global__ void __launch_bounds__(threads)
    tree_reduce_kernel(const __grid_constant__ FoldTable table, std::int64_t head,
                       std::int64_t packs, std::int64_t count) {
  constexpr int width = pack_width<T>;
  const std::int64_t stride = std::int64_t{gridDim.x} * threads;
  const std::int64_t thread = std::int64_t{blockIdx.x} * threads + threadIdx.x;
  for (std::int64_t p = thread; p < packs; p += stride)
    fold_at<T, most, width>(table, head + p * width);
  const std::int64_t body = packs * width;
  for (std::int64_t i = thread; i < count - body; i += stride)
    fold_at<T, most, 1>(table, i < head ? i : i + body);
}

/// The number of elements before the first at which all pointers are multiples of 16, or `count` if
/// there is none: they usually are slices of like buffers, and lie alike.
template <class T>
std::int64_t head_of(const FoldTable& table, std::int64_t count) {
  const auto past = [](const std::byte* p) { return reinterpret_cast<std::uintptr_t>(p) % 16; };
  const std::uintptr_t common = past(table.sources[0]);
  for (int s = 0; s < table.source_count; ++s)
    if (past(table.sources[s]) != common) return count;
  for (int d = 0; d < table.destination_count; ++d)
    if (past(table.destinations[d]) != common) return count;
  return std::min<std::int64_t>(count, (16 - common) % 16 / sizeof(T));
}

template <class T, int most = 2>
void fold_typed(const FoldTable& table, std::int64_t count, Device device) {
  if constexpr (most < most_pointers)
    if (table.source_count > most) return fold_typed<T, 2 * most>(table, count, device);
  const std::int64_t head = head_of<T>(table, count), packs = (count - head) / pack_width<T>;
  const std::int64_t work = std::max(packs, count - packs * pack_width<T>);
  const Queue queue = queue_of(device);
  launch<tree_reduce_kernel<T, most>>(
      {.grid = strided_blocks_for(device, work, threads, blocks_per_multiprocessor(queue.use)),
       .block = threads},
      queue.stream, table, head, packs, count);
}

template <class Pointer>
void copy_pointers(std::string_view kind, std::span<const Pointer> from,
                   Pointer (&to)[most_pointers], int& number) {
  check<ShapeError>(from.size() <= most_pointers, "[tree_reduce] takes at most {} {}, got {}",
                    most_pointers, kind, from.size());
  std::copy(from.begin(), from.end(), to);
  number = static_cast<int>(from.size());
}

}  // namespace

void CudaBackend::tree_reduce(DType dtype, std::span<const std::byte* const> sources,
                              std::span<std::byte* const> destinations, std::int64_t count,
                              Device device) {
  FoldTable table;
  copy_pointers<const std::byte*>("sources", sources, table.sources, table.source_count);
  copy_pointers<std::byte*>("destinations", destinations, table.destinations,
                            table.destination_count);
  switch (dtype) {
    case DType::f32: return fold_typed<float>(table, count, device);
    case DType::f64: return fold_typed<double>(table, count, device);
    case DType::i32: return fold_typed<std::uint32_t>(table, count, device);  // unsigned ones wrap
    case DType::i64: return fold_typed<std::uint64_t>(table, count, device);
    case DType::f16: return fold_typed<__half>(table, count, device);
    case DType::bf16: return fold_typed<__nv_bfloat16>(table, count, device);
    case DType::u8: break;
  }
  fail<DTypeError>("[tree_reduce] takes floating elements, i32 or i64, got {}", dtype);
}

}  // namespace lockstep::kernels
