#pragma once
/// Conversions between the device's own floating types.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <type_traits>

#include "lockstep/core/half.h"

namespace lockstep::kernels {

/// x as a To, rounded to the nearest, ties to even. Those to 16 bits begin at f32, as on the
/// processor.
template <class To, class From>
__device__ __forceinline__ To convert(From x) {
  if constexpr (std::is_same_v<From, __half>)
    return convert<To>(__half2float(x));
  else if constexpr (std::is_same_v<From, __nv_bfloat16>)
    return convert<To>(__bfloat162float(x));
  else if constexpr (std::is_same_v<To, __half>)
    return __float2half_rn(static_cast<float>(x));
  else if constexpr (std::is_same_v<To, __nv_bfloat16>)
    return __float2bfloat16_rn(static_cast<float>(x));
  else
    return static_cast<To>(x);
}

/// The type in which the device computes with elements of a tensor's type.
template <class T>
using OnDevice =
    std::conditional_t<std::is_same_v<T, Half>, __half,
                       std::conditional_t<std::is_same_v<T, BFloat16>, __nv_bfloat16, T>>;

}  // namespace lockstep::kernels
