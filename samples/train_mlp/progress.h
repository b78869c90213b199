#pragma once
/// What a person sees while the training runs: a line per epoch on stderr, and, on a terminal, a
/// bar.

#include <chrono>
#include <cstdint>
#include <string_view>

namespace train_mlp {

struct EpochLine {
  std::int64_t epoch;  ///< from 0
  double loss, train_accuracy, test_accuracy, samples_per_second;
};

class Progress {
 public:
  /// Silent unless `visible` (on rank 0).
  Progress(bool visible, std::int64_t epochs);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void begin(std::string_view heading);
  void note(std::string_view lines);
  /// `done` of `steps` steps of this epoch are done.
  void step(std::int64_t epoch, std::int64_t done, std::int64_t steps);
  void epoch(const EpochLine& line);

 private:
  bool visible_;
  bool bar_;  // stderr is a terminal
  std::int64_t epochs_;
  std::chrono::steady_clock::time_point drawn_{};
};

}  // namespace train_mlp
