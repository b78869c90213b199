#pragma once
/// PTX's setmaxnreg (PTX ISA 9.0, section 9.7.19.5): threads of a block give registers back, and
/// others wait until enough are free. Registers themselves are not counted here: a block begins
/// with as many per thread as its size allows, which ptxas gives a kernel with setmaxnreg.

#include <array>
#include <cstdint>
#include <string>

#include "cluster.h"
#include "language.h"
#include "tensor_core.h"
#include "warp.h"

namespace simt::detail {

class Registers {
 public:
  /// Of the running thread's block. What an earlier block left behind is dropped.
  static Registers& mine() {
    static std::array<Registers, 16> all;  // by rank in the cluster
    Registers& registers = all[cluster_rank()];
    if (registers.cluster_ != clusters_begun()) {
      const int threads = static_cast<int>(blockDim.x * blockDim.y * blockDim.z);
      registers.cluster_ = clusters_begun();
      registers.free_ = 0;
      registers.held_.fill(in_block / threads / 8 * 8);
    }
    return registers;
  }

  void give(int count) {
    meet("setmaxnreg.dec");
    int& held = this->held();
    if (count > held)
      fail_thread("setmaxnreg.dec to " + std::to_string(count) +
                  " registers of a thread that has " + std::to_string(held));
    free_ += held - count;
    held = count;
    wake(this);
  }

  void take(int count) {
    meet("setmaxnreg.inc");
    int& held = this->held();
    if (count < held)
      fail_thread("setmaxnreg.inc to " + std::to_string(count) +
                  " registers of a thread that has " + std::to_string(held));
    while (free_ < count - held) {
      wanted_ = count - held;
      wait_for("setmaxnreg.inc", this, describe);
    }
    free_ -= count - held;
    held = count;
  }

 private:
  static constexpr int in_block = 65536;

  /// The whole warp executes it together (`.sync.aligned`).
  static void meet(const char* name) {
    whole_warp<char, char>(name, 0, [](const std::array<char, 32>&, int) -> char { return 0; });
  }

  int& held() { return held_[linear_thread()]; }

  static std::string describe(const void* registers) {
    const auto& it = *static_cast<const Registers*>(registers);
    return "for " + std::to_string(it.wanted_) + " more registers, and its block has " +
           std::to_string(it.free_) + " free";
  }

  std::uint64_t cluster_ = 0;
  int free_ = 0, wanted_ = 0;
  std::array<int, 4096> held_{};  ///< by thread of the cluster (limits::cluster_threads)
};

}  // namespace simt::detail
