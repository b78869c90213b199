#pragma once
/// What a checkpoint's file says of itself, as JSON in its safetensors metadata: pure functions.

#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/nn/checkpoint/safetensors_header.h"

namespace lockstep::nn {

struct Manifest {
  static constexpr int newest_format = 1;

  int format = newest_format;
  std::string version;                          ///< of the library that wrote it
  int world = 1;                                ///< the number of ranks that wrote it
  std::string bucket_layout;                    ///< DdpOptions::bucket_layout; empty without DDP
  std::map<std::string, std::int64_t> numbers;  ///< the program's own: epoch, step, position
  std::map<std::string, std::string> sha256;    ///< of each tensor: sha256_of
};

/// SHA-256, as 64 letters, of what a tensor is: its dtype, its shape and its bytes.
std::string sha256_of(const Tensor& tensor);

/// The metadata of the file.
std::map<std::string, std::string> to_metadata(const Manifest& manifest);

/// Throws DataError for metadata that is no checkpoint's, that is damaged (it has its own hash), or
/// of a newer format; and for a number that is not whole or not in its range, and a text or a hash
/// that is none.
Manifest parse_manifest(const std::map<std::string, std::string>& metadata);

}  // namespace lockstep::nn
