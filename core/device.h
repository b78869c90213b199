#pragma once
/// Where a tensor's memory lies.

#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"

namespace lockstep {

struct Device {
  enum class Kind : std::uint8_t { cpu, sim, cuda };
  Kind kind = Kind::cpu;
  int index = 0;

  bool operator==(const Device&) const = default;

  static constexpr std::string_view name_of(Kind kind) {
    return kind == Kind::cpu ? "cpu" : kind == Kind::sim ? "sim" : "cuda";
  }
  std::string to_string() const {
    return kind == Kind::cpu ? "cpu" : fmt::format("{}:{}", name_of(kind), index);
  }
};

}  // namespace lockstep
