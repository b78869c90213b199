#include "lockstep/core/storage.h"

#include <new>

#include "lockstep/core/gpu/device_memory.h"
#include "lockstep/core/memory.h"

namespace lockstep {
namespace {
constexpr std::size_t header = 64;  // keeps the data behind it aligned
}

Storage Storage::allocate(std::size_t bytes, Device device) {
  static_assert(sizeof(Block) <= header);
  if (device.kind == Device::Kind::cpu) {
    const std::size_t whole = bytes > memory::largest ? bytes : header + bytes;  // no overflow
    auto* memory = static_cast<std::byte*>(memory::allocate(whole));
    return Storage(new (memory) Block(memory + header, bytes, device));
  }
  const Stream stream = Stream::current(device);
  auto* data = static_cast<std::byte*>(gpu::allocate(bytes, stream));
  auto* const block = new (memory::allocate(header)) Block(data, bytes, device);
  block->stream = stream;
  gpu::note_made(*block);
  return Storage(block);
}

Storage Storage::adopt(void* data, std::size_t bytes, std::function<void()> release,
                       Device device) {
  auto* const block = new Block(static_cast<std::byte*>(data), bytes, device);
  block->release = new std::function<void()>(std::move(release));
  return Storage(block);
}

void Storage::note_use(const Block& block) {
  check<StateError>(block.data || block.bytes == 0,
                    "[storage] {} bytes that were made in a step whose recording failed: nothing "
                    "was ever written there. Make the tensor before the step",
                    block.bytes);
  gpu::note_use(block.data);
}

void Storage::destroy(Block* block) noexcept {
  if (block->release) {
    if (*block->release) (*block->release)();
    delete block->release;
    delete block;
    return;
  }
  if (block->stream) gpu::release(block->data, *block->stream);
  const std::size_t bytes = header + (block->stream ? 0 : block->bytes);
  block->~Block();
  memory::release(block, bytes);
}

}  // namespace lockstep
