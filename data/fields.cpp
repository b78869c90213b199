#include "lockstep/data/fields.h"

#include <algorithm>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::data {

Fields::Fields(std::initializer_list<Field> fields) {
  fields_.reserve(fields.size());
  for (const Field& field : fields) {
    check<DataError>(!find(field.name), "[Fields] two fields have the name '{}'", field.name);
    fields_.push_back(field);
  }
}

const Tensor* Fields::find(std::string_view name) const {
  const auto field = std::ranges::find(fields_, name, &Field::name);
  return field == fields_.end() ? nullptr : &field->value;
}

const Tensor& Fields::operator[](std::string_view name) const {
  const Tensor* const value = find(name);
  if (!value)
    for (const auto& [refused, why] : refused_) check<DataError>(refused != name, "{}", why);
  check<DataError>(value != nullptr, "[Fields] there is no field '{}'; there {}", name,
                   fields_.empty() ? "are none" : "is " + names());
  return *value;
}

void Fields::set(std::string_view name, Tensor value) {
  const auto field = std::ranges::find(fields_, name, &Field::name);
  if (field == fields_.end())
    fields_.push_back({std::string(name), std::move(value)});
  else
    field->value = std::move(value);
}

void Fields::refuse(std::string_view name, std::string why) {
  refused_.emplace_back(name, std::move(why));
}

std::string Fields::names() const {
  std::string names;
  for (const Field& field : fields_) names += (names.empty() ? "" : ", ") + field.name;
  return names;
}

}  // namespace lockstep::data
