#pragma once
/// Where a tensor's memory lies.

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/enum_name.h"
#include "lockstep/core/error.h"
#include "lockstep/core/text/format.h"

namespace lockstep {

/// A processor (`cpu`, index 0), a GPU of the simulator (`sim`) or of CUDA (`cuda`). Any value can
/// be made; functions that need the device throw DeviceError if this build or machine lacks it.
struct Device {
  enum class Kind : std::uint8_t { cpu, sim, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  bool operator==(const Device&) const = default;

  static constexpr std::string_view name_of(Kind kind) {
    return name_in({"cpu", "sim", "cuda"}, kind);
  }
  /// "cpu", "sim:0", "cuda:1".
  std::string to_string() const {
    return kind == Kind::cpu ? "cpu" : fmt::format("{}:{}", name_of(kind), index);
  }
};

inline std::string to_string(const Device& device) { return device.to_string(); }

}  // namespace lockstep

template <>
struct fmt::formatter<lockstep::Device> : lockstep::TextFormatter {};
