#include "lockstep/core/system/progress.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <string_view>
#include <utility>

namespace lockstep {
namespace {

// A thread waits if it neither runs nor could run, or if the system says nothing of it.
bool waits(int thread) {
  std::array<char, 64> path{};
  fmt::format_to_n(path.begin(), path.size() - 1, "/proc/self/task/{}/stat", thread);
  const int file = ::open(path.data(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return true;
  std::array<char, 256> bytes{};
  const ssize_t got = ::read(file, bytes.data(), bytes.size());
  ::close(file);
  const std::string_view text(bytes.data(), got > 0 ? static_cast<std::size_t>(got) : 0);
  const std::size_t name_end = text.rfind(')');  // a name may hold anything
  return name_end == text.npos || text.substr(name_end, 3) != ") R";
}

}  // namespace

struct Progress::Owner {
  std::shared_ptr<Progress> progress{new Progress};
  Owner() { here = progress.get(); }
  ~Owner() { here = nullptr; }
  Owner(const Owner&) = delete;
  Owner& operator=(const Owner&) = delete;
};

Progress::Progress() : thread_(static_cast<int>(::syscall(SYS_gettid))) {}

std::shared_ptr<const Progress> Progress::of_this_thread() {
  static thread_local const Owner owner;
  return owner.progress;
}

bool Progress::at_work(std::uint64_t& seen) const {
  std::shared_ptr<const Progress> through;
  {
    const std::lock_guard lock(mutex_);
    through = through_;
  }
  if (through) return through->at_work(seen);
  const std::uint64_t steps = steps_.load(std::memory_order_relaxed);
  return std::exchange(seen, steps) != steps || waits(thread_);
}

Progress::Through::Through(std::shared_ptr<const Progress> other) : mine_(of_this_thread()) {
  const std::lock_guard lock(mine_->mutex_);
  mine_->through_ = std::move(other);
}

Progress::Through::~Through() {
  const std::lock_guard lock(mine_->mutex_);
  mine_->through_.reset();
}

}  // namespace lockstep
