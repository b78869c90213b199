#pragma once
/// files.json, which make_files.py writes: files of NumPy and others, and what they hold.

#include <doctest/doctest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "data/files.h"
#include "lockstep/core/tensor.h"

namespace lockstep::data {

inline const nlohmann::json& stored() {
  static const nlohmann::json all =
      nlohmann::json::parse(std::ifstream(LOCKSTEP_SOURCE_DIR "/test/data/files.json"));
  return all;
}

inline Bytes bytes_of_hex(const std::string& hex) {
  Bytes bytes(hex.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::uint8_t>(std::stoi(hex.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

/// The elements, whatever their dtype.
inline std::vector<double> elements(const Tensor& tensor) {
  std::vector<double> result;
  visit_any(tensor.dtype(), [&](auto zero) {
    for (const auto element : tensor.to_vector<decltype(zero)>())
      result.push_back(static_cast<double>(element));
  });
  return result;
}

/// Compares with {dtype, shape, values} as make_files.py wrote them.
inline void check_holds(const Tensor& tensor, const nlohmann::json& expected) {
  const auto shape = expected.at("shape").get<std::vector<std::int64_t>>();
  const std::string numpy = expected.at("dtype");  // f4 has four bytes: f32
  const std::string dtype = numpy == "b1" ? "u8" : numpy[0] + std::to_string(8 * (numpy[1] - '0'));
  CHECK(name_of(tensor.dtype()) == dtype);
  CHECK(tensor.shape() == Shape(std::span<const std::int64_t>(shape)));
  CHECK(elements(tensor) == expected.at("values").get<std::vector<double>>());
}

}  // namespace lockstep::data
