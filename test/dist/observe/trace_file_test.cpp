// What reads the files of a trace: damaged ones, those of several runs, and ranks that are missing.

#include "lockstep/tools/trace/trace_file.h"

#include <doctest/doctest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>

#include "lockstep/core/error.h"
#include "support/temporary_folder.h"
#include "support/text.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::TemporaryFolder;
using traces::read_traces;

namespace {

namespace fs = std::filesystem;

/// A run's ranks begin within a second, in any order.
std::string file_of(int rank, int world, int run, const std::string& events) {
  return fmt::format(
      R"({{"otherData":{{"rank":{},"world":{},"run":"{:08x}","began":{}.{},"dropped":0,)"
      R"("clock_uncertainty_us":0}},"traceEvents":[{}]}})",
      rank, world, 77777 / run, run, 9 - rank, events);
}

void write(const std::string& path, const std::string& text) { std::ofstream(path) << text; }

/// What is said of the folder, which is one line with the name of rank 1's file.
std::string refusal(const TemporaryFolder& folder) {
  std::string said;
  try {
    (void)read_traces(folder / "");
  } catch (const DataError& error) {
    said = error.what();
  }
  CHECK(said.starts_with("[trace] "));
  CHECK(contains(said, "'" + (folder / "") + "/rank-1.json'"));
  CHECK_FALSE(contains(said, "\n"));
  return said;
}

std::string event(const std::string& more, const std::string& arguments = "") {
  return R"({"pid":1,"name":"n",)" + more +
         (arguments.empty() ? "" : R"(,"args":{)" + arguments + "}") + "}";
}

}  // namespace

TEST_CASE("trace file: what is damaged or no trace is one line with the file's name") {
  const TemporaryFolder folder;
  CHECK_THROWS_WITH_AS(read_traces(folder / "none"), doctest::Contains("cannot read"), DataError);
  CHECK_THROWS_WITH_AS(read_traces(""), doctest::Contains("cannot read"), DataError);
  write(folder / "rank-0.json", file_of(0, 2, 1, ""));
  const std::string good =
      event(R"("ph":"i","ts":1.5,"tid":1,"cat":"ready")", R"("bucket":0,"pending":2)");
  write(folder / "rank-1.json", file_of(1, 2, 1, good));
  REQUIRE(read_traces(folder / "").at(1).events.size() == 1);

  for (const std::string& text : std::vector<std::string>{
           "", "{", "[]", "{}", R"({"otherData":{}})", file_of(1, 2, 1, good).substr(0, 150),
           file_of(0, 2, 1, good), file_of(1, 0, 1, good), file_of(1, -1, 1, good)}) {
    CAPTURE(text);
    write(folder / "rank-1.json", text);
    (void)refusal(folder);
  }
  const std::string at = R"("ph":"i","ts":1,"tid":1,"cat":)";
  for (const std::string& bad : std::vector<std::string>{
           event(R"("ph":"X")"), event(R"("ph":"i","ts":"1","tid":1,"cat":"verdict")"),
           event(R"("ph":"i","ts":1e308,"tid":1,"cat":"verdict")"),
           event(R"("ph":"i","ts":1e999,"tid":1,"cat":"verdict")"),
           event(R"("ph":"i","ts":1,"tid":99999999999,"cat":"verdict")"),
           event(R"("ph":"i","ts":1,"tid":0,"cat":"verdict")"),
           event(R"("ph":"i","ts":1,"tid":1.5,"cat":"verdict")"),
           event(R"("ph":"X","ts":1,"dur":-5,"tid":1,"cat":"wait")"), event(at + R"("ready")"),
           event(at + R"("ready")", R"("bucket":0)"),
           event(at + R"("ready")", R"("bucket":0,"pending":"x")"),
           event(at + R"("launched")", R"("bucket":"x","bytes":1)"),
           event(at + R"("load")", R"("rows":1,"position":null)"),
           event(at + R"("idle")", R"("rank":-7)"), event(at + R"("idle")", R"("rank":1e30)"),
           event(at + R"("collective")", R"("sequence":"x","elements":1,"bytes":1)"),
           event(at + R"("step")", R"("number":1,"to":1,"from":1,"send":[1],"receive":[1,2])"),
           event(R"("ph":"C","ts":1,"step":"x")", R"("value":1)"),
           event(R"("ph":"C","ts":1,"step":1)", R"("value":"x")")}) {
    CAPTURE(bad);
    write(folder / "rank-1.json", file_of(1, 2, 1, bad));
    CHECK(contains(refusal(folder), "is no trace of Lockstep"));
  }
}

TEST_CASE("trace file: what is no regular file is not opened") {
  const TemporaryFolder folder;
  write(folder / "rank-0.json", file_of(0, 2, 1, ""));
  fs::create_directory(folder / "rank-1.json");
  CHECK(contains(refusal(folder), "it is a folder"));
  fs::remove(folder / "rank-1.json");
  REQUIRE(::mkfifo((folder / "rank-1.json").c_str(), 0600) == 0);
  CHECK(contains(refusal(folder), "it is a pipe"));  // and does not wait for a writer
}

TEST_CASE("trace file: of several runs the newest, and the ranks that it lacks") {
  const auto ranks_read = [](const TemporaryFolder& folder) {
    std::vector<int> ranks;
    for (const traces::RankTrace& trace : read_traces(folder / "")) ranks.push_back(trace.rank);
    return ranks;
  };
  using Ranks = std::vector<int>;
  const TemporaryFolder folder;
  for (int rank = 0; rank < 4; ++rank)
    write(fmt::format("{}/rank-{}.json", folder / "", rank), file_of(rank, 4, 1, ""));
  CHECK(ranks_read(folder) == Ranks{0, 1, 2, 3});
  write(folder / "rank-2.json", file_of(2, 3, 2, ""));  // ranks 0 and 1 were killed
  CHECK(ranks_read(folder) == Ranks{2});
  CHECK(traces::missing_ranks(read_traces(folder / "")) == "ranks 0, 1");
  write(folder / "rank-0.json", file_of(0, 3, 2, ""));
  CHECK(ranks_read(folder) == Ranks{0, 2});
  CHECK(traces::missing_ranks(read_traces(folder / "")) == "rank 1");
  fs::remove(folder / "rank-1.json");
  CHECK(ranks_read(folder) == Ranks{0, 2});
  write(folder / "rank-one.json", "{}");  // not a rank's
  CHECK(ranks_read(folder) == Ranks{0, 2});
}

TEST_CASE("trace file: an output is not one of the files that are read") {
  const TemporaryFolder folder;
  write(folder / "rank-0.json", file_of(0, 1, 1, ""));
  fs::create_symlink(folder / "rank-0.json", folder / "link");
  fs::create_hard_link(folder / "rank-0.json", folder / "hard");
  fs::create_directory_symlink(folder / "", folder / "around");
  for (const char* path : {"rank-0.json", "./rank-0.json", "link", "hard", "around/rank-0.json",
                           "around/rank-1.json", "rank-12.json"}) {
    CAPTURE(path);
    CHECK_THROWS_WITH_AS(traces::check_is_no_trace(folder / "", folder / path),
                         doctest::Contains("is a trace of"), UsageError);
  }
  for (const char* path : {"all.json", "rank-0.json.x", "none/rank-0.json"})
    CHECK_NOTHROW(traces::check_is_no_trace(folder / "", folder / path));
}
