#include "lockstep/nn/safetensors.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <vector>

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

// Renaming onto a link, a pipe or a device would replace it.
std::string target_of(const std::string& path) {
  namespace fs = std::filesystem;
  std::error_code error;
  const fs::path target = fs::weakly_canonical(path, error);
  const fs::file_status status = fs::status(path, error);
  check<DataError>(!fs::exists(status) || fs::is_regular_file(status),
                   "[save] '{}' is there and is no regular file", path);
  return fs::exists(status) ? target.string() : path;
}

/// A file under a temporary name that becomes `path` when all is written, or goes away.
class AtomicFile {
 public:
  explicit AtomicFile(const std::string& path)
      : path_(target_of(path)), temporary_(fmt::format("{}.{}.tmp", path_, ::getpid())) {
    descriptor_ = ::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (descriptor_ < 0) give_up("create");
  }
  ~AtomicFile() {
    if (descriptor_ >= 0) ::close(descriptor_);
    if (!committed_) ::unlink(temporary_.c_str());
  }
  AtomicFile(const AtomicFile&) = delete;
  AtomicFile& operator=(const AtomicFile&) = delete;

  void write(const void* data, std::size_t bytes) {
    const char* next = static_cast<const char*>(data);
    while (bytes > 0) {
      const ssize_t written = ::write(descriptor_, next, bytes);
      if (written < 0 && errno == EINTR) continue;
      if (written < 0) give_up("write");
      next += written;
      bytes -= static_cast<std::size_t>(written);
    }
  }

  void commit() {
    if (::fsync(descriptor_) != 0) give_up("sync");
    if (::close(std::exchange(descriptor_, -1)) != 0) give_up("close");
    if (::rename(temporary_.c_str(), path_.c_str()) != 0) give_up("rename");
    committed_ = true;
    // The name is durable only once the folder is.
    const std::string folder = std::filesystem::path(path_).parent_path().string();
    const int directory = ::open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY);
    if (directory < 0) give_up("open the folder of");
    const int result = ::fsync(directory);
    const int error = errno;
    ::close(directory);
    errno = error;
    if (result != 0) give_up("sync the folder of");
  }

 private:
  [[noreturn]] void give_up(std::string_view what) {
    const int error = errno;
    fail<DataError>("[save] cannot {} '{}': {}", what, path_, std::strerror(error));
  }

  std::string path_, temporary_;
  int descriptor_ = -1;
  bool committed_ = false;
};

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
