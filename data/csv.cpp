#include "lockstep/data/csv.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <string_view>

#include "lockstep/data/input.h"

namespace lockstep::data {
namespace {

constexpr std::size_t max_line = 16 << 20;  // bytes; what is longer is no table

/// The lines of a file, each cut into its fields.
class Lines {
 public:
  Lines(const std::filesystem::path& path, char delimiter)
      : input_(path), delimiter_(static_cast<unsigned char>(delimiter)) {
    constexpr std::string_view mark = "\xef\xbb\xbf";  // of UTF-8
    peek();
    if (std::string_view(buffer_.data(), filled_).starts_with(mark)) next_ = mark.size();
  }

  const std::string& name() const { return input_.name(); }
  std::int64_t number() const { return number_; }  ///< of the line, from 1
  std::span<const std::string> fields() const { return std::span(fields_).first(count_); }

  /// Goes to the next line that is not empty; false at the end.
  bool next() {
    do {
      if (peek() == end) return false;
      number_ = lines_ + 1;
      count_ = bytes_ = 0;
      while (read_field() == delimiter_) {
      }
    } while (count_ == 1 && fields_[0].empty());
    return true;
  }

 private:
  static constexpr int end = -1;

  int peek() {
    if (next_ == filled_) {
      next_ = 0;
      filled_ = input_.read_some(std::as_writable_bytes(std::span(buffer_)));
    }
    return next_ == filled_ ? end : static_cast<unsigned char>(buffer_[next_]);
  }
  int get() {
    const int c = peek();
    if (c == end) return end;
    ++next_;
    lines_ += c == '\n';
    check<DataError>(++bytes_ <= max_line, "[csv] {}:{}: a line of more than {} bytes", name(),
                     number_, max_line);
    return c;
  }
  int get_after_blanks() {
    int c = get();
    while ((c == ' ' || c == '\t') && c != delimiter_) c = get();
    return c;
  }

  // Adds a field; returns what ended it: the delimiter, '\n' or `end`.
  int read_field() {
    if (count_ == fields_.size()) fields_.emplace_back();
    std::string& field = fields_[count_++];
    field.clear();
    int c = get_after_blanks();
    if (c == '"') return read_quoted(field);
    for (; c != delimiter_ && c != '\n' && c != end; c = get()) field += static_cast<char>(c);
    if (c != delimiter_ && field.ends_with('\r')) field.pop_back();
    field.erase(field.find_last_not_of(" \t") + 1);
    return c;
  }

  int read_quoted(std::string& field) {
    for (int c = get(); c != '"' || peek() == '"'; c = get()) {
      check<DataError>(c != end, "[csv] {}:{}: a quoted field does not end", name(), number_);
      if (c == '"') get();  // two stand for one
      field += static_cast<char>(c);
    }
    int c = get_after_blanks();
    if (c == '\r' && peek() == '\n') c = get();
    check<DataError>(c == delimiter_ || c == '\n' || c == end,
                     "[csv] {}:{}: text behind the quoted field '{}'", name(), number_,
                     printable(field));
    return c;
  }

  Input input_;
  int delimiter_;
  std::array<char, 65536> buffer_;
  std::size_t next_ = 0, filled_ = 0;
  std::int64_t lines_ = 0, number_ = 0;  // ended so far; where the fields began
  std::vector<std::string> fields_;
  std::size_t count_ = 0, bytes_ = 0;  // of the line
};

bool is_missing(std::string_view text) {
  constexpr std::string_view words[] = {"", "na", "n/a", "nan", "null"};
  return text.size() <= 4 && std::ranges::any_of(words, [&](std::string_view word) {
           return std::ranges::equal(text, word, {},
                                     [](unsigned char c) { return std::tolower(c); });
         });
}

// The number that the whole text is, if it is one.
template <class T>
std::optional<T> number_of(std::string_view text) {
  if (text.starts_with('+') && !text.starts_with("+-")) text.remove_prefix(1);
  T value{};
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

/// A column that is read: where it stands in a line, and what has been read.
struct Column {
  std::string name;
  std::size_t place;
  DType dtype;
  std::optional<double> missing;            // takes the place of missing values
  std::vector<double> numbers = {};         // f32 or f64
  std::vector<std::int64_t> integers = {};  // i64

  void add(std::string_view text, const Lines& lines);
  void add_number(std::string_view text, const Lines& lines);
  Tensor tensor() const;
};

void Column::add_number(std::string_view text, const Lines& lines) {
  if (const auto whole = number_of<std::int64_t>(text); whole && dtype == DType::i64) {
    integers.push_back(*whole);
    return;
  }
  const std::optional<double> value = number_of<double>(text);
  check<DataError>(value && std::isfinite(*value), "[csv] {}:{}: column '{}': '{}' is not a number",
                   lines.name(), lines.number(), printable(name), printable(text));
  const bool fits = dtype == DType::i64 ? std::abs(*value) <= 0x1p53 && std::trunc(*value) == *value
                    : dtype == DType::f32 ? std::isfinite(static_cast<float>(*value))
                                          : true;
  check<DataError>(fits, "[csv] {}:{}: column '{}': '{}' is no number of {}", lines.name(),
                   lines.number(), printable(name), printable(text), dtype);
  if (dtype == DType::i64)
    integers.push_back(static_cast<std::int64_t>(*value));
  else
    numbers.push_back(*value);
}

void Column::add(std::string_view text, const Lines& lines) {
  if (!is_missing(text)) return add_number(text, lines);
  check<DataError>(missing.has_value(),
                   "[csv] {}:{}: column '{}': the value is missing ('{}'); the option `missing` "
                   "gives one",
                   lines.name(), lines.number(), printable(name), text);
  if (dtype == DType::i64)
    integers.push_back(static_cast<std::int64_t>(*missing));
  else
    numbers.push_back(*missing);
}

Tensor Column::tensor() const {
  const auto n = static_cast<std::int64_t>(std::max(numbers.size(), integers.size()));
  if (dtype == DType::i64) return Tensor::of({n}, integers);
  if (dtype == DType::f64) return Tensor::of({n}, numbers);
  const Tensor result = Tensor::empty({n});
  std::ranges::transform(numbers, result.data<float>(),
                         [](double number) { return static_cast<float>(number); });
  return result;
}

std::size_t place_of(const std::string& name, const std::vector<std::string>& there,
                     const std::string& file) {
  const auto place = std::ranges::find(there, name);
  check<DataError>(place != there.end(), "[csv] {}: there is no column '{}'; there is {}", file,
                   printable(name), printable(fmt::format("{}", fmt::join(there, ", ")), 200));
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
    const auto dtype = options.dtypes.find(name);
    const bool whole = std::ranges::count(complete, name) > 0;
    columns.push_back({name, place, dtype == options.dtypes.end() ? options.dtype : dtype->second,
                       whole ? std::nullopt : options.missing});
  }
  return columns;
}

void check_options(const CsvOptions& options) {
  const std::string_view impossible("\"\r\n\0", 4);
  check<UsageError>(impossible.find(options.delimiter) == impossible.npos,
                    "[csv] the delimiter cannot be a quote, the end of a line or 0");
  const auto check_dtype = [](DType dtype) {
    check<UsageError>(is_differentiable(dtype) || dtype == DType::i64,
                      "[csv] columns are f32, f64 or i64, not {}", dtype);
  };
  check_dtype(options.dtype);
  bool integers = options.dtype == DType::i64;
  for (const auto& [name, dtype] : options.dtypes) {
    check_dtype(dtype);
    integers = integers || dtype == DType::i64;
  }
  const double missing = options.missing.value_or(0);
  check<UsageError>(!integers || (std::abs(missing) <= 0x1p53 && std::trunc(missing) == missing),
                    "[csv] {} cannot stand for missing values of i64", missing);
}

Fields read_columns(const std::filesystem::path& path, const CsvOptions& options,
                    const std::vector<std::string>& complete) {
  check_options(options);
  Lines lines(path, options.delimiter);
  std::vector<std::string> there = options.names;
  if (there.empty()) {
    check<DataError>(lines.next(), "[csv] {}: there is no header line", lines.name());
    there.assign(lines.fields().begin(), lines.fields().end());
  }
  std::vector<Column> columns = choose_columns(lines.name(), there, options, complete);
  std::size_t rows = 0,
              room = 4096;  // rows in memory; when that is reached, room is twice as large
  for (; lines.next(); ++rows) {
    check<DataError>(lines.fields().size() == there.size(),
                     "[csv] {}:{}: {} fields, but there are {} columns", lines.name(),
                     lines.number(), lines.fields().size(), there.size());
    if (rows == room) {
      room *= 2;
      check_memory(
          fmt::format("[csv] {}: {} rows of {} columns", lines.name(), room, columns.size()),
          room * columns.size() * sizeof(double));
    }
    for (Column& column : columns) column.add(lines.fields()[column.place], lines);
  }

  Fields fields;
  for (Column& column : columns) {
    fields.set(column.name, column.tensor());
    column = {};
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
  CsvOptions csv{
      .delimiter = options.delimiter, .names = options.names, .missing = options.missing};
  if (labelled) csv.dtypes = {{options.label, DType::i64}};
  if (!options.features.empty()) {
    csv.columns = options.features;
    csv.columns.insert(csv.columns.end(), of_y.begin(), of_y.end());
  }
  const Fields table = read_columns(path, csv, of_y);

  std::vector<std::string> of_x = options.features;
  if (of_x.empty())
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
