#include "lockstep/nn/safetensors.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <vector>

#include "lockstep/core/system/atomic_file.h"

namespace lockstep::nn {
namespace {

static_assert(std::endian::native == std::endian::little, "data is written as it lies in memory");

std::string_view format_name(DType dtype) {
  switch (dtype) {
    case DType::f32: return "F32";
    case DType::f64: return "F64";
    case DType::i64: return "I64";
    case DType::i32: return "I32";
    case DType::f16: return "F16";
    case DType::bf16: return "BF16";
    case DType::u8: break;
  }
  return "U8";
}

}  // namespace

void save_safetensors(const std::string& path, const std::map<std::string, Tensor>& tensors,
                      const std::map<std::string, std::string>& metadata) {
  std::vector<std::pair<std::string, Tensor>> ordered(tensors.begin(), tensors.end());
  std::ranges::stable_sort(ordered, [](const auto& a, const auto& b) {
    return size_of(a.second.dtype()) > size_of(b.second.dtype());
  });
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::size_t offset = 0;
  for (const auto& [name, tensor] : ordered) {
    const std::vector<std::int64_t> shape(tensor.shape().begin(), tensor.shape().end());
    header[name] = {{"dtype", format_name(tensor.dtype())},
                    {"shape", shape},
                    {"data_offsets", {offset, offset + tensor.bytes()}}};
    offset += tensor.bytes();
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');

  AtomicFile file(path);
  const std::uint64_t length = text.size();
  file.write(&length, sizeof length);
  file.write(text.data(), text.size());
  for (const auto& [name, tensor] : ordered) file.write(tensor.to(Device{}).raw(), tensor.bytes());
  file.commit();
}

}  // namespace lockstep::nn
