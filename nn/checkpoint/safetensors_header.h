#pragma once
/// What stands at the beginning of a safetensors file: pure functions between text and plan, which
/// touch no file.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/dtype.h"
#include "lockstep/core/shape.h"
#include "lockstep/nn/state_dict.h"

namespace lockstep::nn {

/// A tensor, and its place in the data.
struct SafetensorsEntry {
  std::string name;
  DType dtype = DType::f32;
  Shape shape;
  std::uint64_t begin = 0, end = 0;
  std::string unread = {};  ///< why it cannot be read here: "has dtype I16, ..."; else empty
};

struct SafetensorsHeader {
  std::vector<SafetensorsEntry> entries;  ///< one after the other, without holes
  std::map<std::string, std::string> metadata;

  const SafetensorsEntry* find(std::string_view name) const;
  /// Of all tensors.
  std::uint64_t data_bytes() const { return entries.empty() ? 0 : entries.back().end; }
};

/// The longest JSON that readers take.
inline constexpr std::uint64_t max_safetensors_header = 100'000'000;

/// Where each tensor goes: by falling element size, then by name. Throws UsageError for a tensor
/// named "__metadata__", for one that is undefined, and for a text that is not UTF-8.
SafetensorsHeader plan_safetensors(const StateDict& tensors,
                                   std::map<std::string, std::string> metadata = {});

/// The bytes before the data: the length, then the JSON.
std::string to_bytes(const SafetensorsHeader& header);

/// What to_bytes() was given.
SafetensorsHeader header_of_bytes(std::string_view bytes);

/// Reads the JSON of a file in which `data_bytes` follow it. Throws DataError, which says what is
/// wrong and with which tensor, unless
/// - it is one object; every entry has dtype, shape and data_offsets, and nothing else;
/// - no name stands there twice;
/// - the tensors fill the data exactly: no holes, no overlaps, no bytes without an owner, and each
///   has as many bytes as its dtype and shape say.
/// A tensor whose dtype or shape is not known here is `unread`, and harms no other one.
SafetensorsHeader parse_safetensors(std::string_view json, std::uint64_t data_bytes);

}  // namespace lockstep::nn
