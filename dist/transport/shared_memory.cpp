#include "lockstep/dist/transport/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>
#include <limits>
#include <string>

namespace lockstep::dist {

namespace {

double mib(std::size_t bytes) { return static_cast<double>(bytes) / (1 << 20); }

/// What the kernel thinks can be used without swapping; everything if it does not say.
std::size_t available_memory() {
  std::ifstream file("/proc/meminfo");
  std::string key;
  std::size_t kib = 0;
  while (file >> key >> kib) {
    if (key == "MemAvailable:") return kib * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  return std::numeric_limits<std::size_t>::max();
}

/// Nameless memory of a fixed size. A page that the machine cannot give would kill the process that
/// touches it; so too much is refused here.
Descriptor make_memory(std::size_t bytes) {
  const std::size_t available = available_memory();
  check<CommError>(bytes <= available, "{:.1f} MiB are needed, {:.1f} MiB are available",
                   mib(bytes), mib(available));
  Descriptor memory(::memfd_create("lockstep", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const bool made = memory && ::ftruncate(memory.get(), static_cast<off_t>(bytes)) == 0 &&
                    ::fcntl(memory.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) == 0;
  check<CommError>(made, "{:.1f} MiB of shared memory: {}", mib(bytes), system_message(errno));
  return memory;
}

/// Gives every page of a part its place in memory and in this process's page table, so that
/// training does not stumble over page faults. Tells, instead of being killed, that there is no
/// memory.
std::string populate(std::byte* begin, std::size_t bytes) {
#ifdef MADV_POPULATE_WRITE
  constexpr int populate_write = MADV_POPULATE_WRITE;
#else
  constexpr int populate_write = 23;  // Linux 5.14; the C library's headers may be older
#endif
  ::madvise(begin, bytes, MADV_HUGEPAGE);  // where the system allows it
  if (::madvise(begin, bytes, populate_write) == 0 || errno == EINVAL) return "";
  return fmt::format("{:.1f} MiB of shared memory: {}", mib(bytes), system_message(errno));
}

/// Exchanges "all is well" or what is not; throws if anything is not well on any rank.
void agree(Rendezvous& rendezvous, std::string_view what, const std::string& problem) {
  const std::vector<std::string> problems = rendezvous.all_gather(what, problem);
  for (std::size_t r = 0; r < problems.size(); ++r)
    check<CommError>(problems[r].empty(), "[{}] rank {}: {}", what, r, problems[r]);
}

}  // namespace

std::shared_ptr<std::byte> share_memory(Rendezvous& rendezvous, std::string_view what,
                                        std::size_t part_bytes) {
  const std::size_t stride = whole_pages(part_bytes);
  const std::size_t total = stride * static_cast<std::size_t>(rendezvous.size());
  Descriptor memory;
  std::string problem;
  if (rendezvous.rank() == 0) {
    try {
      memory = make_memory(total);
    } catch (const CommError& error) {
      problem = error.what();
    }
  }
  const std::vector<std::string> sizes = rendezvous.all_gather(what, std::to_string(part_bytes));
  for (std::size_t r = 0; r < sizes.size(); ++r)
    check<CommError>(sizes[r] == sizes[0], "[{}] rank 0 asks for {} bytes, rank {} for {}", what,
                     sizes[0], r, sizes[r]);
  agree(rendezvous, what, problem);
  const int shared = rendezvous.share_descriptor(what, memory.get());
  if (shared != memory.get()) memory = Descriptor(shared);

  struct stat status {};
  check<CommError>(
      ::fstat(memory.get(), &status) == 0 && static_cast<std::size_t>(status.st_size) == total,
      "[{}] expected {} bytes of shared memory, got {}", what, total, status.st_size);
  void* const address = ::mmap(nullptr, total, PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0);
  if (address == MAP_FAILED)
    problem = fmt::format("mapping: {}", system_message(errno));
  else
    problem = populate(
        static_cast<std::byte*>(address) + stride * static_cast<std::size_t>(rendezvous.rank()),
        stride);
  const std::shared_ptr<std::byte> result(
      address == MAP_FAILED ? nullptr : static_cast<std::byte*>(address),
      [total](std::byte* begin) {
        if (begin) ::munmap(begin, total);
      });
  agree(rendezvous, what, problem);
  populate(result.get(), total);  // the others' parts too: all are there now
  return result;
}

}  // namespace lockstep::dist
