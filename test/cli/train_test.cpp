// `train` itself: the program that the front door becomes.

#include <doctest/doctest.h>
#include <signal.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "support/capture_binding.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::Ended;
using lockstep::test::TemporaryFolder;

namespace trained {
namespace {

namespace fs = std::filesystem;
const std::string mlp_program = LOCKSTEP_BIN_DIR "/train_mlp";
const std::string digits = LOCKSTEP_SOURCE_DIR "/samples/data/digits";

Ended train_mlp(std::vector<std::string> options) {
  options.insert(options.begin(), mlp_program);
  return test::run(options);
}

/// The summary of a run that must succeed.
nlohmann::json train_summary(std::vector<std::string> options) {
  const TemporaryFolder folder;
  options.insert(options.end(), {"--json", folder / "summary.json"});
  const Ended ended = train_mlp(options);
  INFO(fmt::format("{}", ended.err));
  REQUIRE(ended.code == 0);
  return nlohmann::json::parse(std::ifstream(folder / "summary.json"));
}

/// The process of that rank, or 0.
pid_t rank_of(const test::Process& process, int rank) {
  const std::string variable = fmt::format("LOCAL_RANK={}", rank) + '\0';
  for (const pid_t pid : process.family()) {
    std::ifstream file(fmt::format("/proc/{}/environ", pid));
    const std::string environment((std::istreambuf_iterator<char>(file)), {});
    if (test::contains(environment, variable)) return pid;
  }
  return 0;
}

void expect_error(const std::vector<std::string>& options, int code, const std::string& says) {
  const Ended ended = train_mlp(options);
  INFO(ended.err);
  CHECK(ended.code == code);
  CHECK(ended.out == "");
  CHECK(test::lines_of(ended.err).size() == 1);
  CHECK(test::contains(ended.err, says));
}

}  // namespace

TEST_CASE("train: the digits, two ranks, the last line") {
  const Ended ended = train_mlp({});
  REQUIRE(ended.code == 0);
  const auto lines = test::lines_of(ended.out);
  REQUIRE_FALSE(lines.empty());
  double accuracy = 0, loss = 0;
  int ranks = 0;
  char replicas[16] = "";
  REQUIRE(std::sscanf(lines.back().c_str(),
                      "final test_accuracy=%lf train_loss=%lf ranks=%d replicas=%15s", &accuracy,
                      &loss, &ranks, replicas) == 4);
  CHECK(accuracy >= 0.96);
  CHECK(loss < 0.05);
  CHECK(ranks == 2);
  CHECK(std::string(replicas) == "identical");
}

TEST_CASE("train: the same seed gives the same digest, whatever carries the gradients" *
          doctest::test_suite("slow")) {
  const std::vector<std::string> base = {"--ranks", "3", "--epochs", "2", "--comm", "direct"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> options = base;
    options.insert(options.end(), more.begin(), more.end());
    return train_summary(options);
  };
  const nlohmann::json first = with({});
  CHECK(first.at("replicas_identical") == true);
  CHECK(first.at("per_rank").size() == 3);
  for (const auto& replica : first.at("per_rank"))
    CHECK(replica.at("digest") == first.at("parameter_digest"));
  CHECK(first.at("losses").size() == 2 * 16);  // ceil(ceil(1498 / 3) / 32) steps per epoch
  CHECK(first.at("buckets") == 1);
  CHECK(first.at("transport") == "shm");
  for (const std::vector<std::string>& more : {std::vector<std::string>{},
                                               {"--transport", "tcp"},
                                               {"--transport", "threads"},
                                               {"--bucket-cap-mb", "0.01"},
                                               {"--bucket-cap-mb", "0.01", "--transport", "tcp"}}) {
    const nlohmann::json other = with(more);
    CHECK(other.at("parameter_digest") == first.at("parameter_digest"));
    CHECK(other.at("losses") == first.at("losses"));
  }
  CHECK(with({"--seed", "1"}).at("parameter_digest") != first.at("parameter_digest"));
}

TEST_CASE("train: N ranks on shards follow one rank on the whole batch" *
          doctest::test_suite("slow")) {
  const auto run = [](const char* ranks, const char* batch, const char* comm,
                      const char* transport) {
    return train_summary({"--ranks", ranks, "--batch", batch, "--epochs", "4", "--comm", comm,
                          "--transport", transport})
        .at("losses")
        .get<std::vector<double>>();
  };
  const std::vector<double> whole = run("1", "48", "auto", "shm");
  // "direct" has the same bits on every transport, which the test above compares.
  const auto check = [&](const char* ranks, const char* batch, const char* comm,
                         const char* transport) {
    const std::vector<double> parts = run(ranks, batch, comm, transport);
    REQUIRE(parts.size() == whole.size());
    double worst = 0;
    for (std::size_t i = 0; i < 100; ++i) worst = std::max(worst, std::abs(parts[i] - whole[i]));
    INFO(ranks, " ranks, ", comm, ", ", transport);
    CHECK(worst < 1e-5);
  };
  check("2", "24", "direct", "shm");
  check("3", "16", "direct", "tcp");
  check("4", "12", "direct", "threads");
  check("2", "24", "ring", "threads");
  check("3", "16", "ring", "shm");
  check("4", "12", "ring", "tcp");
}

TEST_CASE("train: losses agree with PyTorch's") {
  const auto expected = nlohmann::json::parse(std::ifstream(LOCKSTEP_TEST_DATA "/training.json"));
  for (const char* optimizer : {"sgd", "adam", "rmsprop", "lion"}) {
    const auto losses = train_summary({"--ranks", "1", "--epochs", "2", "--optimizer", optimizer})
                            .at("losses")
                            .get<std::vector<double>>();
    const auto reference = expected.at(optimizer).get<std::vector<double>>();
    for (std::size_t i = 0; i < 50; ++i) {
      INFO(optimizer, " step ", i);
      CHECK(std::abs(losses[i] - reference[i]) < (i < 5 ? 1e-6 : 1e-5) * reference[i]);
    }
  }
}

TEST_CASE("train: the saved model has the names and shapes of PyTorch's Sequential") {
  const TemporaryFolder folder;
  REQUIRE(train_mlp({"--epochs", "1", "--save-model", folder / "model.safetensors"}).code == 0);
  std::ifstream file(folder / "model.safetensors", std::ios::binary);
  std::uint64_t length = 0;
  file.read(reinterpret_cast<char*>(&length), 8);
  REQUIRE(length < 10000);
  std::string header(length, ' ');
  file.read(header.data(), static_cast<std::streamsize>(length));
  const auto json = nlohmann::json::parse(header);
  CHECK(json.size() == 6);
  CHECK(json.at("0.weight").at("shape") == nlohmann::json({128, 64}));
  CHECK(json.at("4.bias").at("shape") == nlohmann::json({10}));
  CHECK(json.at("2.weight").at("dtype") == "F32");
}

TEST_CASE("train: the summary and the checkpoint replace older files whole, and keep their modes") {
  const TemporaryFolder folder;
  for (const char* name : {"summary.json", "model.safetensors", "run"}) {
    std::ofstream(folder / name) << std::string(100000, 'x');
    fs::permissions(folder / name, fs::perms(0600));
  }
  const Ended ended = train_mlp({"--epochs", "1", "--checkpoint", folder / "run", "--save-model",
                                 folder / "model.safetensors", "--json", folder / "summary.json"});
  CHECK(ended.code == 0);
  CHECK(nlohmann::json::parse(std::ifstream(folder / "summary.json")).at("ranks") == 2);
  for (const char* name : {"summary.json", "model.safetensors", "run"})
    CHECK(fs::status(folder / name).permissions() == fs::perms(0600));
  CHECK(std::distance(fs::directory_iterator(folder.path()), {}) == 3);
}

TEST_CASE("train: files that cannot be made are refused before the training") {
  for (const char* option : {"--checkpoint", "--save-model", "--hash-trace", "--json"}) {
    const Ended ended = train_mlp({option, "/proc/file"});  // root, too, makes none there
    CAPTURE(ended.err);
    CHECK(ended.code == 2);
    CHECK(ended.out == "");
    CHECK(test::contains(ended.err, fmt::format("{} '/proc/file'", option)));
    CHECK(test::count(ended.err, "\n") == 1);
  }
}

TEST_CASE("train: a summary on stdout, wherever that leads") {
  const TemporaryFolder folder;
  const std::string command = mlp_program + " --epochs 1 --json /dev/stdout ";
  const Ended piped = test::run({"sh", "-c", command + "| cat"});
  const Ended redirected = test::run({"sh", "-c", command + "> " + (folder / "out")});
  CHECK(redirected.code == 0);
  std::ifstream file(folder / "out");
  for (const std::string& out :
       {piped.out, std::string(std::istreambuf_iterator<char>(file), {})}) {
    CHECK(nlohmann::json::parse(out.substr(0, out.find("final"))).at("ranks") == 2);
    CHECK(test::count(out, "final test_accuracy") == 1);
  }
}

TEST_CASE("train: buckets that keep the order of registration train as well") {
  const TemporaryFolder folder;
  const auto run = train_mlp({"--epochs", "2", "--plan", "registration", "--bucket-cap-mb", "0.001",
                              "--json", folder / "summary.json"});
  CHECK(run.code == 0);
  std::ifstream file(folder / "summary.json");
  const nlohmann::json json = nlohmann::json::parse(file);
  CHECK(json.at("replicas_identical") == true);
  CHECK(json.at("per_rank")[1].at("compute_seconds").get<double>() > 0);
}

TEST_CASE("train: hooks send half the bytes, and learn as much" * doctest::test_suite("slow")) {
  const std::vector<std::string> base = {"--ranks", "2"};
  const auto with = [&](const std::vector<std::string>& more) {
    std::vector<std::string> options = base;
    options.insert(options.end(), more.begin(), more.end());
    return train_summary(options);
  };
  const nlohmann::json plain = with({});
  const double bytes = plain.at("bytes_per_step").get<double>();
  // 17,226 parameters, padding, and the step metadata; in a world of 2, S bytes move S bytes.
  CHECK(bytes > 4 * 17226);
  CHECK(bytes < 4 * (17226 + 6 * 16 + 100));
  const double accuracy = plain.at("test_accuracy").get<double>();
  for (const char* hook : {"bf16", "f16"})
    for (const char* transport : {"shm", "tcp"}) {
      INFO(hook, " over ", transport);
      const nlohmann::json half = with({"--hook", hook, "--transport", transport});
      CHECK(std::abs(half.at("test_accuracy").get<double>() - accuracy) <= 0.005);
      CHECK(half.at("replicas_identical") == true);
      CHECK(half.at("bytes_per_step").get<double>() < 0.51 * bytes);
      CHECK(half.at("bytes_per_step").get<double>() > 0.49 * bytes);
    }
}

TEST_CASE("train: a sharded optimizer changes nothing" * doctest::test_suite("slow")) {
  for (const char* optimizer : {"sgd", "adamw", "rmsprop", "lion"}) {
    const std::vector<std::string> base = {"--ranks",     "3",       "--epochs",        "2",
                                           "--optimizer", optimizer, "--bucket-cap-mb", "0.01"};
    const auto plain = train_summary(base).at("parameter_digest");
    std::vector<std::string> other = base;
    other.push_back("--shard-optimizer");
    CHECK(train_summary(other).at("parameter_digest") == plain);
  }
}

TEST_CASE("train: more ranks than cores, and more ranks than samples in the last batch") {
  const nlohmann::json seven = train_summary({"--ranks", "7", "--epochs", "1", "--batch", "10"});
  CHECK(seven.at("replicas_identical") == true);
  CHECK(seven.at("losses").size() == 22);
}

TEST_CASE("train: a killed rank ends the run, is named, and leaves nothing") {
  for (const auto& [transport, victim] : {std::pair{"shm", 2}, {"tcp", 0}}) {
    CAPTURE_BINDING(transport);
    CAPTURE_BINDING(victim);
    test::Process process(
        {mlp_program, "--ranks", "3", "--epochs", "1000000", "--transport", transport});
    // Rank 0's heading says that all are there.
    for (int k = 0; k < 3000 && !test::contains(process.err(), "samples/s"); ++k) ::usleep(10000);
    const pid_t killed = rank_of(process, victim);
    REQUIRE(killed > 0);
    const auto start = std::chrono::steady_clock::now();
    ::kill(killed, SIGKILL);
    const Ended ended = process.wait();
    // The one promise about time in this suite: everybody has ended 5 seconds after a rank was
    // lost.
    CHECK(std::chrono::steady_clock::now() - start < std::chrono::seconds(5));
    CHECK(ended.code == 1);
    CHECK(ended.out == "");
    CHECK(test::contains(ended.err, fmt::format("rank {} was killed by signal 9", victim)));
    process.wait_for_empty_family();
  }
}

TEST_CASE("train: input that makes no sense gets one line with the value") {
  expect_error({"--nonsense"}, 2, "--nonsense");
  expect_error({"--epochs", "0"}, 2, "--epochs must be positive, got 0");
  expect_error({"--epochs", "x"}, 2, "--epochs");
  expect_error({"--batch", "-5"}, 2, "-5");
  expect_error({"--batch", "99999999999999999999"}, 2, "99999999999999999999");
  expect_error({"--seed", "-1"}, 2, "-1");
  expect_error({"--lr", "nan"}, 2, "--lr: 'nan' is not a finite number");
  expect_error({"--lr", "inf"}, 2, "inf");
  expect_error({"--momentum", "-0.5"}, 2, "-0.5");
  expect_error({"--optimizer", "adam", "--momentum", "0.5"}, 2, "sgd");
  expect_error({"--optimizer", "lion", "--momentum", "0.5"}, 2, "sgd or rmsprop, not lion");
  expect_error({"--optimizer", "adagrad"}, 2, "adagrad");
  expect_error({"--bucket-cap-mb", "0"}, 2, "--bucket-cap-mb");
  expect_error({"--timeout", "0"}, 2, "--timeout");
  expect_error({"--layers", "64"}, 2, "at least two sizes");
  expect_error({"--layers", "64,0,10"}, 2, "'0'");
  expect_error({"--layers", "64,,10"}, 2, "''");
  expect_error({"--layers", "64,ten"}, 2, "'ten'");
  expect_error({"--ranks", "0"}, 2, "--ranks");
  expect_error({"--hook", "int8"}, 2, "int8");
  expect_error({"--device", "tpu"}, 2, "tpu");
  expect_error({"--json", "/nowhere/x.json"}, 2, "/nowhere");
  for (const char* option : {"--json", "--checkpoint", "--data", "--layers", "--seed", "--lr"}) {
    expect_error({option, ""}, 2, option);
    expect_error({std::string(option) + "=", "--epochs", "1"}, 2, option);
    expect_error({std::string(option) + "=", "1"}, 2, option);
  }
  expect_error({"--layers", "63,10"}, 1, "63 inputs");
  expect_error({"--layers", "64,5"}, 1, "the 5 classes");
  expect_error({"--data", "/nowhere"}, 1, "/nowhere");
}

TEST_CASE("train: the checkpoint and the summary cannot be the same file, however it is spelled") {
  const TemporaryFolder folder;
  fs::create_directory(folder / "there");
  fs::create_directory_symlink("there", folder / "link");
  for (const bool exists : {false, true}) {
    CAPTURE(exists);
    if (exists) {
      std::ofstream(folder / "there/out") << "old";
      fs::create_symlink("there/out", folder / "file");
      expect_error({"--checkpoint", folder / "there/out", "--json", folder / "file"}, 2, "same");
    }
    for (const char* other : {"there/out", "there//out", "./there/out", "there/../there/out",
                              "link/out", "link/../link/out"})
      expect_error({"--checkpoint", folder / "there/out", "--json", folder / other}, 2,
                   "are the same file");
  }
  std::ifstream file(folder / "there/out");
  CHECK(std::string(std::istreambuf_iterator<char>(file), {}) == "old");
}

TEST_CASE("train: a training that diverges says so") {
  const Ended ended = train_mlp({"--lr", "1e30"});
  CHECK(ended.code == 1);
  CHECK(ended.out == "");
  CHECK(test::contains(test::lines_of(ended.err).back(), "has become infinite or NaN"));
}

TEST_CASE("train: damaged data is named") {
  const TemporaryFolder folder;
  const auto reset = [&] {
    for (const char* name : {"digits-images-idx3-ubyte", "digits-labels-idx1-ubyte"})
      fs::copy_file(fs::path(digits) / name, folder / name, fs::copy_options::overwrite_existing);
  };
  reset();
  fs::resize_file(folder / "digits-images-idx3-ubyte", 5000);
  expect_error({"--data", folder.path().string()}, 1, "truncated");
  reset();
  {
    std::fstream file(folder / "digits-labels-idx1-ubyte",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(8 + 100);
    file.put(11);
  }
  expect_error({"--data", folder.path().string()}, 1, "label 11 of record 100");
  for (const auto& [name, bytes, count_byte] :
       {std::tuple{"digits-images-idx3-ubyte", 16, 7}, {"digits-labels-idx1-ubyte", 8, 7}}) {
    fs::resize_file(folder / name, bytes);  // no samples at all
    std::fstream file(folder / name, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(count_byte - 1);
    file.put(0).put(0);
  }
  expect_error({"--data", folder.path().string()}, 1, "0 training and 0 test samples");
  fs::remove(folder / "digits-labels-idx1-ubyte");
  expect_error({"--data", folder.path().string()}, 1, "labels");
}

TEST_CASE("train: in a launcher's world it joins, and refuses another number of ranks") {
  const Ended joined =
      test::run({LOCKSTEP_BIN_DIR "/lockstep-run", "-n", "2", mlp_program, "--epochs", "1"});
  CHECK(joined.code == 0);
  CHECK(test::contains(joined.out, "ranks=2 replicas=identical"));
  CHECK(test::count(joined.out, "final") == 1);
  const Ended refused =
      test::run({LOCKSTEP_BIN_DIR "/lockstep-run", "-n", "2", mlp_program, "--ranks", "3"});
  CHECK(refused.code == 2);
  CHECK(test::contains(refused.err, "--ranks 3 in a world of 2"));
}

}  // namespace trained
