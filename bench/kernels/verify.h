#pragma once
/// Nothing is timed before it has been verified.

#include "lockstep/bench/kernels/case.h"
#include "lockstep/core/error.h"

namespace bench {

struct VerificationError : lockstep::Error {
  using Error::Error;
};

/// Overwrites the outputs of the case with NaN (integers: all bits set; outputs that are inputs are
/// left), lets `contender` run, and compares. Throws VerificationError naming who, which output and
/// which element, unless for every element
///
///   |actual - expected| <= tolerance * max(|expected|, root mean square of the expected ones)
///
/// NaN is never close. Of outputs for which `expected` would take more than 2^24 operations only as
/// many elements are compared as stay below: one of each of that many equal parts, somewhere in it.
void verify(const Case& work, const Contender& contender);

}  // namespace bench
