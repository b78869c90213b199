#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <string>

namespace train_mlp {
namespace {
constexpr const char* clear_line = "\r\x1b[K";
}

Progress::Progress(bool visible, std::int64_t epochs)
    : visible_(visible), bar_(visible && ::isatty(STDERR_FILENO)), epochs_(epochs) {}

void Progress::begin(std::string_view heading) {
  if (!visible_) return;
  fmt::print(stderr, "{}\n\nepoch      loss    train     test   samples/s\n", heading);
}

void Progress::step(std::int64_t epoch, std::int64_t done, std::int64_t steps) {
  if (!bar_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - drawn_ < std::chrono::milliseconds(50)) return;  // 20 pictures a second are enough
  drawn_ = now;
  constexpr std::int64_t width = 40;
  const std::int64_t total = epochs_ * steps;
  const std::int64_t ready = (epoch * steps + done) * width / total;
  fmt::print(stderr, "{}[{}{}] epoch {}/{}", clear_line,
             std::string(static_cast<std::size_t>(ready), '#'),
             std::string(static_cast<std::size_t>(width - ready), '.'), epoch + 1, epochs_);
  std::fflush(stderr);
}

void Progress::epoch(const EpochLine& line) {
  if (!visible_) return;
  fmt::print(stderr, "{}{:>5}  {:>8.4f}  {:>7.4f}  {:>7.4f}  {:>10.0f}\n", bar_ ? clear_line : "",
             line.epoch + 1, line.loss, line.train_accuracy, line.test_accuracy,
             line.samples_per_second);
}

}  // namespace train_mlp
