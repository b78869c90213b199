#pragma once
/// The inputs of a published experiment, and what it found, in a JSON file.

#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/tensor.h"

namespace lockstep::samples {

/// A value in the file, which knows its place: everything that it is asked for and is not, is a
/// DataError of one line with the file and the place, as in
///   fixture 'a.json': x[0][1] has 15 numbers, not the 16 of shape (4, 4)
class Field {
 public:
  /// The whole file.
  static Field read(const std::string& path);

  bool has(std::string_view key) const;
  Field operator[](std::string_view key) const;
  Field operator[](std::size_t index) const;
  std::size_t size() const;  ///< of a list, at least 1

  double number() const;
  std::vector<double> numbers() const;
  /// A list of `rank` sizes of at least 1.
  Shape shape(int rank) const;
  Shape shape() const { return shape(static_cast<int>(size())); }
  /// A flat list of as many numbers as the shape has places, on the cpu: f32, or for labels i64.
  Tensor tensor(const Shape& shape) const;
  Tensor labels(const Shape& shape, std::int64_t classes) const;

  const std::string& name() const { return name_; }
  /// Throws DataError about this place.
  [[noreturn]] void refuse(std::string_view what) const;

 private:
  using Json = nlohmann::json;
  Field(std::shared_ptr<const Json> file, const Json* value, std::string path, std::string name);

  std::shared_ptr<const Json> file_;  // of which *value_ is a part
  const Json* value_;
  std::string path_, name_;
};

}  // namespace lockstep::samples
