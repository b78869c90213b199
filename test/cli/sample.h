#pragma once
/// How a test runs a sample: on the device that the suite is for.

#include <string>
#include <vector>

#include "support/device.h"

namespace lockstep::test {

inline std::vector<std::string> sample_command(const std::string& name,
                                               const std::vector<std::string>& options) {
  std::vector<std::string> result = {LOCKSTEP_BIN_DIR "/" + name, "--device",
                                     std::string(Device::name_of(test_device().kind))};
  result.insert(result.end(), options.begin(), options.end());
  return result;
}

}  // namespace lockstep::test
