#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <string>

#include "lockstep/dist/rendezvous/events/failure_record.h"

namespace train_mlp {
namespace {

constexpr const char* clear_line = "\r\x1b[K";

// A terminal that went away, or a full disk, is no reason to end a training.
void show(const std::string& text) { lockstep::dist::write_all(STDERR_FILENO, text); }

}  // namespace

Progress::Progress(bool visible, std::int64_t epochs)
    : visible_(visible), bar_(visible && ::isatty(STDERR_FILENO)), epochs_(epochs) {}

Progress::~Progress() {
  if (bar_) show(clear_line);  // an error is not to begin behind the bar
}

void Progress::begin(std::string_view heading) {
  if (!visible_) return;
  show(fmt::format("{}\n\nepoch      loss    train     test   samples/s\n", heading));
}

void Progress::note(std::string_view lines) {
  if (visible_) show(fmt::format("{}{}", bar_ ? clear_line : "", lines));
}

void Progress::step(std::int64_t epoch, std::int64_t done, std::int64_t steps) {
  if (!bar_) return;
  const auto now = std::chrono::steady_clock::now();
  if (now - drawn_ < std::chrono::milliseconds(50)) return;  // 20 pictures a second are enough
  drawn_ = now;
  constexpr double width = 40;
  const double part =
      static_cast<double>(epoch * steps + done) / static_cast<double>(epochs_ * steps);
  const auto ready = static_cast<std::size_t>(part * width);
  show(fmt::format("{}[{}{}] epoch {}/{}", clear_line, std::string(ready, '#'),
                   std::string(static_cast<std::size_t>(width) - ready, '.'), epoch + 1, epochs_));
}

void Progress::epoch(const EpochLine& line) {
  if (!visible_) return;
  show(fmt::format("{}{:>5}  {:>8.4f}  {:>7.4f}  {:>7.4f}  {:>10.0f}\n", bar_ ? clear_line : "",
                   line.epoch + 1, line.loss, line.train_accuracy, line.test_accuracy,
                   line.samples_per_second));
}

}  // namespace train_mlp
