#pragma once

#include <vector>

#include "lockstep/dist/ddp/buckets/bucket_layout.h"

namespace lockstep::dist::testing {

/// The parameters of each bucket.
inline std::vector<std::vector<int>> members(const BucketPlaces& places) {
  std::vector<std::vector<int>> result;
  for (const auto& bucket : places.buckets) {
    result.emplace_back();
    for (const auto& slot : bucket.slots) result.back().push_back(slot.parameter);
  }
  return result;
}

}  // namespace lockstep::dist::testing
