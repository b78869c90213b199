#include "lockstep/dist/observe/trace.h"

#include <algorithm>
#include <bit>
#include <charconv>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <random>
#include <thread>
#include <unordered_map>

#include "lockstep/core/system/atomic_file.h"
#include "lockstep/core/trace/recorder.h"
#include "lockstep/dist/collectives/flight_recorder.h"
#include "lockstep/dist/observe/clocks.h"
#include "lockstep/version.h"

namespace lockstep::dist {
namespace {

using trace::Event;
using trace::Kind;

constexpr int thread_track = 1, stream_track = 1000;  // a communicator's is 2, 3, ...

struct Text {
  const char* category;
  char phase;  // of Chrome's format: a complete event (X), an instant (i) or a counter (C)
};
constexpr Text text_of(Kind kind) {
  switch (kind) {
    case Kind::forward: return {"forward", 'X'};
    case Kind::backward: return {"backward", 'X'};
    case Kind::optimizer: return {"optimizer", 'X'};
    case Kind::load: return {"load", 'X'};
    case Kind::call: return {"call", 'X'};
    case Kind::progress: return {"progress", 'X'};
    case Kind::wait: return {"wait", 'X'};
    case Kind::idle: return {"idle", 'X'};
    case Kind::ready: return {"ready", 'i'};
    case Kind::launched: return {"launched", 'i'};
    case Kind::verdict: return {"verdict", 'i'};
    case Kind::value: return {"value", 'C'};
    case Kind::collective: return {"collective", 'X'};
    case Kind::step: return {"step", 'X'};
    case Kind::kernel: return {"kernel", 'X'};
  }
  return {"", 'i'};
}

std::string_view name_of(Step::Action action) {
  switch (action) {
    case Step::Action::none: return "none";
    case Step::Action::copy_in: return "copy in";
    case Step::Action::copy_out: return "copy out";
    case Step::Action::reduce_slots: return "reduce slots";
    case Step::Action::add_slots: return "add slots";
    case Step::Action::reduce_regions: return "reduce regions";
  }
  return "";
}

// Shortest digits that read back the same; JSON has no NaN and no infinity.
std::string as_json(double value) {
  return std::isfinite(value) ? fmt::format("{}", value) : "null";
}

std::string_view name_of(Step::Into into) {
  return into == Step::Into::sum ? "sum" : into == Step::Into::slot ? "slot" : "buffer";
}

/// Writes events as Chrome's JSON, a line each: "Trace Event Format" (Google, 2016), with metadata
/// (M) before them. Times are microseconds.
class Writer {
 public:
  Writer(AtomicFile& file, int rank, std::int64_t zero) : file_(file), rank_(rank), zero_(zero) {}
  ~Writer() = default;
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;

  void begin(const nlohmann::ordered_json& about) {
    buffer_ = fmt::format("{{\"displayTimeUnit\":\"ns\",\"otherData\":{},\n\"traceEvents\":[\n",
                          about.dump());
    buffer_ += fmt::format(
        R"({{"ph":"M","pid":{0},"name":"process_name","args":{{"name":"rank {0}"}}}})", rank_);
    name_track(thread_track, "thread");
  }
  void name_track(int track, const std::string& name) {
    buffer_ += fmt::format(
        R"(,{}{{"ph":"M","pid":{},"tid":{},"name":"thread_name","args":{{"name":"{}"}}}})", "\n",
        rank_, track, name);
  }
  void event(const Event& event) {
    const Text text = text_of(event.kind);
    buffer_ += fmt::format(R"(,{}{{"ph":"{}","pid":{},"tid":{},"ts":{:.3f},)", "\n", text.phase,
                           rank_, track_of(event), time(event.begin));
    if (text.phase == 'X')
      buffer_ +=
          fmt::format(R"("dur":{:.3f},)", static_cast<double>(event.end - event.begin) / 1e3);
    if (text.phase == 'i') buffer_ += R"("s":"t",)";
    // Viewers draw each argument of a counter: its step is none.
    if (text.phase == 'C') buffer_ += fmt::format(R"("step":{},)", event.numbers[0]);
    buffer_ += fmt::format(R"("cat":"{}","name":{})", text.category, quoted(event));
    add_arguments(event);
    buffer_ += '}';
    if (buffer_.size() > (1U << 20U)) flush();
  }
  void end() {
    buffer_ += "\n]}\n";
    flush();
  }

  static int track_of(const Event& event) {
    if (event.kind == Kind::kernel) return stream_track + event.communicator;
    return event.kind >= Kind::collective ? thread_track + 1 + event.communicator : thread_track;
  }

 private:
  double time(std::int64_t at) const { return static_cast<double>(at - zero_) / 1e3; }

  void add_arguments(const Event& event) {
    const auto& n = event.numbers;
    switch (event.kind) {
      case Kind::load: return add(R"("rows":{},"position":{})", n[0], n[1]);
      case Kind::idle: return add(R"("rank":{})", n[0]);
      case Kind::ready: return add(R"("bucket":{},"pending":{})", n[0], n[1]);
      case Kind::launched: return add(R"("bucket":{},"bytes":{})", n[0], n[1]);
      case Kind::value: return add(R"("value":{})", as_json(std::bit_cast<double>(n[1])));
      case Kind::collective:
        return add(R"("sequence":{},"operation":"{}","algorithm":"{}","elements":{},"bytes":{},)"
                   R"("called":{:.3f},"root":{})",
                   n[0], dist::name_of(static_cast<Operation>(n[1])),
                   dist::name_of(static_cast<Algorithm>(n[2])), n[3], n[4], time(n[5]), n[6]);
      case Kind::step:
        return add(
            R"("number":{},"to":{},"send":[{},{}],"from":{},"receive":[{},{}],"action":"{}",)"
            R"("into":"{}")",
            n[0], n[1], n[2], n[3], n[4], n[5], n[6], name_of(action_of(n[7])),
            name_of(into_of(n[7])));
      default: return;
    }
  }
  template <class... A>
  void add(fmt::format_string<A...> format, A&&... arguments) {
    buffer_ += R"(,"args":{)";
    fmt::format_to(std::back_inserter(buffer_), format, std::forward<A>(arguments)...);
    buffer_ += '}';
  }

  const std::string& quoted(const Event& event) {
    const auto& n = event.numbers;
    std::string name = event.name.data();
    if (event.kind == Kind::step) {
      name = fmt::format("step {}", n[0]);
      if (n[1] >= 0) name += fmt::format(", to {}", n[1]);
      if (n[4] >= 0) name += fmt::format(", from {}", n[4]);
    } else if (event.kind == Kind::idle) {
      name = fmt::format("for rank {}", n[0]);
    }
    auto [found, is_new] = quoted_.try_emplace(std::move(name));
    if (is_new)
      found->second = nlohmann::json(found->first)
                          .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    return found->second;
  }
  void flush() {
    file_.write(buffer_.data(), buffer_.size());
    buffer_.clear();
  }

  AtomicFile& file_;
  int rank_;
  std::int64_t zero_;
  std::string buffer_;
  std::unordered_map<std::string, std::string> quoted_;  // names as JSON
};

/// "communication", "communication 2", ..., "stream", "stream 2", ...
std::string name_of_track(int track) {
  const bool is_stream = track >= stream_track;
  const int number = track - (is_stream ? stream_track : thread_track + 1);
  const std::string_view what = is_stream ? "stream" : "communication";
  return number == 0 ? std::string(what) : fmt::format("{} {}", what, number + 1);
}

/// In the order in which viewers want them: a slice before those that it contains.
std::vector<const Event*> in_order(const trace::Recorder& recorder) {
  std::vector<const Event*> events;
  events.reserve(recorder.size());
  for (const auto& chunk : recorder.events())
    for (const Event& event : chunk) events.push_back(&event);
  std::ranges::stable_sort(events, [](const Event* a, const Event* b) {
    const auto key = [](const Event* e) {
      return std::tuple(Writer::track_of(*e), e->begin, -e->end, -static_cast<int>(e->kind));
    };
    return key(a) < key(b);
  });
  return events;
}

namespace fs = std::filesystem;

// The program may change its working directory. Empty if there is none, or no name.
fs::path made_absolute(const fs::path& path) {
  std::error_code error;
  return fs::absolute(path, error);
}

std::int64_t nanoseconds(const Communicator& communicator) {
  return std::llround(communicator.now().count() * 1e9);
}

// Rank 0 alone does it.
void make_folder(const std::string& directory) {
  std::error_code error;
  fs::create_directories(directory, error);
  check<DataError>(!error && fs::is_directory(directory), "[trace] cannot make the folder '{}': {}",
                   directory, error ? error.message() : "a file has that name");
}

// Of an earlier run, which had more ranks than this one's `size`. Readers skip it.
void remove_further_ranks(const fs::path& directory, int size) {
  std::error_code error;
  for (fs::directory_iterator entry(directory, error), end; !error && entry != end;
       entry.increment(error)) {
    const std::string name = entry->path().filename().string();
    int rank = -1;
    if (name.starts_with("rank-"))
      std::from_chars(name.data() + 5, name.data() + name.size(), rank);
    std::error_code ignored;
    if (rank >= size && name == fmt::format("rank-{}.json", rank))
      fs::remove(entry->path(), ignored);
  }
}

double seconds_since_1970() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

struct Trace::State {
  State(Communicator& communicator, const fs::path& directory_, const TraceOptions& options)
      : recorder(
            [world = CommunicatorRef(communicator), last = std::int64_t{0}]() mutable {
              if (!world.ended()) last = nanoseconds(world.get("[trace]"));
              return last;  // once it has ended, time stands still
            },
            static_cast<std::size_t>(options.most_events)),
        directory(made_absolute(directory_)),
        path(directory / fmt::format("rank-{}.json", communicator.rank())),
        rank(communicator.rank()),
        size(communicator.size()) {}

  void write_file();

  std::optional<World> world;  // lives as long as this, for its clock
  std::thread::id thread = std::this_thread::get_id();
  trace::Recorder recorder;
  fs::path directory, path;
  int rank, size;
  std::string run;                      // the same on all ranks, another one for each run
  double began = seconds_since_1970();  // readers take the newest run
  ClockOffset clock;
  std::int64_t zero = 0;  // of the files' times, by rank 0's clock
};

Trace::Trace(const World& world, const std::string& directory, const TraceOptions& options)
    : Trace(world.communicator(), directory, options) {
  state_->world = world;
}

Trace::Trace(Communicator& communicator, const std::string& directory,
             const TraceOptions& options) {
  check<StateError>(!trace::here.recorder, "[trace] this thread has a Trace already");
  communicator.membership().refuse_if_ranks_may_be_lost(
      "a Trace", "it belongs to one world, and its files would lack what others have done");
  check<UsageError>(options.most_events > 0, "[trace] most_events must be positive, got {}",
                    options.most_events);
  state_ = std::make_unique<State>(communicator, directory, options);
  on_rank0(communicator, [&] { make_folder(state_->directory); });
  on_every_rank(communicator, [&] { AtomicFile(state_->path); });  // fails now if it will later
  state_->run = gather_text(communicator, fmt::format("{:08x}", std::random_device{}()))[0];
  state_->clock = measure_clocks(communicator)[index(communicator.rank())];
  state_->zero =
      std::stoll(gather_text(communicator, std::to_string(nanoseconds(communicator)))[0]);
  trace::here.recorder = &state_->recorder;
}

Trace::~Trace() {
  if (!state_) return;
  try {
    write();
  } catch (const std::exception& error) {
    std::fputs(fmt::format("{}\n", error.what()).c_str(), stderr);
  }
  if (state_) keep_for_ever(std::move(state_));
}

// Its thread still notes events there: nothing can tell that thread, so this memory stays.
void Trace::keep_for_ever(std::unique_ptr<State> state) {
  static std::mutex mutex;
  static auto& kept = *new std::vector<std::unique_ptr<State>>;
  const std::lock_guard lock(mutex);
  kept.push_back(std::move(state));
}

void Trace::write() {
  check<StateError>(state_ != nullptr, "[trace] it was written already");
  check<StateError>(state_->thread == std::this_thread::get_id(),
                    "[trace] '{}' is not written: a Trace must end on the thread that made it",
                    state_->path.string());
  const std::unique_ptr<State> state = std::move(state_);
  if (trace::here.recorder == &state->recorder) trace::here.recorder = nullptr;
  try {
    state->write_file();
  } catch (...) {
    throw;  // caught, so that the temporary file goes away even if no caller catches it
  }
}

void Trace::State::write_file() {
  recorder.settle();
  AtomicFile file(path);
  Writer writer(file, rank, zero + clock.offset);
  writer.begin({{"lockstep", version()},
                {"run", run},
                {"began", began},
                {"rank", rank},
                {"world", size},
                {"clock_offset_us", static_cast<double>(clock.offset) / 1e3},
                {"clock_uncertainty_us", static_cast<double>(clock.uncertainty) / 1e3},
                {"events", recorder.size()},
                {"dropped", recorder.dropped()}});
  int named = thread_track;
  for (const Event* event : in_order(recorder)) {
    if (const int track = Writer::track_of(*event); track != named)
      writer.name_track(named = track, name_of_track(track));
    writer.event(*event);
  }
  writer.end();
  file.commit();
  if (rank == 0) remove_further_ranks(directory, size);
}

}  // namespace lockstep::dist
