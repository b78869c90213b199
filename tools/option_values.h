#pragma once
/// What the programs ask of the values of all their options, with CLI11.

#include <CLI/CLI.hpp>
#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>

#include "lockstep/core/error.h"
#include "lockstep/core/text/number.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::cli {
namespace validators {

/// Accepts what is a number of type T to the last character. (CLI11 takes -1 for an unsigned number
/// and cuts off what is too large.)
template <class T = std::int64_t>
CLI::Validator whole_number() {
  return CLI::Validator(
      [](const std::string& text) {
        return dist::parse_number<T>(text)
                   ? std::string()
                   : fmt::format("'{}' is not a whole number{} in its range", text,
                                 std::is_unsigned_v<T> ? " of 0 or more" : "");
      },
      "");
}

/// Accepts what is a finite number in decimal to the last character. (CLI11 takes nan, inf, 1e400
/// and 0x10.)
inline CLI::Validator number() {
  return CLI::Validator(
      [](const std::string& text) {
        const std::optional<double> value = parse_decimal(text);
        return value && std::isfinite(*value) ? std::string()
                                              : fmt::format("'{}' is not a finite number", text);
      },
      "");
}

}  // namespace validators

/// Before app.parse: throws UsageError for an option with an empty value, which is what a shell
/// makes of a variable that is not set (--json "$FILE", --json="$FILE"). CLI11 itself takes the
/// next argument for the value of `--json=`. Where the app has a command as its prefix, the
/// command's own arguments may be empty.
inline void refuse_empty_values(const CLI::App& app, int argc, const char* const* argv) {
  for (int i = 1; i < argc; ++i) {
    const std::string_view text = argv[i];
    if (app.get_prefix_command() && (!text.starts_with('-') || text == "--")) return;
    const std::size_t equals = text.find('=');
    const std::string name(text.substr(0, equals));
    const CLI::Option* option = name.empty() ? nullptr : app.get_option_no_throw(name);
    if (!option || option->get_items_expected_max() == 0) continue;  // a flag has no value
    const bool empty = equals != text.npos ? equals + 1 == text.size()
                                           : ++i < argc && std::string_view(argv[i]).empty();
    check<UsageError>(!empty, "{} has an empty value", name);
  }
}

}  // namespace lockstep::cli
