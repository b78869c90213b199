#pragma once
/// Where a program computes, as its command line says.

#include <string>

#include "lockstep/core/gpu/gpu.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep::cli {

struct DeviceOptions {
  std::string device;         ///< cpu, sim, cuda; empty: cuda where a GPU is found, else cpu
  std::string gemm = "auto";  ///< products on a GPU: handwritten, cublas, auto (the faster one)

  /// The device of the rank that is the `local_rank`-th of its machine; ranks beyond the number of
  /// GPUs share them. Throws UsageError for a device that this build or this machine does not have.
  Device choose(int local_rank) const {
    using kernels::GemmLibrary;
    if (gemm != "auto")
      kernels::set_gemm_library(gemm == "cublas" ? GemmLibrary::cublas : GemmLibrary::handwritten);
    if (!names_gpu()) {
      const Device chosen = device.empty() ? gpu::default_device(local_rank) : Device{};
      check<UsageError>(gemm == "auto" || chosen.kind != Device::Kind::cpu,
                        "--gemm {} is for products on a GPU, and the device is the cpu", gemm);
      return chosen;
    }
    check_build();
    const int count = gpu::count();
    check<UsageError>(count > 0, "--device {}: no such device is found on this machine", device);
    return {*gpu::kind(), local_rank % count};
  }

  bool names_gpu() const { return !device.empty() && device != "cpu"; }  ///< or the simulator

  /// Throws UsageError for a device that this build does not drive.
  void check_build() const {
    const Device::Kind kind = gpu::kind().value_or(Device::Kind::cpu);
    check<UsageError>(!names_gpu() || device == Device::name_of(kind),
                      "--device {}: this build drives {}", device,
                      kind == Device::Kind::cpu ? "the cpu alone" : Device::name_of(kind));
  }
};

}  // namespace lockstep::cli
