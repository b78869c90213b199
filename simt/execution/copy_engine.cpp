/// Tensor maps, and copies by them: PTX ISA 9.0, sections 5.5 and 9.7.9.25.5.2;
/// cuTensorMapEncodeTiled in the CUDA driver API. Of all that there is: matrices, 128-byte swizzle.

#include "lockstep/simt/include/simt/copy_engine.h"

#include <cudaTypedefs.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "lockstep/simt/counters/observer.h"
#include "lockstep/simt/execution/mbarrier.h"
#include "lockstep/simt/include/simt/cluster.h"
#include "lockstep/simt/include/simt/warp.h"
#include "lockstep/simt/races/races.h"
#include "lockstep/simt/runtime/call.h"
#include "lockstep/simt/watch/watch.h"

namespace simt::detail {
namespace {

/// What a CUtensorMap holds here.
struct Matrix {
  std::uint64_t mark;
  const std::byte* data;
  std::uint64_t inner, outer;  ///< sizes, in elements; rows lie along `inner`
  std::uint64_t row_bytes;     ///< from row to row
  std::uint32_t box_inner, box_outer;
  std::uint32_t element_bytes;
  bool to_tf32;  ///< floats are rounded on the way

  std::uint32_t box_bytes() const { return box_inner * box_outer * element_bytes; }
};
constexpr std::uint64_t encoded = 0x70616d2d726f736e;
static_assert(sizeof(Matrix) <= sizeof(CUtensorMap));

std::uint32_t bytes_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32: return 4;
  }
  return 0;
}

/// To the nearest; ties to even, which no document says, but a GPU was reported to do. (to_tf32
/// rounds them away from zero.) Infinity and NaN stay what they are.
std::uint32_t rounded_to_tf32(std::uint32_t bits) {
  if ((bits & 0x7f800000u) == 0x7f800000u) return bits;
  return (bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u;
}

/// The swizzle: bits 4-6 of a shared address are flipped by its bits 7-9 (5.5.7).
std::uint32_t swizzled(std::uint32_t address) { return address ^ (address >> 7 & 7) << 4; }

/// Copies the box at (inner, outer) to `to`, which has the shared address `address`. What lies
/// outside of the matrix is zero.
void copy(const Matrix& matrix, std::int64_t inner, std::int64_t outer, std::byte* to,
          std::uint32_t address) {
  const std::uint32_t bytes = matrix.element_bytes;
  for (std::uint32_t row = 0; row < matrix.box_outer; ++row)
    for (std::uint32_t column = 0; column < matrix.box_inner; ++column) {
      const auto i = static_cast<std::uint64_t>(outer + row);  // huge, if negative
      const auto j = static_cast<std::uint64_t>(inner + column);
      std::byte element[4] = {};
      if (i < matrix.outer && j < matrix.inner)
        std::memcpy(element, matrix.data + i * matrix.row_bytes + j * bytes, bytes);
      if (matrix.to_tf32) {
        const std::uint32_t rounded = rounded_to_tf32(std::bit_cast<std::uint32_t>(element));
        std::memcpy(element, &rounded, sizeof rounded);
      }
      const std::uint32_t place = address + (row * matrix.box_inner + column) * bytes;
      std::memcpy(to + (swizzled(place) - address), element, bytes);
    }
}

/// All of it is memory that the runtime knows.
bool is_global_memory(const void* data, std::size_t bytes) {
  const std::lock_guard lock(Runtime::get().mutex);
  return Allocation::holding(data, bytes) != nullptr;
}

}  // namespace

std::uint32_t shared_address(const void* shared) {
  const SharedMemory memory = shared_memory_of(cluster_rank());
  const std::ptrdiff_t offset = static_cast<const std::byte*>(shared) - memory.data;
  if (offset < 0 || static_cast<std::size_t>(offset) > memory.bytes)
    fail_thread(
        "an address in shared memory is wanted, and this is not in the block's dynamic one");
  return shared_base + static_cast<std::uint32_t>(offset);
}

const void* shared_in_block(const void* shared, std::size_t bytes, unsigned rank) {
  constexpr const char* name = "ld.shared::cluster";
  const std::uint32_t address = shared_address(shared);
  if (rank >= cluster_size())
    fail_thread(std::string(name) + " of block " + std::to_string(rank) + " of a cluster of " +
                std::to_string(cluster_size()));
  if (block_has_ended(rank)) fail_thread(std::string(name) + " of a block that ended");
  const std::byte* there = shared_at(rank, address, bytes);
  if (address % bytes != 0 || !there)
    fail_thread(std::string(name) + " of what is not " + std::to_string(bytes) +
                " aligned bytes of shared memory");
  return there;
}

void copy_box(unsigned blocks, void* to, const CUtensorMap& map, int inner, int outer,
              const void* barrier) {
  constexpr const char* name = "cp.async.bulk.tensor";
  Matrix matrix;
  std::memcpy(&matrix, map.opaque, sizeof matrix);
  if (matrix.mark != encoded) fail_thread(std::string(name) + " by a map that was never encoded");
  const std::uint32_t address = shared_address(to);
  if (address % 1024 != 0)
    fail_thread(std::string(name) + " to an address that is not a multiple of 1024");
  for (std::uint64_t row = 0; row < matrix.box_outer; ++row) {
    const std::uint64_t i = static_cast<std::uint64_t>(outer) + row,
                        j = static_cast<std::uint64_t>(inner);
    if (outer < 0 || inner < 0 || i >= matrix.outer || j >= matrix.inner) continue;
    const std::byte* from = matrix.data + i * matrix.row_bytes + j * matrix.element_bytes;
    const std::uint64_t bytes =
        std::min<std::uint64_t>(matrix.box_inner, matrix.inner - j) * matrix.element_bytes;
    watch::box_row(from, bytes, __builtin_return_address(0));
    const auto place = static_cast<std::uint32_t>(row) * matrix.box_inner * matrix.element_bytes;
    for (std::uint32_t chunk = 0; chunk < bytes; chunk += 16)
      counters::box_chunk(matrix.data, from + chunk, swizzled(address + place + chunk) - address);
  }
  for (unsigned rank = 0; rank < 32; ++rank) {
    if (!(blocks >> rank & 1u)) continue;
    std::byte* counter = mbarrier_in(rank, barrier, name);
    std::byte* there = shared_at(rank, address, matrix.box_bytes());
    if (!there) fail_thread(std::string(name) + " to beyond the end of shared memory");
    const auto ticket =
        races::copy_begins(there, matrix.box_bytes(), counter, __builtin_return_address(0));
    std::memset(there, 0xff, matrix.box_bytes());
    defer([=]() -> std::string {
      if (block_has_ended(rank)) return "a copy arrives in a block that has ended";
      copy(matrix, inner, outer, there, address);
      races::copy_arrives(counter, ticket);
      return mbarrier_copied(counter, matrix.box_bytes());
    });
  }
}

}  // namespace simt::detail

using namespace simt::detail;

CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                                void* data, const cuuint64_t* sizes, const cuuint64_t* strides,
                                const cuuint32_t* box, const cuuint32_t* element_strides,
                                CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion, CUtensorMapFloatOOBfill fill) {
  const std::uint32_t bytes = bytes_of(type);
  if (rank != 2 || bytes == 0 || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE ||
      swizzle != CU_TENSOR_MAP_SWIZZLE_128B || fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE ||
      element_strides[0] != 1 || element_strides[1] != 1)
    return CUDA_ERROR_NOT_SUPPORTED;
  constexpr std::uint64_t most_size = std::uint64_t{1} << 32, most_stride = std::uint64_t{1} << 40;
  for (int i = 0; i < 2; ++i)
    if (sizes[i] < 1 || sizes[i] > most_size || box[i] < 1 || box[i] > 256)
      return CUDA_ERROR_INVALID_VALUE;
  if (reinterpret_cast<std::uintptr_t>(data) % 16 != 0 || strides[0] % 16 != 0 ||
      strides[0] >= most_stride || strides[0] < sizes[0] * bytes)
    return CUDA_ERROR_INVALID_VALUE;
  if (reinterpret_cast<std::uintptr_t>(map) % 64 != 0) return CUDA_ERROR_INVALID_VALUE;
  if (!is_global_memory(data, (sizes[1] - 1) * strides[0] + sizes[0] * bytes))
    return CUDA_ERROR_INVALID_VALUE;
  const std::uint32_t box_row = box[0] * bytes;
  if (box_row % 16 != 0 || box_row > 128) return CUDA_ERROR_INVALID_VALUE;
  const Matrix matrix{.mark = encoded,
                      .data = static_cast<const std::byte*>(data),
                      .inner = sizes[0],
                      .outer = sizes[1],
                      .row_bytes = strides[0],
                      .box_inner = box[0],
                      .box_outer = box[1],
                      .element_bytes = bytes,
                      .to_tf32 = type == CU_TENSOR_MAP_DATA_TYPE_TFLOAT32};
  *map = {};
  std::memcpy(map->opaque, &matrix, sizeof matrix);
  return CUDA_SUCCESS;
}
