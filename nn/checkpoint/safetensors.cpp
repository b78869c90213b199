#include "lockstep/nn/checkpoint/safetensors.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "lockstep/core/system/atomic_file.h"
#include "lockstep/core/system/file_kind.h"
#include "lockstep/core/system/memory_limits.h"
#include "lockstep/core/system/progress.h"

namespace lockstep::nn {

static_assert(std::endian::native == std::endian::little, "data is kept as it lies in memory");

void save_safetensors(const std::string& path, const StateDict& tensors,
                      const std::map<std::string, std::string>& metadata,
                      const std::function<void()>& before_naming) {
  const SafetensorsHeader header = plan_safetensors(tensors, metadata);
  const std::string begin = to_bytes(header);
  AtomicFile file(path);
  file.write(begin.data(), begin.size());
  for (const auto& entry : header.entries) {
    const Tensor tensor = tensors.at(entry.name).to(Device{});
    file.write(tensor.raw(), tensor.bytes());
  }
  if (before_naming) {
    file.sync();
    before_naming();
  }
  file.commit();
}

StateDict load_safetensors(const std::string& path) {
  const SafetensorsFile file(path);
  StateDict tensors;
  for (const auto& entry : file.header().entries) tensors.emplace(entry.name, file.read(entry));
  return tensors;
}

StateDict load_safetensors(const std::string& path, const std::vector<std::string>& names) {
  const SafetensorsFile file(path);
  StateDict tensors;
  for (const std::string& name : names) tensors.emplace(name, file.read(name));
  return tensors;
}

SafetensorsFile::SafetensorsFile(const std::string& path) : path_(path) {
  const std::string why = why_unreadable(path);
  check<DataError>(why.empty(), "[load] {}: {}", path, why);
  descriptor_ = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  check<DataError>(descriptor_ >= 0, "[load] {}: {}", path, std::strerror(errno));
  try {
    read_header();
  } catch (...) {
    ::close(descriptor_);
    throw;
  }
}

SafetensorsFile::~SafetensorsFile() { ::close(descriptor_); }

void SafetensorsFile::read_header() {
  struct stat status {};
  check<DataError>(::fstat(descriptor_, &status) == 0, "[load] {}: {}", path_,
                   std::strerror(errno));
  const auto size = static_cast<std::uint64_t>(status.st_size);
  std::uint64_t length = 0;
  check<DataError>(size >= sizeof length, "[load] {}: no safetensors file, it has {} bytes", path_,
                   size);
  read_bytes(0, &length, sizeof length);
  check<DataError>(length <= max_safetensors_header && length <= size - sizeof length,
                   "[load] {}: no safetensors file, or cut short: its header would have {} bytes, "
                   "the file has {}",
                   path_, length, size);
  std::string json(length, '\0');
  read_bytes(sizeof length, json.data(), length);
  data_begin_ = sizeof length + length;
  try {
    header_ = parse_safetensors(json, size - data_begin_);
  } catch (const DataError& error) {
    fail<DataError>("[load] {}: {}", path_, error.what());
  }
}

Tensor SafetensorsFile::read(std::string_view name) const {
  const SafetensorsEntry* const entry = header_.find(name);
  check<DataError>(entry, "[load] {} has no '{}'", path_, name);
  return read(*entry);
}

Tensor SafetensorsFile::read(const SafetensorsEntry& entry) const {
  check<DataError>(entry.unread.empty(), "[load] {}: '{}' {}", path_, entry.name, entry.unread);
  const std::uint64_t bytes = entry.end - entry.begin;
  const std::optional<std::uint64_t> free = memory_shortage(bytes);
  check<DataError>(!free, "[load] {}: '{}' takes {} bytes, but {} bytes of memory are free", path_,
                   entry.name, bytes, free.value_or(0));
  Tensor tensor = Tensor::empty(entry.shape, entry.dtype);
  read_bytes(data_begin_ + entry.begin, tensor.raw(), tensor.bytes());
  return tensor;
}

void SafetensorsFile::read_bytes(std::uint64_t at, void* out, std::size_t bytes) const {
  auto* to = static_cast<std::byte*>(out);
  while (bytes > 0) {
    constexpr std::size_t most = std::size_t{4} << 20;
    const ssize_t got = ::pread(descriptor_, to, std::min(bytes, most), static_cast<off_t>(at));
    Progress::note();
    if (got < 0 && errno == EINTR) continue;
    check<DataError>(got > 0, "[load] {}: {}", path_,
                     got < 0 ? std::strerror(errno) : "it was cut short while it was read");
    to += got;
    at += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
}

}  // namespace lockstep::nn
