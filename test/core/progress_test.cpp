// Whether a thread is at work: what it notes, whether it waits, and that a loop is neither.

#include "lockstep/core/system/progress.h"

#include <doctest/doctest.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <future>
#include <mutex>
#include <thread>

#include "lockstep/core/digest.h"
#include "lockstep/core/generator.h"
#include "lockstep/core/system/atomic_file.h"
#include "lockstep/core/tensor.h"
#include "support/temporary_folder.h"

using namespace lockstep;

namespace {

/// A thread that does this again and again, until the end of the object.
class Doing {
 public:
  explicit Doing(std::function<void()> deed) {
    std::promise<std::shared_ptr<const Progress>> begun;
    auto progress = begun.get_future();
    thread_ = std::thread([this, begun = std::move(begun), deed = std::move(deed)]() mutable {
      begun.set_value(Progress::of_this_thread());
      while (!over_) deed();
    });
    progress_ = progress.get();
  }
  ~Doing() {
    over_ = true;
    thread_.join();
  }
  Doing(const Doing&) = delete;
  Doing& operator=(const Doing&) = delete;

  const std::shared_ptr<const Progress>& progress() const { return progress_; }
  /// Until a look says so: the system may take a thread from its core at any moment.
  void await(bool at_work) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
    while (progress_->at_work(seen_) != at_work) {
      REQUIRE(std::chrono::steady_clock::now() < end);
      std::this_thread::yield();
    }
  }

 private:
  std::atomic<bool> over_{false};
  std::thread thread_;
  std::shared_ptr<const Progress> progress_;
  std::uint64_t seen_ = 0;
};

}  // namespace

TEST_CASE("progress: a loop is no work, and what a library's work is made of is") {
  Doing loops([] {});
  loops.await(false);
  Doing notes(Progress::note);
  notes.await(true);
  Doing hashes([] { Digest().add({}); });
  hashes.await(true);
  const test::TemporaryFolder folder;
  Doing writes([&] {
    AtomicFile file(folder / "file");
    file.write("x", 1);
    file.commit();
  });
  writes.await(true);
  loops.await(false);
}

TEST_CASE("progress: each part of a large array is a step of its hash") {
  const auto progress = Progress::of_this_thread();
  std::uint64_t before = 0, after = 0;
  (void)progress->at_work(before);
  const Tensor large = Tensor::zeros({5 << 20});
  Digest().add({large.raw(), large.bytes()});
  (void)progress->at_work(after);
  CHECK(after - before >= 5);
}

TEST_CASE("progress: random numbers are") {
  const auto progress = Progress::of_this_thread();
  std::uint64_t before = 0, after = 0;
  Generator generator;
  generator.manual_seed(1);
  (void)progress->at_work(before);
  generator.normal(Tensor::zeros({1 << 20}));
  (void)progress->at_work(after);
  CHECK(after - before >= 1000);
}

TEST_CASE("progress: who waits for the system is at work, and stays it after its end") {
  std::mutex mutex;
  std::condition_variable wake;
  bool over = false;
  std::shared_ptr<const Progress> progress;
  {
    Doing waits([&] {
      std::unique_lock lock(mutex);
      wake.wait(lock, [&] { return over; });
    });
    progress = waits.progress();
    waits.await(true);
    waits.await(true);
    {
      const std::lock_guard lock(mutex);
      over = true;
    }
    wake.notify_all();
  }
  std::uint64_t seen = 0;
  for (int look = 0; look < 3; ++look) CHECK(progress->at_work(seen));
}

TEST_CASE("progress: who waits for another thread is at work if that one is") {
  Doing loops([] {});
  std::atomic<bool> over{false};
  std::promise<void> through;
  std::shared_ptr<const Progress> waits;
  std::thread thread([&] {
    waits = Progress::of_this_thread();
    {
      const Progress::Through other(loops.progress());
      through.set_value();
      while (!over) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  });
  through.get_future().get();
  std::uint64_t seen = 0;
  bool works = true;  // it would be, if it were looked at itself: it mostly sleeps
  const auto end = std::chrono::steady_clock::now() + std::chrono::minutes(1);
  while ((works = waits->at_work(seen)) && std::chrono::steady_clock::now() < end)
    std::this_thread::yield();
  CHECK_FALSE(works);
  over = true;
  thread.join();
  CHECK(waits->at_work(seen));
}
