#include "lockstep/dist/rendezvous/watchdog.h"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <system_error>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/system/signals_blocked.h"
#include "lockstep/dist/rendezvous/events/failure_record.h"
#include "lockstep/dist/rendezvous/events/launcher_pipe.h"
#include "lockstep/dist/rendezvous/running_time.h"

namespace lockstep::dist {
namespace {

constexpr Seconds look_time{0.5};
/// For a launcher to end a rank that has told it of its loss. Then this process does it itself.
constexpr Seconds launchers_time{1};

/// What has arrived at the front of a connection and was not taken.
std::string waiting_bytes(int socket, ssize_t& got) {
  std::string bytes(frame_head_bytes + 4096, '\0');
  got = TEMP_FAILURE_RETRY(::recv(socket, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT));
  bytes.resize(static_cast<std::size_t>(std::max<ssize_t>(got, 0)));
  return bytes;
}

/// The reason in an `abort` frame.
std::string reason_in(std::string_view frame) {
  std::uint32_t length = 0;
  std::memcpy(&length, frame.data(), sizeof length);
  const auto text = text_of_peer(frame.substr(std::min(frame.size(), frame_head_bytes), length));
  if (text.empty()) return "a rank gave up";  // or the reason is still on its way
  return text;
}

}  // namespace

Watchdog::Watchdog(int rank, const std::vector<int>& sockets, Seconds patience,
                   std::function<void()> tell_loss)
    : rank_(rank),
      places_(sockets.size()),
      patience_(patience),
      tell_loss_(std::move(tell_loss)),
      process_(::getpid()) {
  for (std::size_t r = 0; r < sockets.size(); ++r) places_[r].socket = sockets[r];
  const SignalsBlocked for_the_thread;
  try {
    thread_ = std::thread([this] { run(); });
  } catch (const std::system_error& error) {
    fail<CommError>(
        "[world] cannot start the watchdog's thread (LOCKSTEP_WATCHDOG=0 does without): "
        "{}",
        error.what());
  }
}

Watchdog::~Watchdog() {
  if (::getpid() != process_) {  // after a fork there is no such thread, which still seems to wait
    thread_.detach();
    (void)wake_.release();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    over_ = true;
  }
  wake_->notify_one();
  thread_.join();
}

/// Empty while all goes well.
std::string Watchdog::failure() const {
  for (std::size_t r = 0; r < places_.size(); ++r) {
    const Place& place = places_[r];
    if (place.socket < 0 || place.left) continue;
    ssize_t got = 0;
    const std::string bytes = waiting_bytes(place.socket, got);
    if (got == 0 && !place.left) return fmt::format("rank {} is gone", r);
    if (bytes.size() >= frame_head_bytes &&
        static_cast<FrameKind>(bytes[frame_kind_at]) == FrameKind::abort)
      return reason_in(bytes);
  }
  return "";
}

void Watchdog::run() {
  RunningTime since(2 * look_time);
  const bool has_launcher = launcher_pipe().has_value();  // later the program may setenv()
  std::uint64_t seen = 0;
  Deadline next_word(Seconds(0));
  std::unique_lock lock(mutex_);
  while (!wake_->wait_for(lock, std::min(look_time, patience_ / 8), [&] { return over_; })) {
    if (has_launcher && next_word.passed()) {
      next_word = Deadline(patience_ / 8);
      if (progress_->at_work(seen)) tell_launcher({RankEvent::Kind::works});
    }
    const std::string why = heard_ ? "" : failure();
    if (why.empty()) {
      since.restart();
      continue;
    }
    if (since.look(std::chrono::steady_clock::now().time_since_epoch()) <= patience_) continue;
    end_process(why);
  }
}

void Watchdog::end_process(const std::string& why) const {
  report_failure({.consequence = true,
                  .message = fmt::format("rank {} ends itself: its job has failed ({}), and for "
                                         "{:g} s it has made no call that would have told it "
                                         "(LOCKSTEP_WATCHDOG=0 lets it go on)",
                                         rank_, why, patience_.count())});
  if (!tell_loss_) ::_exit(1);
  tell_loss_();
  std::this_thread::sleep_for(launchers_time);
  ::kill(process_, SIGKILL);
  while (true) ::pause();
}

}  // namespace lockstep::dist
