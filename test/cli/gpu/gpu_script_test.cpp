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

/// A build folder of shell scripts, as if the stage build had made it for a device, and a folder
/// for results.
class FakeBuild {
 public:
  explicit FakeBuild(std::string device) : device_(std::move(device)) {
    std::filesystem::create_directories(folder_ / "build");
    std::ofstream(folder_ / "build/CMakeCache.txt")
        << "LOCKSTEP_CUDA:STRING=" << (device_ == "sim" ? "SIM" : "ON") << "\n";
  }
  void program(const std::string& name, const std::string& text) const {
    write("build/" + name, text);
  }
  /// A program of the system.
  void on_path(const std::string& name, const std::string& text) const {
    write("path/" + name, text);
  }
  std::string path() const { return "PATH=" + (folder_ / "path:") + std::getenv("PATH"); }
  std::string note() const { return file("build/built-by-gpu-sh"); }
  std::string file(const std::string& name) const { return folder_ / name; }
  void write(const std::string& name, const std::string& text) const {
    const std::filesystem::path file = folder_ / name;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << "#!/bin/sh\n" << text;
    std::filesystem::permissions(file, std::filesystem::perms::owner_all);
  }
  Words command(const Words& options) const {
    std::ofstream(note()) << device_ << " abc123\n";
    return command_alone(device_, options);
  }
  Words command_alone(const std::string& device, const Words& options) const {
    Words words{script, "--build", folder_ / "build", "--out", folder_ / "out", "--device", device};
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
  std::string device_;
};

/// The results of a stage's commands, as in "passed failed".
std::string results_of(const nlohmann::json& stage) {
  std::string result;
  for (const auto& one : stage.at("commands"))
    result += (result.empty() ? "" : " ") + std::string(one.at("result"));
  return result;
}

/// What a stage tells of the command with this number.
std::string remark_of(const nlohmann::json& stage, int command) {
  return stage.at("commands").at(static_cast<std::size_t>(command)).at("remark");
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

// It leaves processes that take no notice of SIGTERM, one of them in a session of its own.
const std::string hangs =
    "(trap '' TERM; sleep 1000) & setsid sleep 1000 & touch \"$0.hangs\"; sleep 1000\n";

}  // namespace

TEST_CASE("gpu.sh: bad usage is one line and code 2") {
  const TemporaryFolder folder;
  const std::string out = folder / "out", file = folder / "file";
  std::ofstream(file) << "file\n";
  for (const Words& words :
       std::vector<Words>{{},
                          {"--stages", "build"},
                          {"--out"},
                          {"--out", out, "--nosuch"},
                          {"--out", out, "--device", "cpu"},
                          {"--out", out, "--limit", "soon"},
                          {"--out", out, "--each", "1.5"},
                          {"--out", out, "--deps", folder / "none"},
                          {"--out", out, "--deps", file},
                          {"--out", out, "--stages", "build,nosuch"},
                          {"--out", out, "--stages", "probe build"},
                          {"--out", out, "--stages", ","},
                          {"--out", out, "--stages", "probe,"},
                          {"--out", out, "--stages", "*"},
                          {"--out", out, "--stages", "ipc", "--build", file}}) {
    Words command{script};
    command.insert(command.end(), words.begin(), words.end());
    const Ended ended = run(command);
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.out.empty());
    CHECK(lines_of(ended.err).size() == 1);
    CHECK_FALSE(std::filesystem::exists(out));
  }
  const Ended unwritable = run({script, "--out", file, "--stages", "probe"});
  CHECK(unwritable.code == 1);
  CHECK(lines_of(unwritable.err).size() == 1);
  const Ended help = run({script, "--help"});
  CHECK(help.code == 0);
  CHECK(help.err.empty());
  CHECK(contains(help.out, "\n  sanitize  "));
}

TEST_CASE("gpu.sh: what hangs costs its limit, and each result is told") {
  const FakeBuild build("sim");
  build.program("bin/train_mlp",
                "case \"$*\" in\n"
                "*'--ranks 2'*direct) " +
                    hangs +
                    " ;;\n"
                    "*'--ranks 2'*ring) echo 'error: \"a\" \\ | \xc3'; exit 3 ;;\n"
                    "*) printf 'first\\nlast\\tline\\n\\n' ;;\n"
                    "esac\n");
  const auto begin = std::chrono::steady_clock::now();
  Process process(build.command({"--stages", "sanitize,ipc", "--each", "1"}));
  const Ended ended = process.wait();
  CAPTURE(ended.err);
  CHECK(ended.code == 1);
  CHECK(ended.err.empty());
  CHECK(seconds_since(begin) < 20);
  process.wait_for_empty_family();

  const auto ipc = build.results("ipc"), commands = ipc.at("commands");
  CHECK(ipc.at("result") == "failed");
  CHECK(ipc.at("built_from") == "abc123");
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
  const FakeBuild build("cuda");
  build.program(
      "test/test_cuda",
      "case \"$*\" in\n"
      "*list*) printf '%s\\n' '[doctest] listing' 'Every rung: a' 'products of 16-bit' \\\n"
      "  'a long sum' 'the default' 'two runs' 'every size' 'plans' \\\n"
      "  'any number of slices' 'slices for' 'tiles in several' 'fill' 'streams' ;;\n"
      "*fill*) echo '[doctest] test cases: 0 | 0 passed | 0 failed | 9 skipped' ;;\n"
      "*) echo '[doctest] test cases:  2 |  2 passed | 0 failed | 7 skipped' ;;\n"
      "esac\n");
  build.program("test/test_kernels", hangs);
  const Ended ended =
      run(build.command({"--stages", "kernels", "--python", "false", "--each", "2"}));
  CHECK(ended.code == 1);
  const auto kernels = build.results("kernels"), commands = kernels.at("commands");
  CHECK(results_of(kernels) == "passed failed passed passed failed failed failed");
  CHECK(commands[1].at("remark") == "exit code 1: no case has the name 'hopper*'");
  CHECK(commands[4].at("remark") == "exit code 1: no test case ran");
  CHECK(contains(remark_of(kernels, 5), "--list-test-cases was stopped after 2."));
  CHECK(commands[6].at("remark") == "exit code 1: not built");
}

TEST_CASE("gpu.sh: programs of another device, or of no finished build, are not run") {
  const FakeBuild build("sim");
  build.program("bin/train_mlp", "echo ran\n");
  const auto refused = [&](const std::string& device, const std::string& why) {
    const Ended ended = run(build.command_alone(device, {"--stages", "ipc"}));
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(lines_of(ended.err).size() == 1);
    CHECK(contains(ended.err, why));
  };
  refused("cuda", "is built for another (LOCKSTEP_CUDA=SIM)");
  refused("sim", "has not finished a build for sim");
  std::ofstream(build.note()) << "cuda abc123\n";
  refused("sim", "has not finished a build for sim");
  build.command({});
  std::filesystem::last_write_time(
      build.note(), std::filesystem::file_time_type::clock::now() - std::chrono::hours(1));
  refused("sim", "train_mlp is newer");

  // A build that fails leaves what it has finished. What it has not is of another commit.
  build.program("test/test_cuda", "echo '[doctest] test cases: 1 | 1 passed'\n");
  build.on_path("cmake",
                "case \"$*\" in *'train_mlp test_cuda'*|*'test_cuda test_kernels'*) exit 1 ;;\n"
                "*'target test_cuda'*) exit 1 ;; esac\n");
  build.on_path("nvcc", "exit 1\n");
  const Ended ended =
      run(Words{"env", build.path()} + build.command({"--stages", "build,kernels,ipc"}));
  CHECK(ended.code == 1);
  CHECK(results_of(build.results("build")) ==
        "passed failed failed passed passed passed passed passed passed");
  CHECK(build.results("kernels").at("commands")[0].at("remark") == "exit code 1: not built");
  CHECK(build.results("ipc").at("result") == "passed");
  build.on_path("cmake", "exit 1\n");
  CHECK(run(Words{"env", build.path()} + build.command({"--stages", "build,ipc"})).code == 1);
  CHECK(results_of(build.results("build")) == "failed");
  CHECK(contains(remark_of(build.results("ipc"), 0), "has not finished a build"));
}

TEST_CASE("gpu.sh: no GPU, other compilers, endless output and half of the figures are told") {
  const FakeBuild build("cuda");
  build.on_path("nvidia-smi", "echo No devices were found\n");
  build.on_path("nvcc", "echo of the path\n");
  build.write("its own/nvcc", "echo of CUDACXX\n");
  const std::string named = "CUDACXX=" + build.file("its own/nvcc");
  CHECK(run(Words{"env", build.path(), named} +
            build.command({"--stages", "probe", "--python", "false"}))
            .code == 1);
  const auto probe = build.results("probe").at("commands");
  CHECK(probe[0].at("remark") == "exit code 1: no GPU: No devices were found");
  CHECK(probe[1].at("remark") == "of CUDACXX");

  const FakeBuild sim("sim");
  sim.program("bin/bench_step",
              "while [ \"$1\" != --json ]; do shift; done; printf '{\"a\": NaN}' >\"$2\"\n"
              "case \"$*\" in *'--ranks 1'*) yes | tr -d '\\n' ;; esac\n"
              "case \"$*\" in *'--ranks 2'*) printf '{\"a\": 1}' >\"$2\" ;; esac\n");
  CHECK(run(sim.command({"--stages", "recorded"})).code == 1);
  const auto recorded = sim.results("recorded").at("commands");
  CHECK(contains(std::string(recorded[0].at("remark")), "printed more than 20 MB"));
  CHECK(recorded[0].at("figures_unread") == "recorded-figures-1.json");
  CHECK(std::filesystem::exists(sim.out("recorded-figures-1.json")));
  CHECK(recorded[1].at("figures").at("a") == 1);
  CHECK(contains(sim.text("summary.md"), "| sim (no figure is of a GPU) | built from abc123 |"));
}

TEST_CASE("gpu.sh: results that a signal interrupts are written, and nothing goes on") {
  const FakeBuild build("sim");
  build.program("bin/train_mlp", hangs);
  Process process(build.command({"--stages", "ipc,training"}));
  while (!std::filesystem::exists(build.out("../build/bin/train_mlp.hangs")))
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(kill(process.id(), SIGTERM) == 0);
  const Ended ended = process.wait();
  CHECK(ended.code == 143);
  process.wait_for_empty_family();
  CHECK(results_of(build.results("ipc")) == "stopped stopped stopped stopped skipped");
  CHECK(build.results("training").at("result") == "stopped");
}
