#include "lockstep/simt/nccl/nccl_segment.h"

#include <sys/mman.h>

namespace simt::detail {
namespace {

constexpr std::size_t table_bytes = SharedFile::whole_pages(sizeof(Table));

}  // namespace

std::size_t Segment::bytes(int size) {
  return table_bytes + sizeof(Channel) * static_cast<std::size_t>(size) * size;
}

SharedFile Segment::create_file() { return SharedFile::create(bytes(Table::most_ranks)); }

Segment::Segment(const SharedFile& file, int size) : data_(file.map(bytes(size))), size_(size) {}

Segment::~Segment() {
  if (data_) munmap(data_, SharedFile::whole_pages(bytes(size_)));
}

Channel& Segment::channel(int from, int to) const {
  auto* channels = reinterpret_cast<Channel*>(data_ + table_bytes);
  return channels[from * size_ + to];
}

}  // namespace simt::detail
