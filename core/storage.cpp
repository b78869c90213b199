#include "lockstep/core/storage.h"

#include <new>

#include "lockstep/core/memory.h"

namespace lockstep {
namespace {
constexpr std::size_t header = 64;  // keeps the data behind it aligned
}

Storage Storage::allocate(std::size_t bytes, Device device) {
  static_assert(sizeof(Block) <= header);
  check<DeviceError>(device.kind == Device::Kind::cpu, "[allocate] this build has no device '{}'",
                     device.to_string());
  auto* memory = static_cast<std::byte*>(memory::allocate(header + bytes));
  return Storage(new (memory) Block{1, memory + header, bytes, device, nullptr});
}

Storage Storage::adopt(void* data, std::size_t bytes, std::function<void()> release,
                       Device device) {
  auto* owner = new std::function<void()>(std::move(release));
  return Storage(new Block{1, static_cast<std::byte*>(data), bytes, device, owner});
}

void Storage::destroy(Block* block) noexcept {
  if (block->release) {
    if (*block->release) (*block->release)();
    delete block->release;
    delete block;
  } else {
    memory::release(block, header + block->bytes);
  }
}

}  // namespace lockstep
