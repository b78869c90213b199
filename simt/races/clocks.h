#pragma once
/// Vector clocks of the threads that run: how far each knows the past of the others.

#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace simt::detail::races {

class Clocks {
 public:
  /// All begin at time 1 and know nothing of each other. The copy engine counts as one more thread.
  void begin(int threads);

  int engine() const { return static_cast<int>(threads_.size()); }
  std::uint32_t now(int thread) const { return threads_[thread].now; }
  /// Whether what `other` did at `time` is behind `thread`.
  bool knows(int thread, int other, std::uint32_t time) const {
    return thread == other || (*threads_[thread].known)[other] >= time;
  }

  /// These threads learn what each of them knows, and has done until now.
  void meet(const std::vector<int>& threads);

  // A barrier in memory collects what those know that arrive, and gives it to those that wait for
  // the end of the phase.
  void arrive(int thread, const void* barrier);
  std::uint32_t begin_copy() { return ++engine_now_; }
  void copy_arrives(const void* barrier, std::uint32_t ticket);
  void complete(const void* barrier);
  void wait(int thread, const void* barrier);

 private:
  using Times = std::vector<std::uint32_t>;  ///< by thread, the engine's last
  struct Thread {
    std::uint32_t now = 1;
    std::shared_ptr<const Times> known;  ///< threads that have met share it
  };
  struct Barrier {
    Times arrived, completed;  ///< empty: none yet
  };

  static void raise(Times& times, const Times& to);

  std::vector<Thread> threads_;
  std::uint32_t engine_now_ = 0;
  std::unordered_map<const void*, Barrier> barriers_;
};

}  // namespace simt::detail::races
