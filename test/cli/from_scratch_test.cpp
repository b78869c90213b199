// `ddp_from_scratch`, which shares no line of code between ranks with the library, ends with the
// library's bits.

#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "lockstep/core/error.h"
#include "support/program.h"

using namespace lockstep;
using lockstep::test::Ended;

namespace {

namespace fs = std::filesystem;

Ended from_scratch(std::vector<std::string> options) {
  options.insert(options.begin(), LOCKSTEP_BIN_DIR "/ddp_from_scratch");
  return test::run(options);
}

/// The rest of the line in which `label` stands.
std::string after(const std::string& text, const std::string& label) {
  const std::size_t begin = text.find(label);
  REQUIRE(begin != std::string::npos);
  return text.substr(begin + label.size(), text.find('\n', begin) - begin - label.size());
}

/// What `./lockstep train` writes with these options, of which the last is the file.
nlohmann::json trained(const std::string& options) {
  std::istringstream words(options);
  std::vector<std::string> command = {LOCKSTEP_BIN_DIR "/train_mlp"};
  for (std::string word; words >> word;) command.push_back(word);
  const fs::path file = fs::temp_directory_path() / fmt::format("lockstep-{}.json", ::getpid());
  REQUIRE(command.back() == "/dev/stdout");
  command.back() = file;
  const Ended ended = test::run(command);
  INFO(ended.err);
  REQUIRE(ended.code == 0);
  const nlohmann::json summary = nlohmann::json::parse(std::ifstream(file));
  fs::remove(file);
  return summary;
}

}  // namespace

// From three ranks on the bits depend on where the ring cuts each bucket.
TEST_CASE("ddp_from_scratch: the bits of the library's ring") {
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    const Ended ended = from_scratch({"--ranks", std::to_string(ranks), "--epochs", "3"});
    INFO(ended.err);
    REQUIRE(ended.code == 0);
    CHECK(ended.err == "");
    CHECK(test::contains(ended.out, fmt::format("ranks={} replicas=identical\n", ranks)));
    const nlohmann::json library = trained(after(ended.out, "./lockstep train "));
    CHECK(library["ranks"] == ranks);
    CHECK(library["algorithm"] == "ring");
    CHECK(library["buckets"] == 2);
    CHECK(after(ended.out, "parameter_digest=") == library["parameter_digest"].get<std::string>());
    // The table's last line: epoch, loss, test accuracy.
    std::istringstream last(test::lines_of(ended.out).at(3));
    double epoch = 0, loss = 0, accuracy = 0;
    last >> epoch >> loss >> accuracy;
    CHECK(epoch == 3);
    CHECK(loss == doctest::Approx(library["train_loss"].get<double>()).epsilon(1e-3));
    CHECK(accuracy == doctest::Approx(library["test_accuracy"].get<double>()).epsilon(1e-3));
  }
}

TEST_CASE("ddp_from_scratch: what it refuses") {
  for (const std::string ranks : {"0", "9"}) {
    const Ended ended = from_scratch({"--ranks", ranks});
    CHECK(ended.code == 2);
    CHECK(test::contains(ended.err, "--ranks must be in 1..8, got " + ranks));
  }
  const Ended ended = from_scratch({"--epochs", "0"});
  CHECK(ended.code == 2);
  CHECK(test::contains(ended.err, "--epochs must be positive, got 0"));
}
