#include "lockstep/data/csv.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>

#include "lockstep/core/system/progress.h"
#include "lockstep/core/text/number.h"
#include "lockstep/data/input.h"

namespace lockstep::data {
namespace {

/// The lines of a file, each cut into its fields.
class Lines {
 public:
  Lines(const std::string& path, char delimiter) : delimiter_(delimiter) {
    Input input(path);
    name_ = input.name();
    text_ = input.read_rest();
    rest_ = text_;
    accept("\xef\xbb\xbf");  // the byte order mark of UTF-8
  }

  const std::string& name() const { return name_; }
  std::int64_t number() const { return number_; }  ///< of the line, from 1
  const std::vector<std::string>& fields() const { return fields_; }

  /// Goes to the next line that is not empty; false at the end.
  bool next() {
    Progress::note();
    do {
      skip_blanks();
      accept("\r");
    } while (accept("\n"));
    if (rest_.empty()) return false;
    number_ = ended_ + 1;
    fields_.clear();
    do read_field();
    while (accept({&delimiter_, 1}));
    accept("\r");
    check<DataError>(rest_.empty() || accept("\n"),
                     "[csv] {}:{}: text behind the quoted field '{}'", name_, number_,
                     printable(fields_.back()));
    return true;
  }

 private:
  bool accept(std::string_view word) {
    if (!rest_.starts_with(word)) return false;
    take(word.size());
    return true;
  }
  std::string_view take(std::size_t bytes) {
    const std::string_view taken = rest_.substr(0, bytes);
    ended_ += std::ranges::count(taken, '\n');
    rest_.remove_prefix(taken.size());
    return taken;
  }
  void skip_blanks() {
    const std::string_view blanks = delimiter_ == '\t' ? " " : delimiter_ == ' ' ? "\t" : " \t";
    take(std::min(rest_.find_first_not_of(blanks), rest_.size()));
  }

  // Stops at the delimiter or the line's end.
  void read_field() {
    skip_blanks();
    std::string& field = fields_.emplace_back();
    if (accept("\"")) return read_quoted(field);
    const char ends[] = {delimiter_, '\n'};
    field = take(rest_.find_first_of({ends, 2}));
    field.erase(field.find_last_not_of(" \t\r") + 1);
    check<DataError>(field.find('\r') == field.npos,
                     "[csv] {}:{}: a carriage return within '{}': lines end with \\n or \\r\\n",
                     name_, number_, printable(field));
  }
  void read_quoted(std::string& field) {
    for (;;) {
      const std::size_t quote = rest_.find('"');
      check<DataError>(quote != std::string_view::npos, "[csv] {}:{}: a quoted field does not end",
                       name_, number_);
      field += take(quote);
      accept("\"");
      if (!accept("\"")) break;
      field += '"';  // two stand for one
    }
    skip_blanks();
  }

  char delimiter_;
  std::string name_, text_;
  std::string_view rest_;                // of the text
  std::int64_t ended_ = 0, number_ = 0;  // lines so far; where the fields began
  std::vector<std::string> fields_;
};

bool is_missing(std::string_view text) {
  constexpr std::string_view words[] = {"",    "NA",  "na",   "N/A", "n/a",
                                        "NaN", "nan", "null", "NAN", "NULL"};
  return std::ranges::find(words, text) != std::end(words);
}

std::string_view without_plus(std::string_view text) {
  return text.starts_with('+') && !text.starts_with("+-") ? text.substr(1) : text;
}

// The whole number that the whole text is, if it is one.
std::optional<std::int64_t> whole_number_of(std::string_view text) {
  return parse_number<std::int64_t>(without_plus(text));
}

// Any other one, as parse_decimal.
std::optional<double> number_of(std::string_view text) { return parse_decimal(without_plus(text)); }

// The i64 that such a text is exactly: 2.0 and 1.5e3, but not 1.0000000000000000001, to which 1 is
// the nearest f64.
std::optional<std::int64_t> exact_number_of(std::string_view text) {
  text = without_plus(text);
  const std::size_t e = std::min(text.find_first_of("eE"), text.size());
  std::string digits(text.substr(0, e));
  const bool negative = digits.starts_with('-');
  if (negative) digits.erase(0, 1);
  const std::size_t point = std::min(digits.find('.'), digits.size());
  if (point < digits.size()) digits.erase(point, 1);
  const std::size_t first = digits.find_first_not_of('0'), last = digits.find_last_not_of('0');
  if (first == digits.npos) return 0;  // whatever the exponent is
  std::optional<std::int64_t> exponent = 0;
  if (e < text.size()) exponent = whole_number_of(text.substr(e + 1));
  // How many digits stand before the point, from the first one that is not 0.
  const std::int64_t before = static_cast<std::int64_t>(point) - static_cast<std::int64_t>(first);
  constexpr std::int64_t far = std::int64_t{1} << 40;  // no text is as long
  if (!exponent || *exponent < -far || *exponent > far) return std::nullopt;
  const std::int64_t whole = before + *exponent;
  constexpr std::int64_t most = 19;  // digits of an i64
  if (whole > most || whole < static_cast<std::int64_t>(last - first + 1)) return std::nullopt;
  std::string number = digits.substr(first, last - first + 1);
  number.resize(static_cast<std::size_t>(whole), '0');
  return whole_number_of((negative ? "-" : "") + number);
}

// Whether it is a number of the dtype, f32, f64 or i64.
bool fits(double value, DType dtype) {
  if (dtype == DType::i64) return std::abs(value) <= 0x1p53 && std::trunc(value) == value;
  return std::isfinite(dtype == DType::f64 ? value : static_cast<float>(value));
}

// Where all of a line is one field, it may have been cut at the wrong delimiter.
std::string hint_at_delimiter(const std::vector<std::string>& fields) {
  if (fields.size() == 1)
    for (const auto& [other, shown] : {std::pair(';', "';'"), std::pair('\t', "a tab")})
      if (fields[0].find(other) != fields[0].npos)
        return fmt::format(" (if the delimiter is {}: CsvOptions::delimiter)", shown);
  return "";
}

/// A column that is read: where it stands in a line, and what has been read.
struct Column {
  std::string name;
  std::size_t place;
  std::optional<double> missing;  // takes the place of missing values
  Tensor values;                  // there is room for more rows than have been read

  void read(std::int64_t row, const Lines& lines) const;
};

void Column::read(std::int64_t row, const Lines& lines) const {
  const std::string& text = lines.fields()[place];
  const DType dtype = values.dtype();
  const auto refuse = [&](const std::string& why) {
    fail<DataError>("[csv] {}:{}: column '{}': {}", lines.name(), lines.number(), printable(name),
                    why);
  };
  if (const auto whole = whole_number_of(text); whole && dtype == DType::i64) {
    values.data<std::int64_t>()[row] = *whole;
    return;
  }
  double number = missing.value_or(0);
  if (!is_missing(text)) {
    number = number_of(text).value_or(NAN);
    if (std::isnan(number))
      refuse(fmt::format("'{}' is not a number{}", printable(text),
                         hint_at_delimiter(lines.fields())));
    if (dtype == DType::i64) {
      const std::optional<std::int64_t> whole = exact_number_of(text);
      if (!whole) refuse(fmt::format("'{}' is no number of {}", printable(text), dtype));
      values.data<std::int64_t>()[row] = *whole;
      return;
    }
    if (!fits(number, dtype))
      refuse(fmt::format("'{}' is too large for {}", printable(text), dtype));
  } else if (!missing) {
    refuse(fmt::format("the value is missing ('{}'); the option `missing` gives one", text));
  }
  visit_any(dtype, [&](auto zero) {
    values.data<decltype(zero)>()[row] = static_cast<decltype(zero)>(number);
  });
}

std::size_t place_of(const std::string& name, const std::vector<std::string>& there,
                     const std::string& file) {
  const auto place = std::ranges::find(there, name);
  check<DataError>(place != there.end(), "[csv] {}: there is no column '{}'; there is {}{}", file,
                   printable(name), printable(fmt::format("{}", fmt::join(there, ", ")), 200),
                   hint_at_delimiter(there));
  check<DataError>(std::ranges::count(there, name) == 1, "[csv] {}: two columns are named '{}'",
                   file, printable(name));
  return static_cast<std::size_t>(place - there.begin());
}

// `complete`: columns in which nothing may be missing.
std::vector<Column> choose_columns(const std::string& file, const std::vector<std::string>& there,
                                   const CsvOptions& options,
                                   const std::vector<std::string>& complete) {
  for (const std::string& name : complete) place_of(name, there, file);
  for (const auto& [name, dtype] : options.dtypes) place_of(name, there, file);
  std::vector<Column> columns;
  for (const std::string& name : options.columns.empty() ? there : options.columns) {
    const std::size_t place = place_of(name, there, file);
    check<DataError>(!name.empty(), "[csv] {}: column {} has no name; name the columns to read",
                     file, place + 1);
    check<UsageError>(std::ranges::count(columns, name, &Column::name) == 0,
                      "[csv] column '{}' is asked for twice", printable(name));
    const auto own = options.dtypes.find(name);
    const DType dtype = own == options.dtypes.end() ? options.dtype : own->second;
    check<UsageError>(is_differentiable(dtype) || dtype == DType::i64,
                      "[csv] columns are f32, f64 or i64, not {}", dtype);
    const bool whole = std::ranges::count(complete, name) > 0;
    const std::optional<double> missing = whole ? std::nullopt : options.missing;
    const double value = missing.value_or(0);
    check<UsageError>(fits(value, dtype) || (dtype != DType::i64 && std::isnan(value)),
                      "[csv] {} cannot stand for missing values of {}", value, dtype);
    columns.push_back({name, place, missing, Tensor::empty({0}, dtype)});
  }
  return columns;
}

// A first line of numbers alone is a row, more likely than names, unless the program names a column
// by one of them. Taken for the header, the row would be missing in the data without a word.
void refuse_row_as_header(const Lines& lines, const CsvOptions& options,
                          const std::vector<std::string>& complete) {
  const std::vector<std::string>& there = lines.fields();
  const auto asked = [&](const std::string& name) {
    return std::ranges::count(options.columns, name) > 0 || options.dtypes.contains(name) ||
           std::ranges::count(complete, name) > 0;
  };
  const auto is_number = [](const std::string& text) { return number_of(text).has_value(); };
  const bool row = std::ranges::any_of(there, is_number) &&
                   std::ranges::all_of(there, [&](const std::string& text) {
                     return is_number(text) || is_missing(text);
                   });
  check<DataError>(!row || std::ranges::any_of(there, asked),
                   "[csv] {}:{}: the first line has numbers in the place of names ({}): the option "
                   "`names` names the columns of a file without a header line; if these are names, "
                   "ask for columns by them (`columns`)",
                   lines.name(), lines.number(),
                   printable(fmt::format("{}", fmt::join(there, ", ")), 100));
}

Fields read_columns(const std::string& path, const CsvOptions& options,
                    const std::vector<std::string>& complete) {
  const std::string_view impossible("\"\r\n\0", 4);
  check<UsageError>(impossible.find(options.delimiter) == std::string_view::npos,
                    "[csv] the delimiter cannot be a quote, the end of a line or 0");
  Lines lines(path, options.delimiter);
  std::vector<std::string> there = options.names;
  if (there.empty()) {
    check<DataError>(lines.next(), "[csv] {}: there is no header line", lines.name());
    refuse_row_as_header(lines, options, complete);
    there = lines.fields();
  }
  std::vector<Column> columns = choose_columns(lines.name(), there, options, complete);
  std::int64_t rows = 0, room = 0;
  for (; lines.next(); ++rows) {
    check<DataError>(lines.fields().size() == there.size(),
                     "[csv] {}:{}: {} fields, but there {} {} column{}{}", lines.name(),
                     lines.number(), lines.fields().size(), there.size() == 1 ? "is" : "are",
                     there.size(), there.size() == 1 ? "" : "s", hint_at_delimiter(there));
    if (rows == room) {
      room = std::max(2 * room, std::int64_t{4096});
      check_memory(
          fmt::format("[csv] {}: {} rows of {} columns", lines.name(), room, columns.size()),
          static_cast<std::size_t>(room) * columns.size() * sizeof(double));
      for (Column& column : columns) {
        const Tensor more = Tensor::empty({room}, column.values.dtype());
        more.slice(0, rows).copy_from(column.values);
        column.values = more;
      }
    }
    for (const Column& column : columns) column.read(rows, lines);
  }

  Fields fields;
  for (Column& column : columns) {
    fields.set(column.name, column.values.slice(0, rows).clone());
    column.values = {};
  }
  return fields;
}

}  // namespace

Fields read_csv(const std::string& path, const CsvOptions& options) {
  return read_columns(path, options, {});
}

TensorDataset load_csv(const std::string& path, const CsvSetOptions& options) {
  const bool labelled = !options.label.empty();
  check<UsageError>(labelled == options.targets.empty(),
                    "[load_csv] one of the options `targets` and `label` says which columns are y");
  const std::vector<std::string> of_y = labelled ? std::vector{options.label} : options.targets;
  CsvOptions csv{.delimiter = options.delimiter,
                 .names = options.names,
                 .columns = options.features,
                 .missing = options.missing};
  if (labelled) csv.dtypes = {{options.label, DType::i64}};
  if (!csv.columns.empty()) csv.columns.insert(csv.columns.end(), of_y.begin(), of_y.end());
  const Fields table = read_columns(path, csv, of_y);

  std::vector<std::string> of_x;
  for (const Field& column : table)
    if (std::ranges::find(of_y, column.name) == of_y.end()) of_x.push_back(column.name);
  check<DataError>(!of_x.empty(), "[csv] {}: no column is left for x", path);

  const auto matrix = [&](const std::vector<std::string>& names) {
    const std::int64_t rows = table[names[0]].numel(), width = std::ssize(names);
    const Tensor result = Tensor::empty({rows, width});
    for (std::int64_t j = 0; j < width; ++j) {
      const float* column = table[names[static_cast<std::size_t>(j)]].data<float>();
      for (std::int64_t i = 0; i < rows; ++i) result.data<float>()[i * width + j] = column[i];
    }
    return result;
  };
  return TensorDataset(
      {{"x", matrix(of_x)}, {"y", labelled ? table[options.label] : matrix(of_y)}});
}

}  // namespace lockstep::data
