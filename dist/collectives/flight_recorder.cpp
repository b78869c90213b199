#include "lockstep/dist/collectives/flight_recorder.h"

#include <algorithm>

namespace lockstep::dist {
namespace {

std::string short_name(const CallHeader& header) {
  return fmt::format("#{} '{}'", header.sequence, printable_name(header));
}

}  // namespace

void FlightRecorder::called(const CallHeader& header, Seconds now) {
  entry(header.sequence) = {header, now, {}, false};
  next_ = header.sequence + 1;
}

void FlightRecorder::finished(std::uint64_t sequence, std::optional<Seconds> now) {
  done_ = sequence + 1;
  Entry& call = entry(sequence);
  if (call.header.sequence != sequence) return;  // forgotten: many calls have followed it
  call.finished = now;
  call.done = true;
}

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
