// The samples that are programs of one file on lockstep.h alone: on one rank and on several they
// print PyTorch's numbers (test/reference/make_samples.py).

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/program.h"

using namespace lockstep::test;
using nlohmann::json;

namespace {

/// A program, how many of its lines are compared with PyTorch's, and what they may differ by:
/// f32 sums in another order drift apart from step to step.
struct Program {
  const char* name;
  std::size_t lines;
  double loss;   ///< relative
  double other;  ///< absolute: accuracies, R^2
  const char* final_line;
};

const Program programs[] = {
    {"regression_csv", 30, 1e-4, 1e-3, "final loss=0.41"},
    {"mixer", 5, 1e-4, 0.01, "final loss=0.00"},
    {"gan", 3, 1e-3, 0, "final modes=8"},
    {"characters", 20, 1e-4, 0, "final loss=0.17"},
    {"ema_teacher", 20, 1e-4, 0.01, "final student=0.9"},
};

/// Runs it in the folder of the sources, whose data it reads.
std::vector<std::string> lines_of_program(const std::string& name, int ranks) {
  std::string command = "cd '" LOCKSTEP_SOURCE_DIR "' && exec ";
  if (ranks > 1) command += fmt::format(LOCKSTEP_BIN_DIR "/lockstep-run -n {} ", ranks);
  const Ended ended = run({"sh", "-c", command + LOCKSTEP_BIN_DIR "/" + name});
  INFO(name, " on ", ranks, " ranks: ", ended.err);
  REQUIRE(ended.code == 0);
  CHECK(ended.err == "");
  return lines_of(ended.out);
}

/// The numbers between the words of a line.
std::vector<double> numbers_of(const std::string& line) {
  std::vector<double> numbers;
  std::istringstream words(line);
  for (std::string word; words >> word;) {
    char* end = nullptr;
    const double number = std::strtod(word.c_str(), &end);
    if (*end == '\0') numbers.push_back(number);
  }
  return numbers;
}

}  // namespace

TEST_CASE("programs of one file print PyTorch's numbers, on any number of ranks") {
  const json expected = json::parse(std::ifstream(LOCKSTEP_TEST_DATA "/samples.json"));
  for (const Program& program : programs)
    for (const int ranks : {1, 2, 3, 7}) {
      CAPTURE(program.name);
      CAPTURE(ranks);
      const std::vector<std::string> lines = lines_of_program(program.name, ranks);
      const json& table = expected[program.name];
      REQUIRE(lines.size() > table.size());
      for (std::size_t i = 0; i < program.lines; ++i) {
        CAPTURE(lines[i]);
        const std::vector<double> numbers = numbers_of(lines[i]);
        REQUIRE(numbers.size() == table[i].size());
        const bool gan = std::string(program.name) == "gan";
        CHECK(numbers[0] == table[i][0].get<double>() + (gan ? 0 : 1));  // epochs from 1
        const std::size_t losses = gan ? 3 : 2;
        for (std::size_t k = 1; k < numbers.size(); ++k)
          if (const double theirs = table[i][k]; k < losses)
            CHECK(numbers[k] == doctest::Approx(theirs).epsilon(program.loss));
          else
            CHECK(std::abs(numbers[k] - theirs) <= program.other + 5e-5);
      }
      CHECK(lines.back().starts_with(program.final_line));
      if (std::string(program.name) == "characters")
        CHECK(lines[lines.size() - 3].starts_with("Shall I compare thee to a summer's "));
    }
}
