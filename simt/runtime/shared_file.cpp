#include "lockstep/simt/runtime/shared_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#include <new>
#include <string>

namespace simt::detail {

SharedFile SharedFile::create(std::size_t bytes) {
  std::uint64_t id = 0;
  if (getrandom(&id, sizeof id, 0) != sizeof id) throw std::bad_alloc();
  SharedFile made(memfd_create("simulated-gpu", MFD_CLOEXEC), id);
  if (made.descriptor_ < 0 ||
      ftruncate(made.descriptor_, static_cast<off_t>(page + whole_pages(bytes))) != 0 ||
      pwrite(made.descriptor_, &id, sizeof id, 0) != sizeof id)
    throw std::bad_alloc();
  return made;
}

std::optional<SharedFile> SharedFile::open(const SharedName& name) {
  const std::string path =
      "/proc/" + std::to_string(name.process) + "/fd/" + std::to_string(name.descriptor);
  // Something else may be there by now: a device, or a pipe that would have to be waited for.
  SharedFile found(::open(path.c_str(), O_RDWR | O_CLOEXEC | O_NONBLOCK), name.id);
  std::uint64_t id = 0;
  if (found.descriptor_ < 0 || pread(found.descriptor_, &id, sizeof id, 0) != sizeof id ||
      id != name.id)
    return std::nullopt;
  return found;
}

SharedFile::~SharedFile() {
  if (descriptor_ >= 0) close(descriptor_);
}

// A lock belongs to the open file, and so ends with its process, however that ends.
void SharedFile::hold() const {
  struct flock lock {};
  lock.l_type = F_RDLCK;
  if (fcntl(descriptor_, F_OFD_SETLK, &lock) != 0) throw std::bad_alloc();
}

bool SharedFile::held_elsewhere() const {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  return fcntl(descriptor_, F_OFD_GETLK, &lock) == 0 && lock.l_type != F_UNLCK;
}

SharedName SharedFile::name() const { return {id_, getpid(), descriptor_}; }

std::byte* SharedFile::map(std::size_t bytes, void* fixed) const {
  void* data = mmap(fixed, whole_pages(bytes), PROT_READ | PROT_WRITE,
                    MAP_SHARED | (fixed ? MAP_FIXED : 0), descriptor_, page);
  if (data == MAP_FAILED) throw std::bad_alloc();
  return static_cast<std::byte*>(data);
}

}  // namespace simt::detail
