/// wgmma: the products that threads have issued and not waited for.

#include "lockstep/simt/include/simt/warpgroup.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <list>
#include <utility>
#include <vector>

#include "lockstep/simt/counters/observer.h"
#include "lockstep/simt/execution/limits.h"
#include "lockstep/simt/include/simt/warp.h"

namespace simt::detail {
namespace {

/// The sums of a thread that belong to products under way. In their place the thread has NaN.
struct HeldSums {
  WgmmaSums place;
  float values[most_wgmma_columns / 8][4];
  int products = 0;  ///< under way
};

struct Product {
  HeldSums* sums;
  std::uint64_t a, b;
  ReadOperands read;

  bool same_instruction(const Product& other) const {
    return a == other.a && b == other.b && read == other.read &&
           sums->place.columns == other.sums->place.columns;
  }
};
using Products = std::vector<Product>;

/// What a lane brings to a wait.
struct Turn {
  Products products;
  int warp;  ///< of the four
};

/// sums += A B for the rows of one warp.
void multiply(const std::array<HeldSums*, 32>& sums, const WgmmaNumbers& numbers) {
  for (int row = 0; row < 16; ++row) {
    // Where row and column are in a thread's sums: figures 149 and 151 in 9.7.15.5.1.1.
    const auto place = [&](int column) -> float& {
      return sums[row % 8 * 4 + column % 8 / 2]->values[column / 8][row / 8 * 2 + column % 2];
    };
    double sum[most_wgmma_columns];
    for (int column = 0; column < numbers.width; ++column)
      sum[column] = static_cast<double>(place(column));
    for (int k = 0; k < numbers.depth; ++k)
      for (int column = 0; column < numbers.width; ++column)
        sum[column] += numbers.rows[row][k] * numbers.columns[k][column];
    for (int column = 0; column < numbers.width; ++column) place(column) = cut_off(sum[column]);
  }
}

const char* compute_all(const void* const* turns) {
  const auto turn_of = [turns](int lane) -> const Turn& {
    return *static_cast<const Turn*>(turns[lane]);
  };
  const Products& products = turn_of(0).products;
  for (int lane = 1; lane < 32; ++lane)
    if (turn_of(lane).products.size() != products.size())
      return "wgmma.wait_group: lanes of a warp wait for different products";
  for (std::size_t i = 0; i < products.size(); ++i) {
    std::array<HeldSums*, 32> sums;
    for (int lane = 0; lane < 32; ++lane) {
      const Product& product = turn_of(lane).products[i];
      if (!product.same_instruction(products[i]))
        return "wgmma: lanes of a warp gave different descriptors";
      sums[lane] = product.sums;
    }
    static WgmmaNumbers numbers;  // one warp at a time computes
    numbers.width = products[i].sums->place.columns;
    if (!products[i].read(numbers, products[i].a, products[i].b, turn_of(0).warp))
      return "wgmma: a descriptor of unknown kind, or of what is not in shared memory";
    // A warp reads its 16 rows; the columns are read once for all four.
    counters::operands(32 * (16 + numbers.width / 4));  // each 32 bytes along k
    multiply(sums, numbers);
  }
  return nullptr;
}

void compute(AnyFunction, const void* const* turns, void* const* results, unsigned present) {
  const char* problem = present == ~0u ? compute_all(turns) : "wgmma: a lane has ended";
  for (int lane = 0; lane < 32; ++lane)
    if (present >> lane & 1u) *static_cast<const char**>(results[lane]) = problem;
}

/// Of one thread.
class PendingProducts {
 public:
  /// Of the running thread. What an earlier block left behind is dropped.
  static PendingProducts& mine() {
    static std::array<PendingProducts, limits::cluster_threads> all;
    PendingProducts& pending = all[linear_thread()];
    if (pending.cluster_ != clusters_begun()) pending = {};
    pending.cluster_ = clusters_begun();
    return pending;
  }

  void fence() { fenced_ = true; }

  void issue(WgmmaSums sums, std::uint64_t a, std::uint64_t b, ReadOperands read) {
    if (!fenced_)
      fail_thread("wgmma.mma_async without a wgmma.fence since the thread's last access to sums");
    HeldSums& held = hold(sums);
    ++held.products;
    open_.push_back({&held, a, b, read});
  }

  void commit() {
    groups_.push_back(std::move(open_));
    open_.clear();
  }

  void wait(std::size_t unfinished) {
    fenced_ = false;  // the thread may use sums from here on
    Turn turn{{}, static_cast<int>(linear_thread() / 32 % 4)};
    for (; groups_.size() > unfinished; groups_.erase(groups_.begin()))
      turn.products.insert(turn.products.end(), groups_.front().begin(), groups_.front().end());
    const char* problem = nullptr;
    warp_rendezvous("wgmma.wait_group", ~0u, &turn, &problem, nullptr, compute);
    if (problem) fail_thread(problem);
    for (const Product& product : turn.products) --product.sums->products;
    held_.remove_if([](const HeldSums& held) {
      if (held.products > 0) return false;
      check_untouched(held);
      std::memcpy(held.place.values, held.values, held.place.bytes());
      return true;
    });
  }

  void end() const {
    if (!open_.empty()) fail_thread("wgmma.mma_async without a wgmma.commit_group before the end");
    if (!groups_.empty())
      fail_thread("wgmma.commit_group without a wgmma.wait_group before the end");
  }

 private:
  HeldSums& hold(WgmmaSums sums) {
    for (HeldSums& held : held_) {
      if (held.place.values != sums.values) continue;
      if (held.place.columns != sums.columns)
        fail_thread("wgmma: products of different widths use the same sums");
      check_untouched(held);
      return held;
    }
    held_.push_back({.place = sums, .values = {}});
    std::memcpy(held_.back().values, sums.values, sums.bytes());
    std::memset(static_cast<void*>(sums.values), 0xff, sums.bytes());
    return held_.back();
  }

  static void check_untouched(const HeldSums& held) {
    const auto* bytes = reinterpret_cast<const unsigned char*>(held.place.values);
    if (!std::all_of(bytes, bytes + held.place.bytes(),
                     [](unsigned char byte) { return byte == 0xff; }))
      fail_thread("wgmma: sums were written before the wait for their product");
  }

  std::uint64_t cluster_ = 0;
  bool fenced_ = false;
  std::list<HeldSums> held_;
  Products open_;
  std::vector<Products> groups_;
};

}  // namespace

void fence_products() { PendingProducts::mine().fence(); }

void issue_product(WgmmaSums sums, std::uint64_t a, std::uint64_t b, ReadOperands read) {
  PendingProducts::mine().issue(sums, a, b, read);
}

void commit_products() { PendingProducts::mine().commit(); }

void wait_products(std::size_t unfinished) { PendingProducts::mine().wait(unfinished); }

void end_products() { PendingProducts::mine().end(); }

}  // namespace simt::detail
