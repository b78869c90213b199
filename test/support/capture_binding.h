#pragma once
/// CAPTURE for a name of a structured binding, which clang 14 lets no lambda capture.

#include <doctest/doctest.h>

#define CAPTURE_BINDING(name) CAPTURE_BINDING_AS(name, DOCTEST_ANONYMOUS(captured_))
#define CAPTURE_BINDING_AS(name, reference) \
  const auto& reference = name;             \
  INFO(#name " := ", reference)
