#include "lockstep/samples/common/fixture.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/core/system/file_kind.h"

namespace lockstep::samples {

Field::Field(std::shared_ptr<const Json> file, const Json* value, std::string path,
             std::string name)
    : file_(std::move(file)), value_(value), path_(std::move(path)), name_(std::move(name)) {}

Field Field::read(const std::string& path) {
  const std::string why = why_unreadable(path);
  check<DataError>(why.empty(), "fixture '{}' cannot be read: {}", path, why);
  std::ifstream stream(path);
  const auto file = std::make_shared<const Json>(Json::parse(stream, nullptr, false));
  check<DataError>(!file->is_discarded(), "fixture '{}' is not JSON", path);
  return Field(file, file.get(), path, "");
}

void Field::refuse(std::string_view what) const {
  fail<DataError>("fixture '{}': {} {}", path_, name_.empty() ? "it" : name_, what);
}

bool Field::has(std::string_view key) const {
  return value_->is_object() && value_->contains(std::string(key));
}

Field Field::operator[](std::string_view key) const {
  const std::string text(key), name = name_.empty() ? text : name_ + "." + text;
  if (!has(key)) Field(file_, nullptr, path_, name).refuse("is missing");
  return Field(file_, &value_->at(text), path_, name);
}

Field Field::operator[](std::size_t index) const {
  const std::size_t count = size();
  if (index >= count) refuse(fmt::format("has {} entries, where {} are needed", count, index + 1));
  return Field(file_, &value_->at(index), path_, fmt::format("{}[{}]", name_, index));
}

std::size_t Field::size() const {
  if (!value_->is_array() || value_->empty()) refuse("is not a list with entries");
  return value_->size();
}

double Field::number() const {
  if (!value_->is_number()) refuse("is not a number");
  return value_->get<double>();
}

std::vector<double> Field::numbers() const {
  std::vector<double> result;
  for (std::size_t i = 0; i < size(); ++i) {
    if (!value_->at(i).is_number()) (*this)[i].refuse("is not a number");
    result.push_back(value_->at(i).get<double>());
  }
  return result;
}

Shape Field::shape(int rank) const {
  constexpr double largest = 1 << 24;
  const std::vector<double> sizes = numbers();
  if (static_cast<int>(sizes.size()) != rank)
    refuse(fmt::format("has {} sizes, not {}", sizes.size(), rank));
  std::vector<std::int64_t> whole;
  for (const double size : sizes) {
    if (size < 1 || size > largest || size != std::floor(size))
      refuse(fmt::format("holds {}, which is no size", size));
    whole.push_back(static_cast<std::int64_t>(size));
  }
  return Shape(whole);
}

Tensor Field::tensor(const Shape& shape) const {
  const std::vector<double> values = numbers();
  if (static_cast<std::int64_t>(values.size()) != shape.numel())
    refuse(
        fmt::format("has {} numbers, not the {} of shape {}", values.size(), shape.numel(), shape));
  return Tensor::of(shape, std::vector<float>(values.begin(), values.end()));
}

Tensor Field::labels(const Shape& shape, std::int64_t classes) const {
  const Tensor values = tensor(shape);
  std::vector<std::int64_t> whole;
  for (const float value : values.to_vector<float>()) {
    if (value < 0 || value >= static_cast<float>(classes) || value != std::floor(value))
      refuse(fmt::format("holds {}, which is none of the {} classes", value, classes));
    whole.push_back(static_cast<std::int64_t>(value));
  }
  return Tensor::of(shape, whole);
}

}  // namespace lockstep::samples
