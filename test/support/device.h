#pragma once
/// The device on which tests that do not care where they run are run: LOCKSTEP_TEST_DEVICE=cpu (the
/// default), sim or cuda. So the same tests check the processor's kernels, the GPU's in the
/// simulator, and the GPU's on a GPU.

#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/core/tensor.h"

namespace lockstep::test {

inline Device test_device() {
  static const Device device = [] {
    const char* text = std::getenv("LOCKSTEP_TEST_DEVICE");
    const std::string_view name = text ? text : "cpu";
    for (const auto kind : {Device::Kind::cpu, Device::Kind::sim, Device::Kind::cuda}) {
      if (name != Device::name_of(kind)) continue;
      check<UsageError>(kind == Device::Kind::cpu || gpu::kind() == kind,
                        "LOCKSTEP_TEST_DEVICE={}, but this build does not drive it", name);
      return Device{kind, 0};
    }
    fail<UsageError>("LOCKSTEP_TEST_DEVICE is cpu, sim or cuda, not '{}'", name);
  }();
  return device;
}

inline bool on_cpu() { return test_device().kind == Device::Kind::cpu; }

/// A tensor that was made on the cpu, on the test's device. With LOCKSTEP_TEST_SHIFT=yes it begins
/// 0 to 7 elements into its memory, each one elsewhere: a kernel has to look at all its operands
/// before it accesses several elements at a time.
inline Tensor here(const Tensor& host) {
  static const bool shift = std::getenv("LOCKSTEP_TEST_SHIFT") != nullptr;
  if (!shift || host.numel() == 0) return host.to(test_device());
  static thread_local std::int64_t drawn = 0;
  const std::int64_t begin = (drawn = (drawn * 5 + 3) % 64) / 8;  // of any four, some are alike
  const Tensor memory = Tensor::empty({host.numel() + begin}, host.dtype(), test_device());
  const Tensor result = memory.slice(begin, memory.numel()).view(host.shape());
  result.copy_from(host);
  return result;
}

}  // namespace lockstep::test
