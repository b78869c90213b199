#pragma once
/// Element types. Floating: f32 (the default), f64 (gradient checks), f16 and bf16 (storage:
/// operations on them compute in f32, see half.h). Integer: i64 (labels), i32, u8 (pixels).

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <type_traits>

#include "lockstep/core/enum_name.h"
#include "lockstep/core/error.h"
#include "lockstep/core/half.h"
#include "lockstep/core/text/format.h"

namespace lockstep {

enum class DType : std::uint8_t { f32, f64, i64, i32, u8, f16, bf16 };

constexpr std::size_t size_of(DType dtype) {
  constexpr std::size_t sizes[] = {4, 8, 8, 4, 1, 2, 2};
  return sizes[static_cast<std::size_t>(dtype)];
}

constexpr std::string_view name_of(DType dtype) {
  return name_in({"f32", "f64", "i64", "i32", "u8", "f16", "bf16"}, dtype);
}

/// The dtypes in which derivatives are computed.
constexpr bool is_differentiable(DType dtype) { return dtype == DType::f32 || dtype == DType::f64; }

constexpr bool is_16_bit(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

/// f32, f64, f16 or bf16.
constexpr bool is_any_floating(DType dtype) { return is_differentiable(dtype) || is_16_bit(dtype); }

template <class T>
constexpr DType dtype_of() {
  if constexpr (std::is_same_v<T, float>)
    return DType::f32;
  else if constexpr (std::is_same_v<T, double>)
    return DType::f64;
  else if constexpr (std::is_same_v<T, std::int64_t>)
    return DType::i64;
  else if constexpr (std::is_same_v<T, std::int32_t>)
    return DType::i32;
  else if constexpr (std::is_same_v<T, Half>)
    return DType::f16;
  else if constexpr (std::is_same_v<T, BFloat16>)
    return DType::bf16;
  else {
    static_assert(std::is_same_v<T, std::uint8_t>, "no DType for this C++ type");
    return DType::u8;
  }
}

/// Calls f with a zero of the C++ type behind `dtype`: f(float{}) or f(double{}). Throws DTypeError
/// in the name of `operation` for any other dtype.
template <class F>
decltype(auto) visit_floating(std::string_view operation, DType dtype, F&& f) {
  check<DTypeError>(is_differentiable(dtype), "[{}] takes f32 or f64, got {}", operation,
                    name_of(dtype));
  return dtype == DType::f32 ? f(float{}) : f(double{});
}

/// As visit_floating, but for the 16-bit types too.
template <class F>
decltype(auto) visit_any_floating(std::string_view operation, DType dtype, F&& f) {
  if (is_16_bit(dtype)) return dtype == DType::f16 ? f(Half{}) : f(BFloat16{});
  check<DTypeError>(is_differentiable(dtype), "[{}] takes f32, f64, f16 or bf16, got {}", operation,
                    name_of(dtype));
  return dtype == DType::f32 ? f(float{}) : f(double{});
}

/// Calls f with a zero of the C++ type behind `dtype`, whichever it is.
template <class F>
decltype(auto) visit_any(DType dtype, F&& f) {
  switch (dtype) {
    case DType::f32: return f(float{});
    case DType::f64: return f(double{});
    case DType::i64: return f(std::int64_t{});
    case DType::i32: return f(std::int32_t{});
    case DType::f16: return f(Half{});
    case DType::bf16: return f(BFloat16{});
    case DType::u8: break;
  }
  return f(std::uint8_t{});
}

inline std::string to_string(DType dtype) { return std::string(name_of(dtype)); }

}  // namespace lockstep

template <>
struct fmt::formatter<lockstep::DType> : lockstep::TextFormatter {};
