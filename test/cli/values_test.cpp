// What users give to options: values that are no numbers, files that are none, and options that
// would have no effect. Each is one line and an exit code that is not 0, before any work.

#include <doctest/doctest.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "cli/sample.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep::test;

namespace values {
namespace {

const std::string launcher = LOCKSTEP_BIN_DIR "/lockstep-run";
using Words = std::vector<std::string>;

void expect_refused(const Words& command, int code, const std::string& text) {
  const Ended ended = run(command);
  CAPTURE(fmt::format("{}", fmt::join(command, " ")));
  CAPTURE(ended.err);
  CHECK(ended.code == code);
  CHECK(ended.out.empty());
  REQUIRE(lines_of(ended.err).size() == 1);
  CHECK(contains(ended.err, text));
  CHECK(ended.err.size() < 250);
}

}  // namespace

TEST_CASE("values: what is no number is refused by every option that takes one") {
  struct Program {
    Words command;
    Words options, rest = {};
  };
  const std::string bin = LOCKSTEP_BIN_DIR;
  const std::vector<Program> programs = {
      {{launcher, "-n", "1", "--nnodes", "1"}, {"--timeout", "--grace"}, {"true"}},
      {{launcher}, {"-n"}, {"true"}},
      {{launcher, "-n", "1"}, {"--nnodes"}, {"true"}},
      {{launcher, "-n", "1", "--nnodes", "1"}, {"--node-rank"}, {"true"}},
      {{bin + "/train_mlp"},
       {"--timeout", "--grace", "--lr", "--momentum", "--weight-decay", "--bucket-cap-mb",
        "--first-bucket-mb", "--last-bucket-mb", "--epochs", "--batch", "--seed", "--ranks",
        "--layers"}},
      {{bin + "/stragglers"}, {"--steps", "--batch", "--hidden", "--seed"}},
      {{bin + "/syncbn"}, {"--seed", "--timeout"}},
      {{bin + "/ddp_from_scratch"}, {"--ranks", "--epochs"}},
      {{bin + "/bench_step"}, {"--round", "--rounds", "--batch", "--ranks", "--layers"}},
      {{bin + "/bench_allreduce"}, {"--round", "--rounds", "--ranks", "--min", "--max"}}};
  for (const Program& program : programs)
    for (const std::string& option : program.options)
      for (const char* value : {"nan", "inf", "-inf", "1e400", "0x1", "1x", " 1", "1 ", "-1", ""})
        expect_refused(program.command + Words{option, value} + program.rest, 2,
                       option == "-n" && *value != '\0' ? "--ranks" : option);
}

TEST_CASE("values: options of several machines are refused without --nnodes") {
  for (const Words& option :
       {Words{"--secret-file", "/nosuch"}, Words{"--node-rank", "0"}, Words{"--timeout", "3"},
        Words{"--rendezvous", "node0:29400"}, Words{"--interface", "lo"}})
    expect_refused({launcher, "-n", "1", option[0], option[1], "true"}, 2,
                   option[0] + " requires --nnodes");
  // With it they are checked, even if there is one machine; variables are for all jobs.
  for (const Words& option :
       {Words{"--secret-file", "/nosuch"}, Words{"--rendezvous", "x"}, Words{"--interface", "no0"}})
    expect_refused({launcher, "-n", "1", "--nnodes", "1", option[0], option[1], "true"}, 2,
                   option[1]);
  CHECK(run({launcher, "-n", "1", "true"}, {"LOCKSTEP_SECRET_FILE=/nosuch"}).code == 0);
  expect_refused({"env", "LOCKSTEP_SECRET_FILE=/nosuch", launcher, "-n", "1", "--nnodes", "2",
                  "--node-rank", "0", "--rendezvous", "127.0.0.1:1", "true"},
                 2, "secret file '/nosuch'");
}

TEST_CASE("values: options that the chosen way to compute does not have are refused") {
  const std::string bin = LOCKSTEP_BIN_DIR;
  expect_refused({bin + "/train_mlp", "--device", "cpu", "--gemm", "handwritten"}, 2,
                 "--gemm handwritten is for products on a GPU");
  expect_refused({bin + "/train_mlp", "--transport", "threads", "--grace", "3"}, 2, "--grace");
  expect_refused({bin + "/bench_step", "--python", "python3"}, 2, "--python requires --peer");
  expect_refused({bin + "/bench_kernels", "--python", "python3"}, 2, "--python requires --peer");
  expect_refused({bin + "/bench_allreduce", "--peer", "none", "--python", "python3"}, 2,
                 "--python python3 is for gloo");
}

TEST_CASE("values: what is no regular file is not read, and nobody waits for it") {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe", loop = folder / "loop";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::filesystem::create_symlink("loop", loop);
  const Words node{launcher, "-n",           "1",           "--nnodes",     "2", "--node-rank",
                   "0",      "--rendezvous", "127.0.0.1:1", "--secret-file"};
  for (const std::string& path :
       {pipe, loop, folder.path().string(), std::string("/dev/zero"), folder / "none"}) {
    expect_refused(node + Words{path, "true"}, 2, "cannot read the secret file '" + path + "': ");
    expect_refused(sample_command("accumulate_vs_ddp", {"--fixture", path}), 1,
                   "fixture '" + path + "' cannot be read: ");
  }
  expect_refused(node + Words{pipe, "true"}, 2, "it is a pipe, not a regular file");
  expect_refused(node + Words{"/dev/stdin", "true"}, 2, "not a regular file");
}

TEST_CASE("values: what cannot be written is refused before the work") {
  const TemporaryFolder folder;
  const std::string pipe = folder / "pipe", loop = folder / "loop";
  REQUIRE(::mkfifo(pipe.c_str(), 0600) == 0);
  std::filesystem::create_symlink("loop", loop);
  const std::string bin = LOCKSTEP_BIN_DIR;
  for (const std::string program : {"train_mlp", "ddp_concepts", "bench_step", "bench_allreduce",
                                    "bench_functions", "bench_kernels"})
    for (const std::string& path : {loop, folder.path().string(), folder / "none/x"})
      expect_refused({bin + "/" + program, "--json", path}, 2, "--json '" + path + "'");
  for (const std::string& path : {pipe, loop, folder.path().string(), std::string("/dev/null")})
    expect_refused({bin + "/train_mlp", "--checkpoint", path}, 2, "--checkpoint '" + path + "'");
  CHECK(std::filesystem::is_fifo(pipe));
}

TEST_CASE("values: --json into a device, a pipe that is read, and where stdout and stderr lead") {
  const TemporaryFolder folder;
  const std::string sample = LOCKSTEP_BIN_DIR "/ddp_concepts --device " +
                             std::string(lockstep::Device::name_of(test_device().kind)) +
                             " --json ";
  const auto shell = [&](const std::string& command) { return run({"bash", "-c", command}); };
  CHECK(shell(sample + "/dev/null").code == 0);
  CHECK(contains(shell(sample + "/dev/stdout").out, "\"digests\""));
  CHECK(contains(shell(sample + "/dev/stderr").err, "\"digests\""));
  CHECK(contains(
      shell(sample + ">(cat > " + folder / "copy" + "); wait $!; cat " + folder / "copy").out,
      "\"digests\""));
  const Ended full = shell(sample + "/dev/full");
  CHECK(full.code == 1);
  CHECK(contains(full.err, "[save] cannot write '/dev/full': No space left on device"));

  // A log that stderr goes to is not replaced.
  const std::string log = folder / "log";
  REQUIRE(
      shell("echo before > " + log + "; { " + sample + "/dev/stderr; echo after >&2; } 2>> " + log)
          .code == 0);
  std::ifstream file(log);
  const std::string text((std::istreambuf_iterator<char>(file)), {});
  CHECK(text.starts_with("before\n"));
  CHECK(contains(text, "\"digests\""));
  CHECK(text.ends_with("after\n"));

  REQUIRE(::mkfifo((folder / "pipe").c_str(), 0600) == 0);
  const Ended unread = shell(sample + folder / "pipe");
  CHECK(unread.code == 1);
  CHECK(contains(unread.err, "nobody reads from this pipe"));
}

}  // namespace values
