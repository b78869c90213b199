#pragma once
/// PTX's wgmma (PTX ISA 9.0, section 9.7.15): products by the four warps of a warpgroup, whose
/// operands are found in shared memory by the very bits of their descriptors.
///
/// A product is computed as late as it may be: when its thread waits for its group. So a kernel
/// whose operands are overwritten, or whose sums are used, before that gets a wrong result here.
/// Each warp computes its own 16 of the 64 rows. Sums are made as in tensor_core.h.

#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <vector>

#include "cluster.h"
#include "tensor_core.h"
#include "warp.h"

namespace simt::detail {

/// An operand's elements, as its descriptor says (9.7.15.5.1.2.2): 128-byte swizzle alone is known.
class WgmmaOperand {
 public:
  WgmmaOperand(std::uint64_t descriptor, bool mn_major)
      : start_(field(descriptor, 0)),
        leading_(field(descriptor, 16)),
        stride_(field(descriptor, 32)),
        mn_major_(mn_major),
        known_(descriptor >> 46 == 1u << 16),  // the swizzle; base offset 0, all else 0
        memory_(shared_memory_of(cluster_rank())) {}

  /// The element at mn (row of A, column of B) and k; null if that is not in shared memory. With T
  /// elements in 16 bytes the layouts are (9.7.15.5.1.2.1.3), in elements:
  ///   K-major    ((8,m),(T,2k)):((8T,SBO),(1,T))
  ///   MN-major   ((T,8,m),(8,k)):((1,T,LBO),(8T,SBO))
  const std::byte* at(int mn, int k, int bytes) const {
    const int across = 128 / bytes;  // 8T
    const std::uint32_t place =
        mn_major_ ? mn % across * bytes + mn / across * leading_ + k % 8 * 128 + k / 8 * stride_
                  : mn % 8 * 128 + mn / 8 * stride_ + k * bytes;
    std::uint32_t address = start_ + place;
    address ^= (address >> 7 & 7) << 4;
    const std::size_t offset = std::size_t{address} - shared_base;
    return !known_ || address < shared_base || offset + bytes > memory_.bytes
               ? nullptr
               : memory_.data + offset;
  }

 private:
  static std::uint32_t field(std::uint64_t descriptor, int bit) {
    return static_cast<std::uint32_t>(descriptor >> bit & 0x3fff) << 4;
  }

  std::uint32_t start_, leading_, stride_;
  bool mn_major_, known_;
  SharedMemory memory_;
};

template <class T>
struct WgmmaType : Of16Bits<T> {
  using Bits = std::uint16_t;
};
template <>
struct WgmmaType<float> : Tf32 {
  using Bits = std::uint32_t;
};

constexpr int wgmma_columns = 256;
using WarpSums = std::array<float (*)[4], 32>;  ///< of each thread: [wgmma_columns / 8][4]

/// sums += A B for the rows of one warp of four. False if an operand is not in shared memory.
template <class T, bool a_mn_major, bool b_mn_major>
bool multiply_warp(const WarpSums& sums, std::uint64_t a, std::uint64_t b, int warp) {
  using Bits = typename WgmmaType<T>::Bits;
  constexpr int depth = 32 / sizeof(T);
  const WgmmaOperand left(a, a_mn_major), right(b, b_mn_major);
  const auto read = [](const WgmmaOperand& operand, int mn, int k, double& value) {
    const std::byte* place = operand.at(mn, k, sizeof(Bits));
    if (!place) return false;
    Bits bits;
    std::memcpy(&bits, place, sizeof bits);
    value = WgmmaType<T>::number(bits, 0);
    return true;
  };
  double rows[16][depth];
  static double columns[depth][wgmma_columns];  // one warp at a time computes
  for (int k = 0; k < depth; ++k) {
    for (int row = 0; row < 16; ++row)
      if (!read(left, 16 * warp + row, k, rows[row][k])) return false;
    for (int column = 0; column < wgmma_columns; ++column)
      if (!read(right, column, k, columns[k][column])) return false;
  }
  for (int row = 0; row < 16; ++row) {
    // Where row and column are in a thread's sums: figures 149 and 151 in 9.7.15.5.1.1.
    const auto place = [&](int column) -> float& {
      return sums[row % 8 * 4 + column % 8 / 2][column / 8][row / 8 * 2 + column % 2];
    };
    double sum[wgmma_columns];
    for (int column = 0; column < wgmma_columns; ++column)
      sum[column] = static_cast<double>(place(column));
    for (int k = 0; k < depth; ++k)
      for (int column = 0; column < wgmma_columns; ++column)
        sum[column] += rows[row][k] * columns[k][column];
    for (int column = 0; column < wgmma_columns; ++column) place(column) = cut_off(sum[column]);
  }
  return true;
}

struct WarpgroupProduct {
  float (*sums)[4];
  std::uint64_t a, b;
  bool (*multiply)(const WarpSums& sums, std::uint64_t a, std::uint64_t b, int warp);

  bool same_instruction(const WarpgroupProduct& other) const {
    return a == other.a && b == other.b && multiply == other.multiply;
  }
};
using WarpgroupProducts = std::vector<WarpgroupProduct>;

/// The products that one thread has issued and not waited for.
class PendingProducts {
 public:
  /// Of the running thread. What an earlier block left behind is dropped.
  static PendingProducts& mine() {
    static std::array<PendingProducts, 1024> all;  // the most threads of a block, or cluster
    PendingProducts& pending = all[linear_thread()];
    if (pending.cluster_ != clusters_begun()) pending = {};
    pending.cluster_ = clusters_begun();
    return pending;
  }

  /// wgmma.fence: what the thread did with the registers of sums comes before the products.
  void fence() { fenced_ = true; }

  void issue(const WarpgroupProduct& product) {
    if (!fenced_)
      fail_thread("wgmma.mma_async without a wgmma.fence since the thread's last access to sums");
    open_.push_back(product);
  }

  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }

  /// All threads of the warp come here together (`.sync.aligned`), and compute together.
  void wait(std::size_t unfinished) {
    fenced_ = false;  // the thread may use sums from here on
    Turn turn{{}, static_cast<int>(linear_thread() / 32 % 4)};
    for (; groups_.size() > unfinished; groups_.erase(groups_.begin()))
      turn.products.insert(turn.products.end(), groups_.front().begin(), groups_.front().end());
    const char* problem = nullptr;
    warp_rendezvous("wgmma.wait_group", ~0u, &turn, &problem, nullptr, compute);
    if (problem) fail_thread(problem);
  }

 private:
  struct Turn {
    WarpgroupProducts products;
    int warp;  ///< of the four
  };

  static const char* compute_all(const void* const* turns) {
    const auto turn_of = [turns](int lane) -> const Turn& {
      return *static_cast<const Turn*>(turns[lane]);
    };
    const WarpgroupProducts& products = turn_of(0).products;
    for (int lane = 1; lane < 32; ++lane)
      if (turn_of(lane).products.size() != products.size())
        return "wgmma.wait_group: lanes of a warp wait for different products";
    for (std::size_t i = 0; i < products.size(); ++i) {
      WarpSums sums;
      for (int lane = 0; lane < 32; ++lane) {
        const WarpgroupProduct& product = turn_of(lane).products[i];
        if (!product.same_instruction(products[i]))
          return "wgmma: lanes of a warp gave different descriptors";
        sums[lane] = product.sums;
      }
      if (!products[i].multiply(sums, products[i].a, products[i].b, turn_of(0).warp))
        return "wgmma: a descriptor of unknown kind, or of what is not in shared memory";
    }
    return nullptr;
  }

  static void compute(AnyFunction, const void* const* turns, void* const* results,
                      unsigned present) {
    const char* problem = present == ~0u ? compute_all(turns) : "wgmma: a lane has ended";
    for (int lane = 0; lane < 32; ++lane)
      if (present >> lane & 1u) *static_cast<const char**>(results[lane]) = problem;
  }

  std::uint64_t cluster_ = 0;
  bool fenced_ = false;
  WarpgroupProducts open_;
  std::vector<WarpgroupProducts> groups_;
};

}  // namespace simt::detail
