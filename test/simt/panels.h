#pragma once
/// What tests of the copy engine share: a simulated Hopper, and matrices for its tensor maps.

#include <cudaTypedefs.h>
#include <hopper_intrinsics.h>

#include "simt/support.h"

namespace simt::test {

constexpr int panel_bytes = 64 * 128;

inline Config hopper(Config config = simt::config()) {
  config.capability = 90;
  return config;
}

/// The beginning of shared memory where the swizzle's pattern begins.
inline unsigned char* first_panel() {
  auto* bytes = dynamic_shared<unsigned char>();
  return bytes + (1024 - shared_address(bytes) % 1024) % 1024;
}

/// A matrix of floats as the copy engine takes it: boxes of 64 rows, 32 columns.
inline CUtensorMap map_of(float* data, cuuint64_t rows, cuuint64_t columns,
                          CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT32) {
  void* function = nullptr;
  ok(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                      cudaEnableDefault));
  const auto encode = reinterpret_cast<PFN_cuTensorMapEncodeTiled_v12000>(function);
  const cuuint64_t sizes[] = {columns, rows}, strides[] = {columns * sizeof(float)};
  const cuuint32_t box[] = {32, 64}, ones[] = {1, 1};
  CUtensorMap map;
  REQUIRE(encode(&map, type, 2, data, sizes, strides, box, ones, CU_TENSOR_MAP_INTERLEAVE_NONE,
                 CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
                 CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE) == CUDA_SUCCESS);
  return map;
}

}  // namespace simt::test
