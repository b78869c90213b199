#pragma once
/// One exception family. A message names the operation in brackets and prints both values:
///   [matmul] inner dimensions differ: (32, 64) x (63, 128)
/// No `exit`, no assert that vanishes in release builds, nothing printed and then ignored.
/// A message is one line of text that a terminal shows and does not obey: visible().

#include <fmt/core.h>

#include <cstdint>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/system/abi.h"

namespace lockstep {

/// The text, with its control characters and all bytes that are no UTF-8 as "\x1b", "\n", "\t":
/// names from files, arguments, variables and other ranks may hold anything. What is visible
/// already stays as it is.
std::string visible(std::string text);

/// What a rank has done to the others.
enum class Fault : std::uint8_t {
  hangs,        ///< it has not moved for as long as others wait
  missing,      ///< it has not come
  gone,         ///< its process has ended
  left,         ///< it has ended its World, or exited, before a call in which others wait
  in_minority,  ///< most ranks have something else
  failed,       ///< in what all ranks do together
  nonfinite,    ///< its gradient is infinite or NaN
  miscomputed   ///< it has computed something wrongly
};

/// Who is to blame for an error: a value beside the text of the error, so that no code has to read
/// the text back. It becomes text where it is printed.
struct Blame {
  std::vector<int> ranks{};  ///< of the job; empty: not known
  Fault fault{};
  std::string detail{};  ///< for people, behind the fault: "(lane 3 in step 5)"

  bool known() const { return !ranks.empty(); }
  bool operator==(const Blame&) const = default;
};
/// "rank 1 hangs", "ranks 1, 2 are gone"; empty if no rank is known.
std::string text_of(const Blame& blame);
/// The same without the ranks: "hangs", "are gone".
std::string deed_of(const Blame& blame);

/// What all errors derive from.
struct Error : std::runtime_error {
  explicit Error(const std::string& message) : std::runtime_error(visible(message)) {}
  /// Who is to blame, for the code that reports the error, if that is not the rank that throws.
  /// Null: not known.
  std::shared_ptr<const Blame> blame{};
};

struct ShapeError : Error {
  using Error::Error;
};  ///< sizes or ranks that do not fit together
struct DTypeError : Error {
  using Error::Error;
};  ///< an element type an operation does not take
struct MemoryError : Error {
  using Error::Error;
};  ///< memory that the operating system does not give; says how many bytes, and for what
struct DeviceError : Error {
  using Error::Error;
};  ///< a device that is absent or differs
struct DataError : Error {
  using Error::Error;
};  ///< a file or value from outside that is not valid
struct StateError : Error {
  using Error::Error;
};  ///< a call that is not allowed now
struct UsageError : Error {
  using Error::Error;
};  ///< options that make no sense; exit code 2

/// A collective or a connection failed. The message names rank, operation, sequence and bucket.
struct CommError : Error {
  using Error::Error;
};

/// Another rank went away or gave up first; this rank's failure is only the echo of that one.
struct PeerError : CommError {
  using CommError::CommError;
};

/// Throws E with the formatted message. Not inlined: a check costs its caller a comparison.
template <class E, class... Args>
[[noreturn, gnu::cold, gnu::noinline]] void fail(fmt::format_string<Args...> format,
                                                 Args&&... args) {
  throw E(fmt::format(format, std::forward<Args>(args)...));
}

/// `error`, which then blames these ranks, if any.
template <class E>
E blaming(Blame blame, E error) {
  if (blame.known()) error.blame = std::make_shared<const Blame>(std::move(blame));
  return error;
}

/// Throws E with the formatted message unless `condition` holds.
template <class E, class... Args>
inline void check(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  if (!condition) [[unlikely]]
    fail<E>(format, std::forward<Args>(args)...);
}

/// To be called in a catch block: what the exception says; never empty.
inline std::string current_message() {
  try {
    throw;
  } catch (const std::bad_alloc&) {
    return "out of memory";
  } catch (const std::exception& error) {
    const char* const text = error.what();
    return text && *text ? visible(text) : "an error without a message";
  } catch (...) {
    return "an error of no known kind";
  }
}

}  // namespace lockstep
