#include "lockstep/kernels/backend/lanes_apart.h"

#include <vector>

#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/tree_reduce.h"

namespace lockstep::kernels {
namespace {

constexpr std::size_t most_sources = 16;  // of tree_reduce on a GPU

void add_up(const std::vector<Tensor>& sources, const Tensor& out) {
  std::vector<const std::byte*> pointers;
  for (const Tensor& source : sources) pointers.push_back(source.raw());
  std::byte* const to = out.raw();
  tree_reduce(out.dtype(), pointers, {&to, 1}, out.numel(), out.device());
}

// A tree of a power of two is the tree over its branches.
void multiply(const Tensor& a, const Tensor& b, const Tensor& out,
              std::span<const std::int64_t> lanes) {
  const std::size_t count = lanes.size() - 1, branches = std::min(count, most_sources);
  if (count == 1)
    return matmul(a.slice(lanes[0], lanes[1]), b.slice(lanes[0], lanes[1]), out,
                  {.transpose_a = true});
  std::vector<Tensor> parts;
  for (std::size_t i = 0; i < branches; ++i) {
    parts.push_back(Tensor::empty(out.shape(), out.dtype(), out.device()));
    multiply(a, b, parts[i], lanes.subspan(i * count / branches, count / branches + 1));
  }
  add_up(parts, out);
}

}  // namespace

void matmul_lanes_apart(const Tensor& a, const Tensor& b, const Tensor& out,
                        std::span<const std::int64_t> lanes, bool accumulate) {
  if (!accumulate) return multiply(a.detach(), b.detach(), out, lanes);
  const Tensor sum = Tensor::empty(out.shape(), out.dtype(), out.device());
  multiply(a.detach(), b.detach(), sum, lanes);
  add_up({out, sum}, out);
}

}  // namespace lockstep::kernels
