// nn::Metrics: its files, read by a reader of their own, and byte by byte as TensorBoard writes.

#include "lockstep/nn/metrics/metrics.h"

#include <doctest/doctest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <csignal>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "lockstep/lockstep.h"
#include "lockstep/nn/metrics/event_file.h"
#include "support/temporary_folder.h"
#include "support/text.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;

namespace {

namespace fs = std::filesystem;
const std::string head = "step,tag,value,wall_time\n";
const std::vector<double> numbers = {
    0.1, -2.5, 0, 1e300, -1e300, 5e-324, 1.0 / 3, 123456789.123456789, std::nan(""), HUGE_VAL};

std::string text_of(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The values in a file of a trace.
std::vector<nlohmann::json> counters(const std::string& path) {
  const auto file = nlohmann::json::parse(std::ifstream(path));
  std::vector<nlohmann::json> found;
  for (const auto& event : file.at("traceEvents"))
    if (event.at("ph") == "C") found.push_back(event);
  return found;
}

struct Row {
  std::int64_t step;
  std::string tag;
  double value, wall_time;
};

std::vector<Row> rows_of(const std::string& path) {
  std::vector<Row> rows;
  std::istringstream file(text_of(path));
  std::string line, cell;
  REQUIRE(std::getline(file, line));
  CHECK(line + "\n" == head);
  while (std::getline(file, line)) {
    std::istringstream cells(line);
    std::vector<std::string> row;
    while (std::getline(cells, cell, ',')) row.push_back(cell);
    REQUIRE(row.size() == 4);
    rows.push_back({std::stoll(row[0]), row[1], std::strtod(row[2].c_str(), nullptr),
                    std::strtod(row[3].c_str(), nullptr)});
  }
  return rows;
}

std::vector<std::string> event_files(const std::string& folder) {
  std::vector<std::string> found;
  for (const auto& entry : fs::directory_iterator(folder))
    if (test::contains(entry.path().string(), "tfevents")) found.push_back(entry.path());
  std::ranges::sort(found);
  return found;
}

/// CRC-32C, bit by bit, and turned as TFRecord wants it.
std::uint32_t checksum(std::string_view bytes) {
  std::uint32_t rest = ~0u;
  for (const char byte : bytes) {
    rest ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) rest = rest & 1 ? rest >> 1 ^ 0x82f63b78u : rest >> 1;
  }
  rest = ~rest;
  return (rest >> 15 | rest << 17) + 0xa282ead8u;
}

/// Reads protobuf: the bytes of a message, field by field.
class Reader {
 public:
  explicit Reader(std::string_view bytes) : rest_(bytes) {}
  bool more() const { return !rest_.empty(); }
  template <class T>
  T number() {
    T value;
    REQUIRE(rest_.size() >= sizeof value);
    std::memcpy(&value, rest_.data(), sizeof value);
    rest_.remove_prefix(sizeof value);
    return value;
  }
  std::uint64_t varint() {
    std::uint64_t value = 0;
    for (int shift = 0;; shift += 7) {
      const auto byte = number<std::uint8_t>();
      value |= std::uint64_t{byte & 0x7fu} << shift;
      if (byte < 0x80) return value;
    }
  }
  std::string_view bytes(std::uint64_t count) {
    REQUIRE(rest_.size() >= count);
    const std::string_view found = rest_.substr(0, count);
    rest_.remove_prefix(count);
    return found;
  }

 private:
  std::string_view rest_;
};

struct ReadEvent {
  double wall_time = 0;
  std::uint64_t step = 0, session = 0;
  std::string version, tag;
  float value = 0;
};

/// A message within another one: numbers of its fields from the outermost inwards, as "5.1.2".
void read_message(std::string_view bytes, const std::string& path, ReadEvent& event) {
  for (Reader reader(bytes); reader.more();) {
    const std::uint64_t key = reader.varint();
    const std::string field = path + std::to_string(key >> 3);
    switch (key & 7) {
      case 0: (field == "2" ? event.step : event.session) = reader.varint(); break;
      case 1: event.wall_time = reader.number<double>(); break;
      case 5: event.value = reader.number<float>(); break;
      case 2: {
        const std::string_view inner = reader.bytes(reader.varint());
        if (field == "3" || field == "5.1.1")
          (field == "3" ? event.version : event.tag) = inner;
        else
          read_message(inner, field + ".", event);
        break;
      }
      default: FAIL("wire type of field ", field);
    }
  }
}

std::vector<ReadEvent> events_of(const std::string& file) {
  const std::string bytes = text_of(file);
  std::vector<ReadEvent> events;
  for (Reader reader(bytes); reader.more();) {
    const std::string_view length = reader.bytes(8);
    CHECK(reader.number<std::uint32_t>() == checksum(length));
    const std::string_view data = reader.bytes(Reader(length).number<std::uint64_t>());
    CHECK(reader.number<std::uint32_t>() == checksum(data));
    read_message(data, "", events.emplace_back());
  }
  REQUIRE(events.size() >= 2);
  CHECK(events[0].version == "brain.Event:2");
  CHECK(events[1].session == 1);
  return events;
}

/// Runs in a process of its own, which ends without destructors. Whether `task` returned true.
template <class Task>
bool in_child(Task task) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(task() ? 0 : 1);
  int status = 0;
  while (::waitpid(child, &status, 0) < 0) {
  }
  return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

}  // namespace

TEST_CASE("metrics: an event file has the bytes that TensorBoard's own library writes") {
  const auto reference =
      nlohmann::json::parse(std::ifstream(LOCKSTEP_SOURCE_DIR "/test/nn/metrics/events.json"));
  double time = reference.at("start");
  std::string file = nn::event_record(nn::version_event(time)) +
                     nn::event_record(nn::start_event(time, reference.at("start step")));
  for (const auto& [tag, step, value] :
       reference.at("values").get<std::vector<std::tuple<std::string, std::int64_t, float>>>())
    file += nn::event_record(nn::scalar_event(time++, step, tag, value));
  std::string hex;
  for (const char byte : file) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  CHECK(hex == reference.at("hex"));
}

TEST_CASE("metrics: rows and events read back, numbers exactly") {
  const TemporaryFolder folder;
  const std::string runs = folder / "runs/a";
  const auto when = std::chrono::system_clock::from_time_t(1'700'000'000);
  {
    nn::Metrics metrics(runs);
    for (std::size_t k = 0; k < numbers.size(); ++k)
      metrics.add(k % 2 ? "train/loss" : "täst", static_cast<std::int64_t>(k * k * k * k * k),
                  numbers[k], when + std::chrono::milliseconds(250 * k));
  }
  const std::vector<Row> rows = rows_of(runs + "/metrics.csv");
  REQUIRE(event_files(runs).size() == 1);
  const std::vector<ReadEvent> events = events_of(event_files(runs)[0]);
  REQUIRE(rows.size() == numbers.size());
  REQUIRE(events.size() == numbers.size() + 2);
  for (std::size_t k = 0; k < numbers.size(); ++k) {
    const ReadEvent& event = events[k + 2];
    CHECK(rows[k].step == static_cast<std::int64_t>(k * k * k * k * k));
    CHECK(rows[k].tag == (k % 2 ? "train/loss" : "täst"));
    CHECK(rows[k].wall_time == 1.7e9 + 0.25 * static_cast<double>(k));
    CHECK(event.step == static_cast<std::uint64_t>(rows[k].step));
    CHECK(event.tag == rows[k].tag);
    CHECK(event.wall_time == rows[k].wall_time);
    if (std::isnan(numbers[k])) {
      CHECK(std::isnan(rows[k].value));
      CHECK(std::isnan(event.value));
    } else {
      CHECK(rows[k].value == numbers[k]);
      CHECK(event.value ==
            (std::abs(numbers[k]) == 1e300
                 ? std::copysign(HUGE_VALF, static_cast<float>(rows[k].value > 0) - 0.5F)
                 : static_cast<float>(numbers[k])));
    }
  }
}

TEST_CASE("metrics: a run that goes on has every step once; another one begins anew") {
  const TemporaryFolder folder;
  const auto log = [&](std::int64_t from, std::int64_t to, double value) {
    nn::Metrics metrics(folder / "", true, from);
    for (std::int64_t step = from; step < to; ++step) metrics.add("loss", step, value);
  };
  log(0, 12, 1);
  std::ofstream(folder / "metrics.csv", std::ios::app) << "12,loss,0.";  // a kill has left it
  log(9, 14, 2);
  std::vector<Row> rows = rows_of(folder / "metrics.csv");
  REQUIRE(rows.size() == 14);
  for (std::size_t step = 0; step < 14; ++step) {
    CHECK(rows[step].step == static_cast<std::int64_t>(step));
    CHECK(rows[step].value == (step < 9 ? 1 : 2));
  }
  const auto files = event_files(folder / "");
  REQUIRE(files.size() == 2);
  CHECK(events_of(files[0])[1].step == 0);
  CHECK(events_of(files[1])[1].step == 9);
  CHECK(events_of(files[1]).size() == 2 + 5);
  log(0, 2, 3);
  rows = rows_of(folder / "metrics.csv");
  REQUIRE(rows.size() == 2);
  CHECK(rows[0].value == 3);
}

TEST_CASE("metrics: what flush() has written stays when the process is gone") {
  const TemporaryFolder folder;
  CHECK(in_child([&] {
    nn::Metrics metrics(folder / "");
    for (int step = 0; step < 1000; ++step) metrics.add("loss", step, step);
    metrics.flush();
    return true;
  }));
  CHECK(rows_of(folder / "metrics.csv").size() == 1000);
  CHECK(events_of(event_files(folder / "")[0]).size() == 1002);
}

TEST_CASE("metrics: a full disk is one error, and when there is room no row is torn") {
  const TemporaryFolder folder;
  CHECK(in_child([&] {
    std::signal(SIGXFSZ, SIG_IGN);
    rlimit limit{};
    ::getrlimit(RLIMIT_FSIZE, &limit);
    const rlimit small{10'001, limit.rlim_max};
    nn::Metrics metrics(folder / "");
    ::setrlimit(RLIMIT_FSIZE, &small);
    bool thrown = false;
    try {
      for (int step = 0; step < 1000; ++step) metrics.add("loss", step, 0.5);
      metrics.flush();
    } catch (const DataError& error) {
      thrown = test::contains(error.what(), "[metrics] cannot write '" + (folder / "metrics.csv"));
    }
    ::setrlimit(RLIMIT_FSIZE, &limit);
    metrics.flush();
    return thrown;
  }));
  const std::vector<Row> rows = rows_of(folder / "metrics.csv");
  const std::vector<ReadEvent> events = events_of(event_files(folder / "")[0]);
  REQUIRE(events.size() == rows.size() + 2);
  for (std::size_t k = 0; k < rows.size(); ++k) CHECK(rows[k].step == static_cast<int>(k));
}

TEST_CASE("metrics: other ranks, and no folder: nothing is written") {
  const TemporaryFolder folder;
  nn::Metrics other(folder / "other", false), none("");
  other.add("loss", 0, 1);
  none.add("loss", 0, 1);
  other.flush();
  none.flush();
  CHECK(folder.empty());
}

TEST_CASE("metrics: errors are one line") {
  const TemporaryFolder folder;
  std::ofstream(folder / "file") << "here";
  CHECK_THROWS_WITH_AS(nn::Metrics(folder / "file"),
                       doctest::Contains("[metrics] cannot make the folder '"), DataError);
  nn::Metrics metrics(folder / "runs", true, 5);
  for (const char* tag : {"", "a,b", "a\"b", "a\nb"})
    CHECK_THROWS_WITH_AS(metrics.add(tag, 5, 1), doctest::Contains("got '"), UsageError);
  CHECK_THROWS_WITH_AS(metrics.add("a\nb", 5, 1), doctest::Contains("got 'a\\nb'"), UsageError);
  CHECK_THROWS_WITH_AS(metrics.add("loss", 4, 1),
                       "[metrics] 'loss': step 4 is before the first step, 5", UsageError);
  for (const char* text : {"a,b,c\n1,2,3\n", "step,tag,value,wall_time\n1,loss,2\n",
                           "step,tag,value,wall_time\nx,loss,2,3\n"}) {
    std::ofstream(folder / "metrics.csv") << text;
    CHECK_THROWS_WITH_AS(nn::Metrics(folder / ""), doctest::Contains("metrics.csv'"), DataError);
    CHECK(text_of(folder / "metrics.csv") == text);
  }
}

TEST_CASE("metrics: tags too long for a trace stay apart in it") {
  const TemporaryFolder folder;
  const std::string common(60, 'x');
  const std::vector<std::string> tags = {common + "/train/loss",
                                         common + "/test/loss",
                                         common + "/train/" + common,
                                         common + "y/train/loss",
                                         std::string(45, 'z'),
                                         std::string(46, 'z'),
                                         "short"};
  {
    const World world = World::join();
    const dist::Trace trace(world, folder / "t");
    nn::Metrics metrics("");
    for (std::size_t k = 0; k < tags.size(); ++k) metrics.add(tags[k], 1, static_cast<double>(k));
  }
  std::set<std::string> names;
  for (const nlohmann::json& value : counters(folder / "t/rank-0.json")) {
    const std::string name = value.at("name");
    const std::string& tag = tags.at(value.at("args").at("value").get<std::size_t>());
    CAPTURE(name);
    names.insert(name);
    CHECK(name.size() <= 45);
    CHECK((name == tag) == (tag.size() <= 45));
    CHECK(tag.ends_with(name.substr(name.rfind('~') + 1)));  // the report's chart is of its end
  }
  CHECK(names.size() == tags.size());
}

TEST_CASE("metrics: the thread's trace gets the values, and when they were known") {
  const TemporaryFolder folder;
  run_threads(2, {}, [&](World& world) {
    const dist::Trace trace(world, folder / "t");
    nn::Metrics metrics("", world.rank() == 0);
    const auto now = std::chrono::system_clock::now();
    for (std::size_t k = 0; k < numbers.size(); ++k)
      metrics.add("train/loss", static_cast<std::int64_t>(k), numbers[k],
                  now - std::chrono::seconds(100 * k));
  });
  CHECK(counters(folder / "t/rank-1.json").empty());
  const std::vector<nlohmann::json> found = counters(folder / "t/rank-0.json");
  REQUIRE(found.size() == numbers.size());
  for (std::size_t i = 0; i < found.size(); ++i) {  // the oldest first
    const std::size_t k = found.size() - 1 - i;
    CHECK(found[i].at("name") == "train/loss");
    CHECK(found[i].at("step") == k);
    const nlohmann::json& value = found[i].at("args").at("value");
    if (std::isfinite(numbers[k]))
      CHECK(value == numbers[k]);
    else
      CHECK(value.is_null());
    if (i > 0)
      CHECK(found[i].at("ts").get<double>() - found[i - 1].at("ts").get<double>() ==
            doctest::Approx(100e6).epsilon(0.01));
  }
}
