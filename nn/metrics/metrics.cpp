#include "lockstep/nn/metrics/metrics.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include "lockstep/core/error.h"
#include "lockstep/core/gpu/graph.h"
#include "lockstep/core/system/atomic_file.h"
#include "lockstep/core/system/file_kind.h"
#include "lockstep/core/text/utf8.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/nn/metrics/event_file.h"

namespace lockstep::nn {
namespace {

using Time = Metrics::Time;

namespace fs = std::filesystem;
constexpr std::string_view head = "step,tag,value,wall_time";
constexpr std::chrono::seconds most_waiting{1};

std::int64_t microseconds(Time time) {
  return std::chrono::duration_cast<std::chrono::microseconds>(time.time_since_epoch()).count();
}
double seconds(Time time) { return static_cast<double>(microseconds(time)) / 1e6; }

/// The step of a row, or nothing if it is no row.
std::optional<std::int64_t> step_of(std::string_view row) {
  std::int64_t step = 0;
  const auto [end, error] = std::from_chars(row.data(), row.data() + row.size(), step);
  if (error != std::errc{} || std::ranges::count(row, ',') != 3 || *end != ',') return {};
  return step;
}

/// Leaves the head, and the rows of steps before `first_step`. A last line without an end is what a
/// kill has left of a row.
void begin_table(const std::string& path, std::int64_t first_step) {
  std::ifstream old(path);
  check<DataError>(old.good() || kind_of_file(path) == FileKind::none, "[metrics] cannot read '{}'",
                   path);
  std::string line;
  if (std::getline(old, line))
    check<DataError>(line == head,
                     "[metrics] '{}' is of another program: it begins with '{}', not '{}'", path,
                     line.substr(0, 60), head);
  std::string kept = fmt::format("{}\n", head);
  for (std::size_t number = 2; std::getline(old, line) && !old.eof(); ++number) {
    const std::optional<std::int64_t> step = step_of(line);
    check<DataError>(step.has_value(), "[metrics] '{}', line {}: '{}' is no row of '{}'", path,
                     number, line.substr(0, 60), head);
    if (*step < first_step) kept += line + "\n";
  }
  write_file(path, kept);
}

/// A file at whose end text is added.
class Appended {
 public:
  /// `flags` of open(2) besides those of every file here. Leaves errno if it fails.
  Appended(std::string path, int flags)
      : path_(std::move(path)),
        descriptor_(::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | flags, 0666)) {}
  ~Appended() {
    if (descriptor_ >= 0) ::close(descriptor_);
  }
  Appended(const Appended&) = delete;
  Appended& operator=(const Appended&) = delete;

  bool is_open() const { return descriptor_ >= 0; }
  const std::string& path() const { return path_; }
  void add(std::string_view text) { waiting_ += text; }

  /// After an error, the next call goes on where this one has stopped.
  void write() {
    while (!waiting_.empty()) {
      const ssize_t written = ::write(descriptor_, waiting_.data(), waiting_.size());
      check<DataError>(written >= 0 || errno == EINTR, "[metrics] cannot write '{}': {}", path_,
                       std::strerror(errno));
      if (written > 0) waiting_.erase(0, static_cast<std::size_t>(written));
    }
  }

 private:
  std::string path_;
  int descriptor_;
  std::string waiting_;
};

/// TensorBoard reads the files of a folder in the order of their names, and looks for new names.
std::unique_ptr<Appended> new_event_file(const std::string& directory, Time now) {
  for (std::int64_t time = microseconds(now);; ++time) {
    const std::string name = fmt::format("events.out.tfevents.{:016}.lockstep", time);
    auto file = std::make_unique<Appended>(fs::path(directory) / name, O_CREAT | O_EXCL);
    if (file->is_open()) return file;
    check<DataError>(errno == EEXIST, "[metrics] cannot create '{}': {}", file->path(),
                     std::strerror(errno));
  }
}

void check_tag(std::string_view tag) {
  const auto is_control = [](char c) { return (c >= 0 && c < ' ') || c == '\x7f'; };
  if (!tag.empty() && tag.find_first_of(",\"") == std::string_view::npos &&
      std::ranges::none_of(tag, is_control) && is_utf8(tag))
    return;
  fail<UsageError>(
      "[metrics] a tag is a text in UTF-8, without commas, quotes and control characters, got '{}'",
      tag);
}

// What is too large for an f32 becomes infinite.
float as_f32(double value) {
  constexpr double most = std::numeric_limits<float>::max();
  constexpr float infinity = std::numeric_limits<float>::infinity();
  if (std::isfinite(value) && std::abs(value) > most) return value > 0 ? infinity : -infinity;
  return static_cast<float>(value);
}

}  // namespace

struct Metrics::Files {
  Files(const std::string& directory, std::int64_t first_step) {
    std::error_code error;
    fs::create_directories(directory, error);
    check<DataError>(!error && fs::is_directory(directory),
                     "[metrics] cannot make the folder '{}': {}", directory,
                     error ? error.message() : "a file has that name");
    const std::string path = fs::path(directory) / "metrics.csv";
    begin_table(path, first_step);
    table = std::make_unique<Appended>(path, 0);
    check<DataError>(table->is_open(), "[metrics] cannot open '{}': {}", path,
                     std::strerror(errno));
    const Time now = std::chrono::system_clock::now();
    events = new_event_file(directory, now);
    events->add(event_record(version_event(seconds(now))));
    events->add(event_record(start_event(seconds(now), first_step)));
    write();
  }

  void write() {
    written = std::chrono::steady_clock::now();
    failed = true;
    table->write();
    events->write();
    failed = false;
  }

  std::unique_ptr<Appended> table, events;
  std::chrono::steady_clock::time_point written;  // the last time
  bool failed = false;                            // then
};

Metrics::Metrics(const std::string& directory, bool writes, std::int64_t first_step)
    : writes_(writes), first_step_(first_step) {
  if (writes && !directory.empty()) files_ = std::make_unique<Files>(directory, first_step);
}

Metrics::~Metrics() {
  if (files_ && files_->failed) return;  // that was thrown
  try {
    flush();
  } catch (const std::exception& error) {
    std::fputs(fmt::format("{}\n", error.what()).c_str(), stderr);
  }
}

void Metrics::add(std::string_view tag, std::int64_t step, double value, Time when) {
  StepGraph::refuse_in_recording("metrics");
  check_tag(tag);
  check<UsageError>(step >= first_step_, "[metrics] '{}': step {} is before the first step, {}",
                    tag, step, first_step_);
  if (!writes_) return;
  trace::value(tag, step, value, std::chrono::system_clock::now() - when);
  if (!files_) return;
  files_->table->add(fmt::format("{},{},{},{}\n", step, tag, value, seconds(when)));
  files_->events->add(event_record(scalar_event(seconds(when), step, tag, as_f32(value))));
  if (std::chrono::steady_clock::now() - files_->written >= most_waiting) flush();
}

void Metrics::flush() {
  if (files_) files_->write();
}

}  // namespace lockstep::nn
