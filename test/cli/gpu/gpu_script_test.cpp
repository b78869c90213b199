// bench/gpu.sh, with programs that we write in place of those that it measures: what it says to bad
// usage, and that what hangs or fails costs no other command its result.

#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <thread>

#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep::test;

namespace {

using Words = std::vector<std::string>;
const std::string script = LOCKSTEP_SOURCE_DIR "/bench/gpu.sh";

/// A build folder of shell scripts, and a folder for results.
class FakeBuild {
 public:
  void program(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = folder_ / "build/" + name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << "#!/bin/sh\n" << text;
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  Words command(const Words& options) const {
    Words words{script, "--build", folder_ / "build", "--out", folder_ / "out"};
    words.insert(words.end(), options.begin(), options.end());
    return words;
  }
  std::string out(const std::string& name) const { return folder_ / "out/" + name; }
  nlohmann::json results(const std::string& stage) const {
    const auto json = nlohmann::json::parse(std::ifstream(out(stage + ".json")));
    CHECK(json.at("stage") == stage);
    CHECK(text(stage + ".md").starts_with("## " + stage + ": " + std::string(json.at("result"))));
    CHECK(contains(text("summary.md"), text(stage + ".md")));
    return json;
  }
  std::string text(const std::string& name) const {
    std::ifstream file(out(name));
    return {std::istreambuf_iterator<char>(file), {}};
  }

 private:
  TemporaryFolder folder_;
};

/// The results of a stage's commands, as in "passed failed".
std::string results_of(const nlohmann::json& stage) {
  std::string result;
  for (const auto& one : stage.at("commands"))
    result += (result.empty() ? "" : " ") + std::string(one.at("result"));
  return result;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// It leaves a process that takes no notice of SIGTERM.
const std::string hangs = "(trap '' TERM; sleep 1000) & touch \"$0.hangs\"; sleep 1000\n";

}  // namespace

TEST_CASE("gpu.sh: bad usage is one line and code 2") {
  const TemporaryFolder folder;
  const std::string out = folder / "out";
  for (const Words& words : std::vector<Words>{{},
                                               {"--stages", "build"},
                                               {"--out"},
                                               {"--out", out, "--nosuch"},
                                               {"--out", out, "--device", "cpu"},
                                               {"--out", out, "--limit", "soon"},
                                               {"--out", out, "--each", "1.5"},
                                               {"--out", out, "--deps", folder / "none"},
                                               {"--out", out, "--stages", "build,nosuch"}}) {
    Words command{script};
    command.insert(command.end(), words.begin(), words.end());
    const Ended ended = run(command);
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    CHECK(lines_of(ended.err).size() == 1);
    CHECK_FALSE(std::filesystem::exists(out));
  }
  const Ended help = run({script, "--help"});
  CHECK(help.code == 0);
  CHECK(help.err.empty());
  CHECK(contains(help.out, "\n  sanitize  "));
}

TEST_CASE("gpu.sh: what hangs costs its limit, and each result is told") {
  const FakeBuild build;
  build.program("bin/train_mlp",
                "case \"$*\" in\n"
                "*'--ranks 2'*direct) " +
                    hangs +
                    " ;;\n"
                    "*'--ranks 2'*ring) echo 'error: \"a\" \\ | \xc3'; exit 3 ;;\n"
                    "*) printf 'first\\nlast\\tline\\n\\n' ;;\n"
                    "esac\n");
  const auto begin = std::chrono::steady_clock::now();
  Process process(build.command({"--device", "sim", "--stages", "sanitize,ipc", "--each", "1"}));
  const Ended ended = process.wait();
  CAPTURE(ended.err);
  CHECK(ended.code == 1);
  CHECK(ended.err.empty());
  CHECK(seconds_since(begin) < 20);
  process.wait_for_empty_family();

  const auto ipc = build.results("ipc"), commands = ipc.at("commands");
  CHECK(ipc.at("result") == "failed");
  CHECK(results_of(ipc) == "stopped failed passed passed skipped");
  CHECK(commands[0].at("limit") == 1);
  CHECK(commands[0].at("seconds") >= 1);
  CHECK(commands[0].at("code") == 124);
  CHECK(commands[1].at("remark") == "exit code 3: error: \"a\" \\ | ?");
  CHECK(commands[1].at("code") == 3);
  CHECK(commands[2].at("remark") == "last line");
  CHECK(contains(build.text("ipc.md"), "| exit code 3: error: \"a\" \\ \\| ? |\n"));
  CHECK(build.results("sanitize").at("result") == "skipped");
  CHECK(contains(build.text("log.txt"), "first\n"));
}

TEST_CASE("gpu.sh: tests of which none has the name have failed") {
  const FakeBuild build;
  build.program("test/test_cuda",
                "case \"$*\" in\n"
                "*list*hopper*) echo 'passing the current filters: 0' ;;\n"
                "*list*) echo 'passing the current filters: 2' ;;\n"
                "*fill*) echo '[doctest] test cases: 0 | 0 passed | 0 failed | 9 skipped' ;;\n"
                "*) echo '[doctest] test cases:  2 |  2 passed | 0 failed | 7 skipped' ;;\n"
                "esac\n");
  const Ended ended =
      run(build.command({"--stages", "kernels", "--python", "false", "--each", "9"}));
  CHECK(ended.code == 1);
  const auto kernels = build.results("kernels"), commands = kernels.at("commands");
  CHECK(results_of(kernels) == "passed failed passed passed failed failed failed");
  CHECK(commands[1].at("remark") == "exit code 1: no case has the name 'hopper*'");
  CHECK(commands[4].at("remark") == "exit code 1: no test case ran");
}

TEST_CASE("gpu.sh: results that a signal interrupts are written, and nothing goes on") {
  const FakeBuild build;
  build.program("bin/train_mlp", hangs);
  Process process(build.command({"--device", "sim", "--stages", "ipc,training"}));
  while (!std::filesystem::exists(build.out("../build/bin/train_mlp.hangs")))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(kill(process.id(), SIGTERM) == 0);
  const Ended ended = process.wait();
  CHECK(ended.code == 143);
  process.wait_for_empty_family();
  CHECK(results_of(build.results("ipc")) == "stopped stopped stopped stopped skipped");
  CHECK(build.results("training").at("result") == "stopped");
}
