#include "lockstep/data/csv.h"

#include <doctest/doctest.h>

#include <cmath>
#include <limits>

#include "data/stored.h"

namespace lockstep::data {
namespace {

std::filesystem::path write_text(const TemporaryFolder& folder, const std::string& text) {
  return write(folder, "t.csv", Bytes(text.begin(), text.end()));
}

using Numbers = std::vector<double>;

TEST_CASE("csv: numbers, quotes, CRLF and blanks, as Python reads them") {
  const TemporaryFolder folder;
  const auto& expected = stored().at("csv");
  const std::string text = expected.at("text");
  for (const DType dtype : {DType::f32, DType::f64, DType::i64}) {
    std::vector<std::string> names;
    for (const auto& [name, values] : expected.at(std::string(name_of(dtype))).items())
      names.push_back(name);
    const CsvOptions options{.columns = names, .dtype = dtype};
    const Bytes packed = gzip(Bytes(text.begin(), text.end()));
    for (const Fields& table : {read_csv(write_text(folder, text), options),
                                read_csv(write(folder, "t.csv.gz", packed), options)}) {
      REQUIRE(table.size() == names.size());
      std::size_t i = 0;
      for (const auto& [name, column] : table) {
        CAPTURE(name);
        CHECK(name == names[i++]);  // in the order in which they were asked for
        CHECK(column.dtype() == dtype);
        CHECK(elements(column) == expected.at(std::string(name_of(dtype))).at(name).get<Numbers>());
      }
    }
  }
}

TEST_CASE("csv: delimiters, ends of lines, empty lines, a byte order mark, no header line") {
  const TemporaryFolder folder;
  for (const std::string text : {"a,b\n1,2\n3,4\n", "a,b\n1,2\n3,4", "a,b\r\n1,2\r\n3,4\r\n",
                                 "\n\na,b\n\n1,2\n \n\r\n3,4\n\n",
                                 "\xef\xbb\xbf"
                                 "a,b\n1,2\n3,4\n",
                                 "\"a\" , \"b\"\n \"1\",\"2\" \n3,\t4\n"}) {
    CAPTURE(text);
    const Fields table = read_csv(write_text(folder, text));
    CHECK(table.names() == "a, b");
    CHECK(elements(table["a"]) == Numbers{1, 3});
    CHECK(elements(table["b"]) == Numbers{2, 4});
  }
  CHECK(read_csv(write_text(folder, "\"\"\"\",\"\"\"a\"\"\"\n1,2\n")).names() == "\", \"a\"");
  const Fields tabs = read_csv(write_text(folder, "a\tb\n1,\"\t\"2\"\n"),
                               {.delimiter = '\t', .columns = {"b"}, .dtype = DType::i64});
  CHECK(elements(tabs["b"]) == Numbers{2});
  const Fields bare =
      read_csv(write_text(folder, "1;2\n3;4.0"),
               {.delimiter = ';', .names = {"u", "v"}, .dtypes = {{"v", DType::i64}}});
  CHECK(bare["u"].dtype() == DType::f32);
  CHECK(bare["v"].to_vector<std::int64_t>() == std::vector<std::int64_t>{2, 4});
  CHECK(read_csv(write_text(folder, "a,b\n"))["b"].shape() == Shape{0});
  CHECK(elements(read_csv(write_text(folder, "a\n\"\"\n\n1\n"), {.missing = 7})["a"]) ==
        Numbers{7, 1});
  CHECK_THROWS_WITH_AS(read_csv(write_text(folder, "a,b\r1,2\r")),
                       doctest::Contains("a carriage return within"), DataError);
}

TEST_CASE("csv: more rows than fit into the first piece of memory, and than into the buffer") {
  const TemporaryFolder folder;
  std::string text = "k,half\n";
  for (int i = 0; i < 20000; ++i) text += fmt::format("{},{}.5\n", i - 7, i);
  const Fields table = read_csv(write_text(folder, text), {.dtypes = {{"k", DType::i64}}});
  REQUIRE(table["k"].shape() == Shape{20000});
  for (int i = 0; i < 20000; ++i) {
    REQUIRE(table["k"].data<std::int64_t>()[i] == i - 7);
    REQUIRE(table["half"].data<float>()[i] == static_cast<float>(i) + 0.5f);
  }
}

TEST_CASE("csv: what is wrong is named, with its line, column and text") {
  const TemporaryFolder folder;
  const auto check_says = [&](const std::string& text, const std::string& part,
                              const CsvOptions& options = {}) {
    CAPTURE(text);
    const auto file = write_text(folder, text);
    try {
      read_csv(file, options);
      FAIL_CHECK("no error");
    } catch (const DataError& error) {
      CHECK(error.what() == "[csv] " + file.string() + part);
    }
  };
  check_says("", ": there is no header line");
  check_says("a,b\n1,2\n\n3,x y\n", ":4: column 'b': 'x y' is not a number");
  check_says("a,b\n1,2\n3,0x1p3\n", ":3: column 'b': '0x1p3' is not a number");
  for (const char* text : {"inf", "-inf", "1e999", "1,5", "--1", "+-1", "1 2", "1e", "\xc3\xa4"})
    CHECK_THROWS_AS(read_csv(write_text(folder, fmt::format("a\n\"{}\"\n", text))), DataError);
  check_says("a\n-nan\n", ":2: column 'a': '-nan' is not a number");
  check_says("a\n1e39\n", ":2: column 'a': '1e39' is too large for f32");
  for (const char* text : {"1.5", "9223372036854775808", "1e300"})
    check_says(fmt::format("a\n{}\n", text),
               fmt::format(":2: column 'a': '{}' is no number of i64", text),
               {.dtype = DType::i64});
  for (const char* text : {"", " ", "NA", "n/a", "NaN", "null"})
    check_says(
        fmt::format("a,b\n1,2\n3,{}\n", text),
        fmt::format(":3: column 'b': the value is missing ('{}'); the option `missing` gives "
                    "one",
                    text[0] == ' ' ? "" : text));
  check_says("a,b\n1,2\n3\n", ":3: 1 fields, but there are 2 columns");
  check_says("a,b\n1,2,3\n", ":2: 3 fields, but there are 2 columns");
  check_says("a,b\n\"1\n1\",2\n3\n", ":4: 1 fields, but there are 2 columns", {.columns = {"b"}});
  check_says("a,b\n1,\"2\n", ":2: a quoted field does not end");
  check_says("a,b\n1,\"2\"3\n", ":2: text behind the quoted field '2'");
  check_says("a,b\n1,2\n", ": there is no column 'c'; there is a, b", {.columns = {"c"}});
  check_says("a,b\n1,2\n", ": there is no column 'c'; there is a, b",
             {.dtypes = {{"c", DType::f64}}});
  check_says("a,a\n1,2\n", ": two columns are named 'a'");
  check_says(",a\n1,2\n", ": column 1 has no name; name the columns to read");
  check_says("a\n" + std::string(std::size_t{17} << 20, '1'),
             ":2: column 'a': '" + std::string(40, '1') + "...' is too large for f32");
  CHECK(elements(read_csv(write_text(folder, "1,2,3\nx,,4\n,5,\n"),
                          {.names = {"i", "u", "v"}, .columns = {"v"}, .missing = -1})["v"]) ==
        Numbers{3, 4, -1});
}

TEST_CASE("csv: a fill value, and options that make no sense") {
  const TemporaryFolder folder;
  const auto file = write_text(folder, "a,b\n1,\nNA,4\n");
  const Fields table = read_csv(file, {.dtypes = {{"b", DType::i64}}, .missing = -1});
  CHECK(elements(table["a"]) == Numbers{1, -1});
  CHECK(elements(table["b"]) == Numbers{-1, 4});
  CHECK(std::isnan(read_csv(file, {.missing = NAN})["a"].data<float>()[1]));
  CHECK_THROWS_AS(read_csv(file, {.dtype = DType::i64, .missing = 0.5}), UsageError);
  CHECK_THROWS_AS(read_csv(file, {.dtypes = {{"a", DType::i64}}, .missing = NAN}), UsageError);
  CHECK_THROWS_AS(read_csv(file, {.delimiter = '"'}), UsageError);
  CHECK_THROWS_AS(read_csv(file, {.dtype = DType::u8}), UsageError);
  CHECK_THROWS_AS(read_csv(file, {.columns = {"a", "a"}}), UsageError);
}

TEST_CASE("load_csv: x and y of a table, for regression and for classification") {
  const TemporaryFolder folder;
  const auto file = write_text(folder, "area,price,rooms,kind\n50,1.5,2,0\n,2.5,3,2\n70,9,4,1\n");
  const TensorDataset prices = load_csv(file, {.targets = {"price"}, .missing = 60});
  CHECK(prices["x"].shape() == Shape{3, 3});
  CHECK(elements(prices["x"]) == Numbers{50, 2, 0, 60, 3, 2, 70, 4, 1});
  CHECK(prices["y"].shape() == Shape{3, 1});
  CHECK(elements(prices["y"]) == Numbers{1.5, 2.5, 9});
  const TensorDataset two = load_csv(file, {.targets = {"rooms", "price"}, .features = {"kind"}});
  CHECK(elements(two["x"]) == Numbers{0, 2, 1});
  CHECK(elements(two["y"]) == Numbers{2, 1.5, 3, 2.5, 4, 9});
  const TensorDataset kinds = load_csv(file, {.label = "kind", .features = {"rooms", "price"}});
  CHECK(kinds["y"].to_vector<std::int64_t>() == std::vector<std::int64_t>{0, 2, 1});
  CHECK(elements(kinds["x"]) == Numbers{2, 1.5, 3, 2.5, 4, 9});

  CHECK_THROWS_AS(load_csv(file, {}), UsageError);
  CHECK_THROWS_AS(load_csv(file, {.targets = {"price"}, .label = "kind"}), UsageError);
  CHECK_THROWS_AS(load_csv(file, {.targets = {"price"}, .features = {"price"}}), UsageError);
  CHECK_THROWS_AS(load_csv(file, {.targets = {"cost"}, .missing = 0}), DataError);
  CHECK_THROWS_AS(load_csv(file, {.targets = {"price"}}), DataError);  // area is missing
  CHECK_THROWS_AS(load_csv(file, {.targets = {"area"}, .missing = 60}), DataError);  // also in y
  const auto only = write_text(folder, "price\n1\n");
  CHECK_THROWS_AS(load_csv(only, {.targets = {"price"}}), DataError);
}

TEST_CASE("csv: what no number of the dtype is near to is 0, or an error that says so") {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& number, DType dtype) {
    return read_csv(write_text(folder, "a\n" + number + "\n"), {.dtype = dtype})["a"];
  };
  for (const char* tiny : {"1e-400", "+1e-400", "1e-99999999999", "0.0e5"})
    for (const DType dtype : {DType::f32, DType::f64}) CHECK(read(tiny, dtype).item() == 0);
  CHECK(std::signbit(read("-1e-400", DType::f64).item()));
  CHECK(read("1e-310", DType::f64).item() == 1e-310);  // not a normal number
  CHECK(read("1e-310", DType::f32).item() == 0);
  CHECK(read("1e-40", DType::f32).item() == 1e-40f);
  const auto message = [&](const std::string& number, DType dtype) -> std::string {
    try {
      read(number, dtype);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  CHECK(message("1e400", DType::f64).ends_with("'1e400' is too large for f64"));
  CHECK(message("-1e400", DType::f32).ends_with("'-1e400' is too large for f32"));
  CHECK(message("1e39", DType::f32).ends_with("'1e39' is too large for f32"));
  CHECK(message("1e-400", DType::i64).ends_with("'1e-400' is no number of i64"));
  CHECK(message("1e400", DType::i64).ends_with("'1e400' is no number of i64"));
  for (const char* word : {"inf", "-inf", "0x10", "one"})
    CHECK(message(word, DType::f64).ends_with(fmt::format("'{}' is not a number", word)));
}

TEST_CASE("csv: a first line of numbers is not taken for names in silence") {
  const TemporaryFolder folder;
  for (const char* text : {"1,2\n3,4\n", "1.5,-2e3\n3,4\n", "\"1\",\"2\"\n", "1,NA\n3,4\n",
                           "+7\n8\n", "1e-400\n2\n"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(read_csv(write_text(folder, text)),
                         doctest::Contains("t.csv:1: the first line has numbers in the place of "
                                           "names"),
                         DataError);
    CHECK_THROWS_AS(load_csv(write_text(folder, text), {.targets = {"price"}}), DataError);
  }
  // The option says that there is no header line; a column that is asked for by its number is one.
  CHECK(elements(read_csv(write_text(folder, "1,2\n3,4\n"), {.names = {"a", "b"}})["b"]) ==
        Numbers{2, 4});
  CHECK(elements(read_csv(write_text(folder, "2019,2020\n3,4\n"), {.columns = {"2020"}})["2020"]) ==
        Numbers{4});
  CHECK(load_csv(write_text(folder, "2019,2020\n3,4\n"), {.targets = {"2020"}}).size() == 1);
  CHECK(read_csv(write_text(folder, "a,2\n3,4\n")).names() == "a, 2");
  CHECK(read_csv(write_text(folder, "NA,b\n3,4\n")).names() == "NA, b");
}

TEST_CASE("csv: every byte changed, or cut, gives a table or an error of one line") {
  const TemporaryFolder folder;
  const std::string whole = "a,\"b \"\"c\"\"\"\r\n1,-2.5e3\r\n\"3\",4\r\n";
  int errors = 0;
  const auto read = [&](const std::string& text) {
    try {
      read_csv(write_text(folder, text));
    } catch (const DataError& error) {
      CHECK(std::string(error.what()).find('\n') == std::string::npos);
      ++errors;
    }
  };
  for (std::size_t i = 0; i < whole.size(); ++i) {
    read(whole.substr(0, i));
    for (int value = 0; value < 256; ++value) {
      std::string text = whole;
      text[i] = static_cast<char>(value);
      read(text);
    }
  }
  CHECK(errors > 1000);
}

TEST_CASE("csv: an i64 is what the text says exactly, or an error") {
  const TemporaryFolder folder;
  const auto read = [&](const std::string& number) {
    const auto file = write_text(folder, "a\n" + number + "\n");
    return read_csv(file, {.dtype = DType::i64})["a"].to_vector<std::int64_t>()[0];
  };
  const std::pair<const char*, std::int64_t> good[] = {
      {"+5", 5},
      {"-0", 0},
      {"-0.0", 0},
      {"0e99999999999999999999", 0},
      {"0.000e-5", 0},
      {"4.0", 4},
      {"4.", 4},
      {"1.5e3", 1500},
      {"+1.5E+3", 1500},
      {"-1500e-2", -15},
      {"0.0025e4", 25},
      {"00012.50e1", 125},
      {"1e18", 1000000000000000000},
      {"9007199254740993.0", 9007199254740993},
      {"-9007199254740993000e-3", -9007199254740993},
      {"9223372036854775807", std::numeric_limits<std::int64_t>::max()},
      {"9223372036854775807.000", std::numeric_limits<std::int64_t>::max()},
      {"922337203685477580.7e1", std::numeric_limits<std::int64_t>::max()},
      {"-9223372036854775808.0", std::numeric_limits<std::int64_t>::min()},
      {"0.00000000000000000000000000000000000000007e41", 7},
  };
  for (const auto& [text, value] : good) {
    CAPTURE(text);
    CHECK(read(text) == value);
  }
  for (const char* text :
       {"1.0000000000000000001", "0.99999999999999999999", "4503599627370497.2",
        "9007199254740991.9", "1e-400", "1e-1", "15e-1", "-0.5", "1.05e1", "9223372036854775808",
        "9223372036854775808.0", "1e19", "1e400", "1e99999999999999999999",
        "1e-99999999999999999999", "-9223372036854775809e0", "1e9223372036854775807"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(read(text), doctest::Contains("is no number of i64"), DataError);
  }
  for (const char* text : {".", "-", "e5", "1e", "1e+", "1.2.3", "--1", "1e1.5", "0x10", "+-1"}) {
    CAPTURE(text);
    CHECK_THROWS_WITH_AS(read(text), doctest::Contains("is not a number"), DataError);
  }
}

TEST_CASE("csv: a fill value that its column cannot hold is refused") {
  const TemporaryFolder folder;
  const auto file = write_text(folder, "a,b\n1,\nNA,4\n");
  for (const auto& [dtype, value] :
       {std::pair(DType::f32, 1e300), std::pair(DType::f32, -3.5e38),
        std::pair(DType::f32, HUGE_VAL), std::pair(DType::f64, HUGE_VAL),
        std::pair(DType::f64, -HUGE_VAL), std::pair(DType::i64, 1e300),
        std::pair(DType::i64, HUGE_VAL), std::pair(DType::i64, 0.5)}) {
    CAPTURE(value);
    CHECK_THROWS_WITH_AS(read_csv(file, {.dtype = dtype, .missing = value}),
                         doctest::Contains("cannot stand for missing values of"), UsageError);
    CHECK_THROWS_AS(read_csv(file, {.dtypes = {{"b", dtype}}, .missing = value}), UsageError);
  }
  CHECK(read_csv(file, {.dtype = DType::f64, .missing = 1e300})["b"].item({0}) == 1e300);
  CHECK_THROWS_AS(load_csv(file, {.targets = {"b"}, .missing = 1e39}), UsageError);
}

TEST_CASE("csv: a table with another delimiter is told of it") {
  const TemporaryFolder folder;
  const auto says = [&](const std::string& text, const CsvOptions& options = {}) -> std::string {
    try {
      read_csv(write_text(folder, text), options);
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  const std::string hint = " (if the delimiter is ';': CsvOptions::delimiter)";
  const std::string tab = " (if the delimiter is a tab: CsvOptions::delimiter)";
  CHECK(says("a;b\n1,5;2\n").ends_with(":2: 2 fields, but there is 1 column" + hint));
  CHECK(says("a;b\n1;2\n").ends_with("'1;2' is not a number" + hint));
  CHECK(says("a\tb\n1\t2\n").ends_with(" is not a number" + tab));
  CHECK(says("a;b\n1;2\n", {.columns = {"b"}}).ends_with("there is a;b" + hint));
  CHECK(says("a\n1,2\n").ends_with(":2: 2 fields, but there is 1 column"));
  CHECK(says("a,b\n1\n").ends_with(":2: 1 fields, but there are 2 columns"));
  CHECK(says("a,b\n1;2,3\n").ends_with("'1;2' is not a number"));
}

}  // namespace
}  // namespace lockstep::data
