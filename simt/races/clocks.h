#pragma once
/// Vector clocks of the threads that run: how far each knows the past of the others.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <unordered_map>
#include <vector>

namespace simt::detail::races {

class Clocks {
 public:
  /// All begin at time 1 and know nothing of each other.
  void begin(int threads);

  int threads() const { return static_cast<int>(threads_.size()); }
  std::uint32_t now(int thread) const { return threads_[thread].now; }
  /// Whether what `other` did at `time` is behind `thread`.
  bool knows(int thread, int other, std::uint32_t time) const {
    const Times& known = *threads_[thread].known;
    return thread == other ||
           (static_cast<std::size_t>(other) < known.size() && known[other] >= time);
  }

  /// These threads learn what each of them knows, and has done until now.
  void meet(const std::vector<int>& threads);

  // A barrier in memory collects what those know that arrive, and gives it to those that wait for
  // the end of the phase.
  void arrive(int thread, const void* barrier);
  // Copies count as the work of one more thread for each barrier. One for all would be wrong:
  // copies that several barriers count end in any order.
  struct Copy {
    int thread;
    std::uint32_t time;
  };
  Copy begin_copy(const void* barrier);
  void copy_arrives(const void* barrier, const Copy& copy);
  void complete(const void* barrier);
  void wait(int thread, const void* barrier);

 private:
  using Times = std::vector<std::uint32_t>;  ///< by thread; 0 beyond its end
  struct Thread {
    std::uint32_t now = 1;
    std::shared_ptr<const Times> known;  ///< threads that have met share it
  };
  struct Barrier {
    int number;                    ///< from 0 on
    std::uint32_t copies = 0;      ///< begun
    Times arrived{}, completed{};  ///< empty: none yet
  };

  static void raise(Times& times, const Times& to);
  Barrier& barrier_at(const void* barrier);

  std::vector<Thread> threads_;
  std::unordered_map<const void*, Barrier> barriers_;
};

}  // namespace simt::detail::races
