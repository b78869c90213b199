#include "lockstep/core/trace/recorder.h"

#include <fmt/format.h>

#include <tuple>

#include "lockstep/core/system/crc32c.h"

namespace lockstep::trace {

void Recorder::add(const Event& event) {
  constexpr std::size_t chunk = 4096;
  if (size_ == most_ || event.communicator == Event::no_track) {
    ++dropped_;
    return;
  }
  if (size_++ % chunk == 0) chunks_.emplace_back().reserve(chunk);
  chunks_.back().push_back(event);
}

void Recorder::instant(Kind kind, std::string_view name, const Numbers& numbers,
                       std::chrono::nanoseconds ago) {
  Event event{.numbers = numbers, .kind = kind};
  event.begin = event.end = now() - ago.count();
  event.set_name(name);
  add(event);
}

void Recorder::forward_ends(const char* operation) {
  Event event{.kind = Kind::forward};
  event.end = now();
  event.begin = computing_since_ < 0 ? event.end : std::exchange(computing_since_, -1);
  event.set_name(operation);
  add(event);
}

void Recorder::idle(int rank, std::int64_t begin) {
  const std::int64_t end = now();
  if (!chunks_.empty()) {
    Event& last = chunks_.back().back();
    if (last.kind == Kind::idle && last.numbers[0] == rank && size_ < most_) {
      last.end = end;
      return;
    }
  }
  Event event{.begin = begin, .end = end, .numbers = {rank}, .kind = Kind::idle};
  event.set_name("idle");
  add(event);
}

std::uint8_t Recorder::place_of(const void* one, std::vector<const void*>& all) {
  const auto found = std::ranges::find(all, one);
  const auto number = static_cast<std::size_t>(found - all.begin());
  if (number == Event::no_track) return Event::no_track;
  if (found == all.end()) all.push_back(one);
  return static_cast<std::uint8_t>(number);
}

std::string distinct_name(std::string_view name) {
  constexpr std::size_t most = std::tuple_size_v<decltype(Event::name)> - 1, begin = 12;
  if (name.size() <= most) return std::string(name);
  const std::string checksum = fmt::format("~{:08x}~", crc32c(name));
  const std::size_t end = most - begin - checksum.size();
  return fmt::format("{}{}{}", name.substr(0, begin), checksum, name.substr(name.size() - end));
}

void Slice::start(Kind kind, std::string_view name, const Numbers& numbers) {
  kind_ = kind;
  name_ = name;
  numbers_ = numbers;
  outer_ = std::exchange(recorder_->computing_since_, -1);
  begin_ = recorder_->now();
}

// An operation that communicates (SyncBatchNorm) contains the wait. Other kernels so far, and those
// of the slice itself, belong to no later operation.
void Slice::end() {
  if (recorder_ != here.recorder) return;  // the trace has ended meanwhile
  recorder_->computing_since_ = kind_ >= Kind::call && kind_ <= Kind::wait ? outer_ : -1;
  Event event{.begin = begin_, .end = recorder_->now(), .numbers = numbers_, .kind = kind_};
  event.set_name(name_);
  recorder_->add(event);
}

}  // namespace lockstep::trace
