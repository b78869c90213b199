#pragma once
/// Writes tensors to a safetensors file (https://github.com/huggingface/safetensors, "Format"),
/// which PyTorch, MLX and others load:
///
///   u64 little-endian N | N bytes of JSON, padded with spaces to a multiple of 8 | data
///   {"0.weight": {"dtype": "F32", "shape": [128, 64], "data_offsets": [begin, end]}, ...}
///
/// Offsets are relative to the data section; tensors follow one another without holes, by falling
/// element size and then by name, so that each is aligned. Texts that belong to the model as a
/// whole are kept under "__metadata__".

#include <map>
#include <string>

#include "lockstep/core/tensor.h"

namespace lockstep::nn {

/// Atomic and durable, with the mode of an older file (core/system/atomic_file.h). On failure
/// throws DataError with the reason, and an older file of that name is intact.
void save_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata = {});

}  // namespace lockstep::nn
