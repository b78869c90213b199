#include "lockstep/dist/collectives/flight_recorder.h"

#include <algorithm>
#include <cmath>

namespace lockstep::dist {
namespace {

std::string short_name(const CallHeader& header) {
  return fmt::format("#{} '{}'", header.sequence, header.printable_name());
}

}  // namespace

void FlightRecorder::called(const CallHeader& header, Seconds now) {
  entry(header.sequence) = {header, now, {}, false};
  next_ = header.sequence + 1;
}

void FlightRecorder::finished(std::uint64_t sequence, std::optional<Seconds> now,
                              std::string_view name) {
  if (trace::here.recorder) trace_call(sequence, name);
  steps_ = 0;  // also of a call during which a trace has ended
  done_ = sequence + 1;
  Entry& call = entry(sequence);
  if (call.header.sequence != sequence) return;  // forgotten: many calls have followed it
  call.finished = now;
  call.done = true;
}

// ---- for a trace ----

// Calls run one after another: one begins when it is called, or when the one before it ends.
std::int64_t FlightRecorder::begun() const {
  const Entry& call = entry(done_);
  if (call.header.sequence != done_) return call_ended_;  // forgotten: many calls have followed it
  return std::max<std::int64_t>(std::llround(call.called.count() * 1e9), call_ended_);
}

void FlightRecorder::trace_step(const Step& step) {
  trace::Recorder& recorder = *trace::here.recorder;
  trace::Event event{
      .begin = steps_ == 0 ? begun() : step_ended_,
      .end = recorder.now(),
      .numbers = {steps_, step.to, step.send.begin, step.send.end, step.from, step.receive.begin,
                  step.receive.end, packed(step.action, step.into)},
      .kind = trace::Kind::step,
      .communicator = recorder.number_of(this)};
  recorder.add(event);
  ++steps_;
  step_ended_ = event.end;
}

void FlightRecorder::trace_call(std::uint64_t sequence, std::string_view name) {
  trace::Recorder& recorder = *trace::here.recorder;
  const CallHeader& header = entry(sequence).header;
  trace::Event event{.begin = begun(),
                     .end = recorder.now(),
                     .kind = trace::Kind::collective,
                     .communicator = recorder.number_of(this)};
  call_ended_ = event.end;
  if (header.sequence != sequence) return;
  event.set_name(name);
  event.numbers = {static_cast<std::int64_t>(sequence),
                   static_cast<std::int64_t>(header.operation),
                   static_cast<std::int64_t>(header.algorithm),
                   header.count,
                   header.count * static_cast<std::int64_t>(size_of(header.dtype)),
                   std::llround(entry(sequence).called.count() * 1e9),
                   header.root};
  recorder.add(event);
}

// ---- for people ----

std::string FlightRecorder::last_seen(int peer) const {
  std::string text = "this rank last finished ";
  if (done_ == 0) {
    text += "nothing";
  } else {
    const CallHeader& last = entries_[(done_ - 1) % remembered].header;
    text += last.sequence == done_ - 1 ? short_name(last) : fmt::format("#{}", done_ - 1);
  }
  const std::optional<CallHeader>& heard = heard_[index(peer)];
  return text + (heard
                     ? fmt::format("; rank {} was last heard from in {}", peer, short_name(*heard))
                     : fmt::format("; rank {} was never heard from", peer));
}

std::string FlightRecorder::text(Seconds now) const {
  std::string text;
  const std::uint64_t first = next_ - std::min<std::uint64_t>(next_, remembered);
  for (std::uint64_t sequence = first; sequence < next_; ++sequence) {
    const Entry& call = entries_[sequence % remembered];
    text += fmt::format("{}   called {:.3f} s ago   ", describe(call.header),
                        (now - call.called).count());
    if (call.done && !call.finished) {
      text += "done when waited for\n";
      continue;
    }
    const Seconds lasted = call.finished.value_or(now) - call.called;
    text += fmt::format("{} {:.1f} us\n", call.done ? "done after" : "under way for",
                        lasted.count() * 1e6);
  }
  return text;
}

}  // namespace lockstep::dist
