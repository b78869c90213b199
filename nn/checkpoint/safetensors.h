#pragma once
/// Tensors in safetensors files (https://github.com/huggingface/safetensors, "Format"), which
/// PyTorch, MLX and others write and read:
///
///   nn::save_safetensors("model.safetensors", model.state_dict());
///   model.load_state_dict(nn::load_safetensors("model.safetensors"));
///
///   u64 little-endian N | N bytes of JSON, padded with spaces to a multiple of 8 | data
///   {"0.weight": {"dtype": "F32", "shape": [128, 64], "data_offsets": [begin, end]}, ...}
///
/// Offsets are relative to the data; tensors follow one another without holes. We write them by
/// falling element size and then by name, so that each is aligned. Texts that belong to the file as
/// a whole are kept under "__metadata__".

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "lockstep/nn/checkpoint/safetensors_header.h"
#include "lockstep/nn/state_dict.h"

namespace lockstep::nn {

/// Atomic and durable, with the mode of an older file (core/system/atomic_file.h). On failure
/// throws DataError with the reason, and an older file of that name is intact. `before_naming` runs
/// when all is on the disk, just before the new file takes the name.
void save_safetensors(const std::string& path, const StateDict& tensors,
                      const std::map<std::string, std::string>& metadata = {},
                      const std::function<void()>& before_naming = {});

/// All tensors of the file, on the cpu, by name. Dtypes: F32, F64, F16, BF16, I64, I32, U8, and
/// BOOL as u8; others are refused by name. Throws DataError, which names the file and the tensor,
/// for one that is not as the format says; no byte of a tensor is read before that is known.
StateDict load_safetensors(const std::string& path);
/// These tensors alone: what others there are does not matter. Throws DataError for a name that is
/// not there.
StateDict load_safetensors(const std::string& path, const std::vector<std::string>& names);

/// A file whose tensors are read one by one, when they are asked for. One of a dtype or with more
/// dimensions than are known here is refused when it is asked for: it harms no other one. Read with
/// pread(2), not mapped: a file that is cut short meanwhile is an error, not the process's end.
/// Thread-safety: any threads may read at once.
class SafetensorsFile {
 public:
  /// Reads the header. Throws DataError, as load_safetensors.
  explicit SafetensorsFile(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const SafetensorsHeader& header() const { return header_; }
  /// Into new memory, on the cpu. Throws DataError for a name that is not there, and for a tensor
  /// that cannot be read here.
  Tensor read(std::string_view name) const;
  Tensor read(const SafetensorsEntry& entry) const;

 private:
  void read_bytes(std::uint64_t at, void* out, std::size_t bytes) const;
  void read_header();

  std::string path_;
  int descriptor_ = -1;
  std::uint64_t data_begin_ = 0;
  SafetensorsHeader header_;
};

}  // namespace lockstep::nn
