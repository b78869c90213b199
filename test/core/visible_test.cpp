// What of an input a message shows: text, and nothing that a terminal obeys.

#include <doctest/doctest.h>

#include <cmath>
#include <limits>
#include <string>
#include <utility>

#include "lockstep/core/error.h"
#include "lockstep/core/text/number.h"

using namespace lockstep;

TEST_CASE("visible: control characters and bytes that are no UTF-8 are written out") {
  CHECK(visible("") == "");
  CHECK(visible("plain, \\ and 'quoted' ~") == "plain, \\ and 'quoted' ~");
  CHECK(visible("modèle, 模型, \U0001f600") == "modèle, 模型, \U0001f600");
  CHECK(visible("a\x1b[2Jb") == "a\\x1b[2Jb");
  CHECK(visible("a\nb\tc\rd") == "a\\nb\\tc\\rd");
  CHECK(visible(std::string("a\0b", 3)) == "a\\x00b");
  CHECK(visible("\x7f") == "\\x7f");
  CHECK(visible("\xc2\x9b"
                "31m") == "\\xc2\\x9b31m");  // the CSI of a terminal, as UTF-8
  CHECK(visible("\x9b"
                "31m") == "\\x9b31m");  // and as one byte
  CHECK(visible("\xc2\xa0") == "\xc2\xa0");
  for (const char* bad : {"\xc3", "\xc0\xaf", "\xe0\x80\x80", "\xed\xa0\x80", "\xf4\x90\x80\x80",
                          "\xff", "\xe2\x82", "\xf0\x9f\x98"}) {
    const std::string shown = visible(bad);
    CAPTURE(shown);
    CHECK(shown.size() == 4 * std::string(bad).size());
    CHECK(shown.starts_with("\\x"));
  }
}

TEST_CASE("visible: every byte, alone and in a text, and what is visible stays") {
  for (int byte = 0; byte < 256; ++byte)
    for (const std::string& around : {std::string(), std::string("x"), std::string("é")}) {
      const std::string text = visible(around + static_cast<char>(byte) + around);
      CAPTURE(byte);
      for (const char c : text) CHECK(((c >= ' ' && c != 0x7f) || c < 0));
      CHECK(visible(text) == text);
    }
}

TEST_CASE("errors: every kind of error shows what it quotes") {
  const std::string bad = "name\x1b]0;owned\x07\n2nd line";
  const std::string shown = "name\\x1b]0;owned\\x07\\n2nd line";
  CHECK(std::string(Error(bad).what()) == shown);
  CHECK(std::string(PeerError(bad).what()) == shown);
  CHECK(std::string(UsageError(bad).what()) == shown);
  CHECK_THROWS_WITH_AS(fail<DataError>("[read] {}: no", bad), ("[read] " + shown + ": no").c_str(),
                       DataError);
  try {
    throw std::runtime_error(bad);  // of another library
  } catch (...) {
    CHECK(current_message() == shown);
  }
}

TEST_CASE("numbers: the nearest f64, 0 for what is too small, infinity for what is too large") {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::string zeros(500, '0');
  const std::pair<std::string, double> cases[] = {
      {"1.5e3", 1500},
      {"-0", -0.0},
      {"1e-400", 0},
      {"-1e-400", -0.0},
      {"0." + zeros + "1", 0},
      {"0." + zeros + "1e600", 1e99},
      {"1" + zeros + "e-600", 1e-100},
      {"1" + zeros + "e-900", 0},
      {"1" + zeros, infinity},
      {"-1" + zeros, -infinity},
      {"1e400", infinity},
      {"-1e400", -infinity},
      {"4.9e-324", 4.9e-324},
      {"2e-324", 0},
      {"1e-310", 1e-310},
      {"1e99999999999999999999999", infinity},
      {"1e-99999999999999999999999", 0},
      {"1.7976931348623157e308", 1.7976931348623157e308},
      {"1.8e308", infinity},
  };
  for (const auto& [text, value] : cases) {
    CAPTURE(text);
    const std::optional<double> number = parse_decimal(text);
    REQUIRE(number);
    CHECK(*number == value);
    CHECK(std::signbit(*number) == std::signbit(value));
  }
  for (const char* text : {"", "x", "1x", "inf", "-inf", "nan", "NaN", "0x10", "1e", "1e400x", " 1",
                           "1 ", "1e-400x", "--1", "+1"}) {
    CAPTURE(text);
    CHECK_FALSE(parse_decimal(text));
  }
}
