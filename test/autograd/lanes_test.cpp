// Every operation on a tape with lanes: either its gradients have the same bits on 1, 2 and 3
// ranks, or it is refused. Ranks are played one after the other.

#include "lockstep/core/lanes.h"

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <set>

#include "lockstep/autograd/lanes/lane_losses.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/kernels/tree_reduce.h"
#include "support/device.h"
#include "support/op_table.h"

using namespace lockstep;
using test::test_device;

namespace {

constexpr int lanes = 4;
constexpr std::int64_t rows = 10;  // lanes of 3, 3, 3, 1

/// Which operands are samples: those that begin with the dimension that the first one begins with.
std::vector<bool> sampled(const std::vector<Shape>& shapes, std::size_t first) {
  std::vector<bool> result;
  for (const Shape& shape : shapes)
    result.push_back(shape.rank() > 0 && shape.rank() >= shapes[first].rank() &&
                     shape[0] == shapes[first][0]);
  return result;
}

/// What a world of `ranks` makes of the operands: the gradients of parameters, summed, then those
/// of samples, one rank's after another's, then the losses of all lanes.
std::vector<Tensor> gradients(const OpCase& op, const std::vector<Tensor>& all,
                              const std::vector<bool>& samples, int ranks) {
  std::vector<std::vector<Tensor>> parts(all.size());
  std::vector<Tensor> losses;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto own = std::make_shared<const Lanes>(rows, lanes, Shard{rank, ranks});
    const LaneScope scope(own);
    std::vector<Parameter> parameters(all.size());
    Tape tape;
    std::vector<Tensor> operands;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (samples[i]) {
        const std::int64_t begin = own->first_row();
        operands.push_back(tape.watch(all[i].slice(begin, begin + own->rows()).clone()));
      } else {
        parameters[i] = Parameter(all[i].clone(), std::to_string(i));
        operands.push_back(parameters[i]);
      }
    }
    Tensor y = op.function(operands);
    if (y.numel() != 1 || y.rank() > 0) y = mean(y);
    tape.backward(y, Weight(own->rows(), rows));
    losses.push_back(lane_losses(y).to(Device{}));
    for (std::size_t i = 0; i < all.size(); ++i) {
      Tensor g = samples[i] ? tape.gradient(operands[i]) : parameters[i].gradient();
      if (!g.defined()) g = Tensor::zeros(operands[i].shape(), operands[i].dtype());
      parts[i].push_back(g.to(Device{}).clone());
    }
  }
  std::vector<Tensor> result;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (samples[i]) {
      result.push_back(cat(parts[i]));
      continue;
    }
    std::vector<const std::byte*> sources;
    for (const Tensor& part : parts[i]) sources.push_back(part.raw());
    result.push_back(Tensor::empty(parts[i][0].shape(), parts[i][0].dtype()));
    std::byte* const sum[] = {result.back().raw()};
    if (result.back().numel() > 0)
      kernels::tree_reduce(result.back().dtype(), sources, sum, result.back().numel());
  }
  result.push_back(cat(losses));
  return result;
}

bool equal(const Tensor& a, const Tensor& b) {
  return a.shape() == b.shape() && std::memcmp(a.raw(), b.raw(), a.bytes()) == 0;
}

}  // namespace

TEST_CASE("lanes: every operation has the same bits on any number of ranks, or is refused") {
  // Their labels and indices depend on a row's place in the operand: other ranks have others.
  const std::set<std::string> by_place{"cross_entropy", "cross_entropy with options", "gather"};
  std::set<std::string> kept, refused;
  for (const OpCase& op : op_table())
    for (std::vector<Shape> shapes : op.shapes)
      for (std::size_t first = 0; first < shapes.size(); ++first) {
        if (shapes[first].rank() == 0 || shapes[first][0] == 0) continue;
        if (by_place.contains(op.name)) continue;
        const std::vector<bool> samples = sampled(shapes, first);
        std::vector<Shape> wide = shapes;
        for (std::size_t i = 0; i < wide.size(); ++i)
          if (samples[i]) wide[i] = wide[i].with(0, 1, {rows});
        INFO(title(op, wide));
        std::vector<Tensor> one;
        const std::vector<Tensor> all = operands(op, wide, DType::f32, test_device());
        try {
          one = gradients(op, all, samples, 1);
        } catch (const ShapeError&) {
          continue;  // the operands do not fit each other any more
        } catch (const StateError&) {
          refused.insert(op.name);
          continue;
        }
        try {
          for (const int ranks : {2, 3}) {
            CAPTURE(ranks);
            const std::vector<Tensor> several = gradients(op, all, samples, ranks);
            for (std::size_t i = 0; i < one.size(); ++i) {
              CAPTURE(i);
              CHECK(equal(several[i], one[i]));
            }
          }
          kept.insert(op.name);
        } catch (const StateError&) {  // no rank goes on
          refused.insert(op.name);
        }
      }
  // Whoever adds an operation decides what it is here.
  std::set<std::string> always;
  std::ranges::set_difference(refused, kept, std::inserter(always, always.end()));
  const std::set<std::string> expected{"amin",
                                       "batch_norm",
                                       "batch_norm without weight and bias",
                                       "embedding",
                                       "flip",
                                       "matmul a^T b",
                                       "log_softmax of columns",
                                       "matmul of transposed batches",
                                       "matmul a^T b^T",
                                       "matmul of vectors",
                                       "max along",
                                       "outer",
                                       "permute",
                                       "softmax of columns",
                                       "stdev",
                                       "triu",
                                       "sum of outer dimensions",
                                       "sum of rows",
                                       "transpose of two"};
  CHECK(fmt::format("{}", fmt::join(always, ", ")) == fmt::format("{}", fmt::join(expected, ", ")));
  CHECK(kept.size() + always.size() + by_place.size() > 80);
}
