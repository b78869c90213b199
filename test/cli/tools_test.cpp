// The tools: train --trace and `lockstep trace`, the sample overlap, `lockstep scaling`.

#include <doctest/doctest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <set>

#include "sample.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::contains;
using lockstep::test::Ended;
using lockstep::test::TemporaryFolder;

namespace {

using Words = std::vector<std::string>;

Ended run_trace(Words words) {
  words.insert(words.begin(), LOCKSTEP_BIN_DIR "/lockstep_trace");
  return test::run(words);
}

/// What does not depend on time.
std::string masked(const std::string& text) {
  return std::regex_replace(text, std::regex(R"([0-9]+(\.[0-9]+)?)"), "#");
}

}  // namespace

TEST_CASE("trace: train --trace, and what lockstep trace says of it") {
  const TemporaryFolder folder;
  const Words options = {"--trace",         folder / "t", "--epochs", "1",
                         "--bucket-cap-mb", "0.03",       "--ranks",  "3"};
  const Ended trained = test::run(test::sample_command("train_mlp", options));
  INFO(trained.err);
  REQUIRE(trained.code == 0);
  for (int rank = 0; rank < 3; ++rank) {
    const auto file =
        nlohmann::json::parse(std::ifstream(fmt::format("{}/rank-{}.json", folder / "t", rank)));
    CHECK(file.at("otherData").at("world") == 3);
    CHECK(file.at("otherData").at("dropped") == 0);
    // What viewers need: a rank is a process, each of its tracks has a name, and an instant belongs
    // to one track.
    std::set<std::pair<int, std::int64_t>> named, used;
    for (const auto& event : file.at("traceEvents")) {
      CHECK(event.at("pid") == rank);
      const std::string kind = event.at("ph");
      if (kind == "i") CHECK(event.at("s") == "t");
      const auto track = std::pair(rank, event.value("tid", std::int64_t{-1}));
      if (kind == "M" && event.at("name") == "thread_name") named.insert(track);
      if (kind == "X" || kind == "i") used.insert(track);
    }
    CHECK(used == named);
    // The thread, and the world's communicator; of a GPU its streams, too.
    CHECK((test::on_cpu() ? used.size() == 2 : used.size() > 2));
  }
  const Ended said = run_trace({folder / "t"});
  CHECK(said.code == 0);
  CHECK(said.err == "");
  CHECK(test::contains(said.out, "3 ranks, "));
  CHECK(test::contains(said.out, "rank 2 "));
  CHECK(test::contains(said.out, "bucket 0 "));
  CHECK(test::contains(said.out, " us exposed (median)."));
  CHECK(run_trace({folder / "t", "--summary"}).out == said.out);
  const Ended drawn = run_trace({folder / "t", "--step", "0", "--width", "80"});
  CHECK(drawn.code == 0);
  CHECK(test::count(drawn.out, "\nrank ") == 3);
  for (std::size_t begin = 0, end; (end = drawn.out.find('\n', begin)) != std::string::npos;
       begin = end + 1)
    CHECK(end - begin <= 100);

  REQUIRE(run_trace({folder / "t", "--merge", folder / "all.json"}).code == 0);
  std::size_t apart = 0;
  for (int rank = 0; rank < 3; ++rank)
    apart +=
        nlohmann::json::parse(std::ifstream(fmt::format("{}/rank-{}.json", folder / "t", rank)))
            .at("traceEvents")
            .size();
  const auto all = nlohmann::json::parse(std::ifstream(folder / "all.json"));
  CHECK(all.at("traceEvents").size() == apart);
}

TEST_CASE("trace: --merge takes events as another program wrote them, and overwrites no trace") {
  const TemporaryFolder folder;
  REQUIRE(test::run(test::sample_command(
                        "train_mlp", {"--trace", folder / "t", "--epochs", "1", "--ranks", "2"}))
              .code == 0);
  const auto path = [&](int rank) { return fmt::format("{}/rank-{}.json", folder / "t", rank); };
  nlohmann::json events = nlohmann::json::array();
  for (int rank = 0; rank < 2; ++rank) {
    const auto file = nlohmann::json::parse(std::ifstream(path(rank)));
    for (const auto& event : file.at("traceEvents")) events.push_back(event);
    if (rank == 0) std::ofstream(path(rank)) << file;  // in one line
    if (rank == 1) std::ofstream(path(rank)) << file.dump(2);
  }
  const std::string all = folder / "all.json";
  const Ended beyond = run_trace({folder / "t", "--merge", all, "--step", "9999"});
  CHECK(beyond.code == 2);
  CHECK_FALSE(std::filesystem::exists(all));
  REQUIRE(run_trace({folder / "t", "--merge", all}).code == 0);
  CHECK(nlohmann::json::parse(std::ifstream(all)).at("traceEvents") == events);

  std::filesystem::create_symlink(path(1), folder / "link");
  for (const std::string& target : {path(1), folder / "link"}) {
    const Ended refused = run_trace({folder / "t", "--merge", target});
    CHECK(refused.code == 2);
    CHECK(contains(refused.err, "is a trace of"));
  }
  CHECK(nlohmann::json::parse(std::ifstream(path(1))).contains("otherData"));

  std::filesystem::remove(path(0));  // that rank was killed
  const Ended part = run_trace({folder / "t", "--merge", all});
  CHECK(part.code == 0);
  CHECK(contains(part.out, "rank 0 of 2 left no trace of this run"));
  for (const auto& event : nlohmann::json::parse(std::ifstream(all)).at("traceEvents"))
    CHECK(event.at("pid") == 1);
}

TEST_CASE("trace: bad usage is one line") {
  const TemporaryFolder folder;
  for (const Words& words : std::vector<Words>{{},
                                               {folder / "none"},
                                               {folder / "none", "--step", "x"},
                                               {folder / "", "--width", "3"}}) {
    const Ended ended = run_trace(words);
    CAPTURE(ended.err);
    CHECK(ended.code != 0);
    CHECK(test::count(ended.err, "\n") == 1);
  }
  std::ofstream(folder / "file") << "here";
  const Ended ended =
      test::run(test::sample_command("train_mlp", {"--trace", folder / "file", "--epochs", "1"}));
  CHECK(ended.code != 0);
  CHECK(test::contains(ended.err, "cannot make the folder"));
}

TEST_CASE("trace: one that cannot be written does not take the result with it") {
  const TemporaryFolder folder;
  const Ended ended = test::run(
      {"/bin/sh", "-c",
       fmt::format("trap '' XFSZ; ulimit -f 40; cd '{}'; exec '{}/train_mlp' --epochs 3 --ranks 1 "
                   "--trace t --json result.json",
                   folder.path().string(), LOCKSTEP_BIN_DIR)});
  CAPTURE(ended.err);
  CHECK(ended.code == 1);
  CHECK(contains(ended.out, "final test_accuracy="));
  CHECK(contains(ended.err, "rank-0.json"));
  CHECK(nlohmann::json::parse(std::ifstream(folder / "result.json")).contains("losses"));
}

TEST_CASE("walk: --step takes no options of real ranks") {
  for (const Words& words : std::vector<Words>{
           {"--json", "x"}, {"--comm", "ring"}, {"--transport", "tcp"}, {"--ranks", "9"}}) {
    Words command = {LOCKSTEP_BIN_DIR "/walk", "--step"};
    command.insert(command.end(), words.begin(), words.end());
    const Ended ended = test::run(command);
    CHECK(ended.code == 2);
    CHECK(test::count(ended.err, "\n") == 1);
  }
}

TEST_CASE("overlap: drawn, with overlap and without, and the same model comes of it") {
  const TemporaryFolder folder;
  for (const char* ranks : {"1", "2", "3"}) {
    CAPTURE(ranks);
    const Words options = {"--ranks", ranks, "--json", folder / "json", "--trace", folder / "t"};
    const Words command = [&] {
      Words words = options;
      words.insert(words.begin(), LOCKSTEP_BIN_DIR "/overlap");
      return words;
    }();
    const Ended ended = test::run(command);
    INFO(ended.err);
    REQUIRE(ended.code == 0);  // it checks what it explains
    CHECK(test::count(ended.out, "\nrank 0      |") == 2);
    CHECK(test::count(ended.out, "\n  bucket 5  |") == 2 * std::stoi(ranks));
    CHECK(test::contains(masked(ended.out), "# us exposed.\n\nWhat you see"));
    for (const char* file : {"dist/ddp/reducer.cpp"}) {
      CHECK(test::contains(ended.out, file));
      CHECK(std::filesystem::exists(std::string(LOCKSTEP_SOURCE_DIR "/") + file));
    }
    const auto json = nlohmann::json::parse(std::ifstream(folder / "json"));
    CHECK(json.at("buckets") == 6);
    CHECK(run_trace({folder / "t/off"}).code == 0);
  }
  CHECK_FALSE(std::filesystem::exists(folder / "lockstep-overlap"));
}

TEST_CASE("overlap, scaling: no folder is left by a signal") {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP})
    for (const std::string program : {"overlap", "lockstep_scaling"}) {
      CAPTURE(program);
      const TemporaryFolder folder;
      const auto left = [&] {
        return std::ranges::any_of(
            std::filesystem::directory_iterator(folder.path()), [](const auto& entry) {
              const std::string name = entry.path().filename().string();
              return name.starts_with("lockstep-overlap-") || name.starts_with("lockstep-scaling-");
            });
      };
      test::Process job({LOCKSTEP_BIN_DIR "/" + program, "--ranks", "2"},
                        {"TMPDIR=" + folder.path().string()});
      std::optional<Ended> ended;
      while (!left() && !ended) {
        ::usleep(1000);
        ended = job.try_wait();
      }
      if (!ended) {
        ::kill(job.id(), signal);
        ended = job.wait();
        CHECK(ended->code == (program == "overlap" ? 128 + signal : -1));
        CHECK(ended->signal == (program == "overlap" ? 0 : signal));
      }
      job.wait_for_empty_family();
      CHECK_FALSE(left());
    }
}

TEST_CASE("scaling: a row per number of ranks, and figures that fit each other") {
  const TemporaryFolder folder;
  const Words command = {LOCKSTEP_BIN_DIR "/lockstep_scaling",
                         "--layers",
                         "8,6,4",
                         "--ranks",
                         "3",
                         "--batch",
                         "2",
                         "--round",
                         "0.01",
                         "--json",
                         folder / "json"};
  const Ended ended = test::run(command);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const auto json = nlohmann::json::parse(std::ifstream(folder / "json"));
  REQUIRE(json.at("per_rank").size() == 3);
  REQUIRE(json.at("of_all_ranks").size() == 3);  // 6 samples: 6, 3 and 2 on each rank
  for (const char* kind : {"per_rank", "of_all_ranks"}) {
    const auto& rows = json.at(kind);
    for (std::size_t k = 0; k < 3; ++k) {
      const double ranks = static_cast<double>(k + 1);
      const double rate = rows.at(k).at("samples_per_second");
      CHECK(rows.at(k).at("ranks") == k + 1);
      CHECK(rows.at(k).at("batch") == (kind == std::string("per_rank") ? 2 : 6 / (k + 1)));
      CHECK(rate == doctest::Approx(1e6 * ranks * rows.at(k).at("batch").get<double>() /
                                    rows.at(k).at("step_us").get<double>()));
      CHECK(rows.at(k).at("efficiency").get<double>() ==
            doctest::Approx(rate / ranks / rows.at(0).at("samples_per_second").get<double>()));
      CHECK(rows.at(k).at("exposed_us") <= rows.at(k).at("step_us"));
    }
  }
  CHECK(test::count(ended.out, "efficiency") == 2);
  for (const auto& [option, value] :
       {std::pair("--layers", "8"), std::pair("--comm", "none"), std::pair("--rounds", "0"),
        std::pair("--round", "-1"), std::pair("--ranks", "0"), std::pair("--batch", "0")}) {
    const Ended refused = test::run({LOCKSTEP_BIN_DIR "/lockstep_scaling", option, value});
    CAPTURE(refused.err);
    CHECK(refused.code == 2);
    CHECK(refused.out == "");
    CHECK(test::count(refused.err, "\n") == 1);
    CHECK(contains(refused.err, option));
  }
}
