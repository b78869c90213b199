/// The types of simulated NCCL, and sums of them.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstring>

#include "lockstep/simt/nccl/nccl_communicator.h"

namespace simt::detail {
namespace {

template <class T>
void add(std::span<const std::byte* const> parts, std::byte* to, std::size_t count) {
  const auto at = [](const std::byte* part, std::size_t i) {
    T value;
    std::memcpy(&value, part + i * sizeof(T), sizeof(T));
    return value;
  };
  for (std::size_t i = 0; i < count; ++i) {
    T sum = at(parts[0], i);
    for (const std::byte* part : parts.subspan(1)) sum = static_cast<T>(sum + at(part, i));
    std::memcpy(to + i * sizeof(T), &sum, sizeof(T));  // `to` may be one of the parts
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return 1;
    case ncclFloat16:
    case ncclBfloat16: return 2;
    case ncclInt32:
    case ncclUint32:
    case ncclFloat32: return 4;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64: return 8;
  }
  return 0;
}

void add_parts(std::span<const std::byte* const> parts, std::byte* to, std::size_t count,
               ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8: return add<std::uint8_t>(parts, to, count);
    case ncclInt32:
    case ncclUint32: return add<std::uint32_t>(parts, to, count);  // integers wrap
    case ncclInt64:
    case ncclUint64: return add<std::uint64_t>(parts, to, count);
    case ncclFloat16: return add<__half>(parts, to, count);
    case ncclBfloat16: return add<__nv_bfloat16>(parts, to, count);
    case ncclFloat32: return add<float>(parts, to, count);
    case ncclFloat64: return add<double>(parts, to, count);
  }
}

}  // namespace simt::detail
