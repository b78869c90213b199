// The README's program: it is samples/first_program.cpp, and it trains. What the README says that
// `./lockstep train` prints.

#include <doctest/doctest.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <set>
#include <sstream>

#include "support/program.h"

using namespace lockstep::test;

namespace {

/// A source from its first include on, with single spaces between words.
std::string words_of_program(const std::string& text) {
  std::istringstream stream(text.substr(text.find("#include")));
  std::string words;
  for (std::string word; stream >> word;) words += word + " ";
  return words;
}

std::string file(const std::string& path) {
  std::ifstream stream(LOCKSTEP_SOURCE_DIR "/" + path);
  REQUIRE(stream);
  return {std::istreambuf_iterator<char>(stream), {}};
}

/// Runs it in the folder of the sources, whose data it reads; what each rank has learned.
std::vector<std::string> learned(int ranks) {
  const Ended ended =
      run({"sh", "-c",
           "cd '" LOCKSTEP_SOURCE_DIR "' && exec " LOCKSTEP_BIN_DIR "/lockstep-run -n " +
               std::to_string(ranks) + " " LOCKSTEP_BIN_DIR "/first_program_that_tells"});
  CAPTURE(ended.err);
  REQUIRE(ended.code == 0);
  std::vector<std::string> lines = lines_of(ended.out);
  std::erase_if(lines, [](const std::string& line) { return line.starts_with("epoch "); });
  return lines;
}

/// The numbers of a line "epoch 3: loss 0.1234" or "289 of 299 are right".
std::vector<double> numbers(const std::string& line) {
  std::vector<double> all;
  std::istringstream stream(line);
  for (std::string word; stream >> word;)
    if (std::isdigit(static_cast<unsigned char>(word[0])) != 0) all.push_back(std::stod(word));
  return all;
}

}  // namespace

TEST_CASE("first program: the README has the text of the sample") {
  const std::string readme = file("README.md");
  const std::size_t begin = readme.find("```cpp\n"), end = readme.find("```\n", begin + 7);
  REQUIRE(end != std::string::npos);
  CHECK(words_of_program(readme.substr(begin, end - begin)) ==
        words_of_program(file("samples/first_program.cpp")));
}

TEST_CASE("first program: train ends with the README's line") {
  const auto result = [](const std::vector<std::string>& lines) {
    std::array<double, 2> found{};
    for (const std::string& line : lines) {
      int length = 0;
      const int read = std::sscanf(
          line.c_str(), "final test_accuracy=%lf train_loss=%lf ranks=2 replicas=identical%n",
          &found[0], &found[1], &length);
      if (read == 2 && static_cast<std::size_t>(length) == line.size()) return found;
    }
    FAIL("there is no such line");
    return found;
  };
  const Ended ended = run({LOCKSTEP_BIN_DIR "/train_mlp", "--device", "cpu"});
  CAPTURE(ended.err);
  REQUIRE(ended.code == 0);
  const auto told = result(lines_of(file("README.md"))), here = result(lines_of(ended.out));
  CHECK(std::abs(told[0] - here[0]) < 2.5 / 299);  // two digits, on processors that round otherwise
  CHECK(std::abs(told[1] - here[1]) <= 0.0005);
}

TEST_CASE("first program: one rank and two train the digits, replicas are the same") {
  for (const int ranks : {1, 2}) {
    std::vector<std::string> lines = learned(ranks);
    REQUIRE(lines.size() == static_cast<std::size_t>(ranks) + 1);
    const auto own = std::ranges::find_if(
        lines, [](const std::string& line) { return line.ends_with(" of 299 are right"); });
    REQUIRE(own != lines.end());
    const int right = std::stoi(*own);
    lines.erase(own);
    CHECK(std::set<std::string>(lines.begin(), lines.end()).size() == 1);
    double accuracy = 0;
    REQUIRE(std::sscanf(lines[0].c_str(), "accuracy=%lf digest=", &accuracy) == 1);
    CHECK(accuracy > 0.95);
    CHECK(right == doctest::Approx(accuracy * 299).epsilon(1e-4));
  }
}

TEST_CASE("first program: two ranks print the losses of PyTorch's DistributedDataParallel") {
  // Written by test/reference/first_program/train.py.
  const std::vector<std::string> theirs = lines_of(file("test/reference/first_program/losses.txt"));
  const Ended ended = run({"sh", "-c",
                           "cd '" LOCKSTEP_SOURCE_DIR "' && exec " LOCKSTEP_BIN_DIR
                           "/lockstep-run -n 2 " LOCKSTEP_BIN_DIR "/first_program"});
  CAPTURE(ended.err);
  REQUIRE(ended.code == 0);
  const std::vector<std::string> ours = lines_of(ended.out);
  REQUIRE(theirs.size() == 31);
  REQUIRE(ours.size() == theirs.size());
  for (std::size_t k = 0; k < ours.size(); ++k) {
    CAPTURE(ours[k]);
    CAPTURE(theirs[k]);
    const std::vector<double> a = numbers(ours[k]), b = numbers(theirs[k]);
    REQUIRE(a.size() == 2);
    REQUIRE(b.size() == 2);
    CHECK(std::abs(a[0] - b[0]) <= (k == 30 ? 2 : 0));  // right ones; the epoch
    CHECK(std::abs(a[1] - b[1]) <= 0.0002);  // four decimals, and processors that round otherwise
  }
}
