#pragma once
/// Tables of numbers in text files:
///
///   // x: f32 (n, features), all other columns; y: f32 (n, 1)
///   const data::TensorDataset all = data::load_csv("prices.csv", {.targets = {"price"}});
///   // y: i64 (n,), for cross_entropy
///   const data::TensorDataset flowers = data::load_csv("flowers.csv", {.label = "kind"});
///   const data::Fields table = data::read_csv("log.csv", {.delimiter = ';'});  // column by column

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/data/dataset.h"

namespace lockstep::data {

/// Of read_csv.
struct CsvOptions {
  char delimiter = ',';
  std::vector<std::string> names = {};       ///< of all columns, if the file has no header line
  std::vector<std::string> columns = {};     ///< which to read, in this order; none: all
  DType dtype = DType::f32;                  ///< of the columns: f32, f64 or i64
  std::map<std::string, DType> dtypes = {};  ///< of single columns
  /// Takes the place of missing values: a number of the column's dtype, or NaN.
  std::optional<double> missing = {};
};

/// Reads columns of numbers: a field (n,) for each, by the names of the header line. Fields may be
/// quoted as in RFC 4180 ("a ""b"""), lines end in LF or CRLF, blanks around fields, empty lines
/// and a byte order mark are skipped, a gzipped file is unpacked on the way. A column that is not
/// read may hold any text. Memory holds the whole text while it is read.
///
/// A number is decimal, like -1.5e3, and finite; it is rounded to f64 and then to the column's
/// dtype (1e-400 to 0; 1e400 is an error); for i64 its text must be that of a whole one
/// (2.0, 1.5e3; not 1.00000000000000000001), which is read exactly. A field that is empty or says
/// NA, N/A, NaN or null (in small letters also) is missing: an error without CsvOptions::missing.
///
/// A first line of numbers alone is taken for a row whose file has no header line: without
/// CsvOptions::names it is an error, unless one of the numbers is asked for as a column's name.
///
/// Throws UsageError for options that make no sense, DataError that names file, line, column and
/// text for what is no number or missing; also for a column that does not exist, exists twice or
/// has no name, and for a line with more or fewer fields than there are columns.
Fields read_csv(const std::string& path, const CsvOptions& options = {});

/// What load_csv makes of a table: either `targets` or `label` is given.
struct CsvSetOptions {
  std::vector<std::string> targets = {};   ///< columns of y, f32 (n, targets)
  std::string label = {};                  ///< the column of y, i64 (n,)
  std::vector<std::string> features = {};  ///< columns of x; none: all that are not in y
  std::optional<double> missing = {};      ///< takes the place of missing values in x; none in y
  char delimiter = ',';                    ///< as in CsvOptions
  std::vector<std::string> names = {};     ///< as in CsvOptions
};

/// Reads a data set with the fields x, f32 (n, features), and y. Throws as read_csv.
TensorDataset load_csv(const std::string& path, const CsvSetOptions& options);

}  // namespace lockstep::data
