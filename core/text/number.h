#pragma once
/// Numbers of other people's files and command lines. May be called by any thread.

#include <optional>
#include <sstream>
#include <string_view>

namespace lockstep {

/// The f64 that is nearest to the decimal number "-1.5e3", which is the whole text: 0 (with its
/// sign) for one that is too small for any other, infinity for one that is too large. Nothing for
/// any other text: also for "inf", "nan" and 0x10.
std::optional<double> parse_decimal(std::string_view text);

/// A stream that reads the words and numbers of `text` as C does. Others do it as the program's
/// std::locale::global() says, which may take a blank for a part of a number.
std::istringstream classic_stream(std::string_view text);

}  // namespace lockstep
