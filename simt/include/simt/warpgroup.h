#pragma once
/// PTX's wgmma (PTX ISA 9.0, section 9.7.15): products by the four warps of a warpgroup, whose
/// operands are found in shared memory by the very bits of their descriptors.
///
/// A product is computed as late as it may be: when its thread waits for its group. Until then its
/// sums hold a NaN pattern. So a kernel whose operands are overwritten, or whose sums are read,
/// before that gets a wrong result here; one that writes sums, or ends, before that is reported.
/// Each warp computes its own 16 of the 64 rows. Sums are made as in tensor_core.h.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cluster.h"
#include "tensor_core.h"

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

constexpr int most_wgmma_columns = 256;

/// The operands of one warp's part of a product, as numbers.
struct WgmmaNumbers {
  int width, depth;  ///< columns, and their length
  double rows[16][16], columns[16][most_wgmma_columns];
};

/// Reads them where the descriptors say; `width` is given. False if an operand is not in shared
/// memory.
template <class T, bool a_mn_major, bool b_mn_major>
bool read_operands(WgmmaNumbers& numbers, std::uint64_t a, std::uint64_t b, int warp) {
  using Bits = typename WgmmaType<T>::Bits;
  numbers.depth = 32 / sizeof(T);
  const WgmmaOperand left(a, a_mn_major), right(b, b_mn_major);
  const auto read = [](const WgmmaOperand& operand, int mn, int k, double& value) {
    const std::byte* place = operand.at(mn, k, sizeof(Bits));
    if (!place) return false;
    Bits bits;
    std::memcpy(&bits, place, sizeof bits);
    value = WgmmaType<T>::number(bits, 0);
    return true;
  };
  for (int k = 0; k < numbers.depth; ++k) {
    for (int row = 0; row < 16; ++row)
      if (!read(left, 16 * warp + row, k, numbers.rows[row][k])) return false;
    for (int column = 0; column < numbers.width; ++column)
      if (!read(right, column, k, numbers.columns[k][column])) return false;
  }
  return true;
}

/// Those of a thread.
struct WgmmaSums {
  float (*values)[4];  ///< [columns / 8][4]
  int columns;

  std::size_t bytes() const { return sizeof(float) * columns / 2; }
};
using ReadOperands = bool (*)(WgmmaNumbers& numbers, std::uint64_t a, std::uint64_t b, int warp);

// By the running thread (execution/warpgroup.cpp):
/// wgmma.fence: what the thread did with the registers of sums comes before the products.
void fence_products();
void issue_product(WgmmaSums sums, std::uint64_t a, std::uint64_t b, ReadOperands read);
void commit_products();
/// All threads of the warp come here together (`.sync.aligned`), and compute together.
void wait_products(std::size_t unfinished);
/// Fails the thread, which ends, if it has products that it has not waited for.
void end_products();

}  // namespace simt::detail
