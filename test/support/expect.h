#pragma once
/// Checks that a test may make on any thread and in a child process, where doctest's macros may not
/// be used: each throws, and what a rank throws fails the test.

#include <string>
#include <string_view>
#include <utility>

#include "lockstep/core/error.h"

namespace lockstep::test {

/// The condition holds; else throws Error with the message.
template <class... Args>
void expect(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  check<Error>(condition, format, std::forward<Args>(args)...);
}

/// body() throws an E whose message contains `part`.
template <class E, class F>
void expect_error(std::string_view part, F&& body) {
  std::string message = "(nothing was thrown)";
  try {
    body();
  } catch (const E& error) {
    message = error.what();
    if (message.find(part) != std::string::npos) return;
  }
  fail<Error>("expected '{}', got: {}", part, message);
}

}  // namespace lockstep::test
