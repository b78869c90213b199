#pragma once
/// The names of enumerators, for messages and documents.

#include <cstddef>
#include <initializer_list>
#include <string_view>

namespace lockstep {

/// `names` are those of all enumerators in the order of their declaration, which begins at 0. A
/// value beyond them (a damaged message from another rank, say) is called "?".
template <class Enum>
constexpr std::string_view name_in(std::initializer_list<std::string_view> names, Enum value) {
  const auto index = static_cast<std::size_t>(value);
  return index < names.size() ? names.begin()[index] : "?";
}

}  // namespace lockstep
