#pragma once
/// What tests of the doctor ask about its findings.

#include <doctest/doctest.h>

#include <map>
#include <string>

#include "lockstep/dist/doctor/doctor.h"
#include "support/text.h"

namespace lockstep::test {

inline void check_bad(const doctor::Finding& finding, const std::string& found,
                      const std::string& advice) {
  INFO(doctor::to_text(finding));
  CHECK_FALSE(finding.good);
  CHECK(contains(finding.found, found));
  CHECK(contains(finding.advice, advice));
}

inline void check_good(const doctor::Finding& finding, const std::string& found = "") {
  INFO(doctor::to_text(finding));
  CHECK(finding.good);
  CHECK(finding.advice == "");
  CHECK(finding.found != "");
  CHECK(contains(finding.found, found));
}

/// An environment of these variables alone.
inline dist::Getenv from(const std::map<std::string, std::string>& variables) {
  return [variables](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  };
}

}  // namespace lockstep::test
