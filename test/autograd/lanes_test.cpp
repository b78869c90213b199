// Every operation on a tape with lanes: either its gradients and its loss have the same bits on 1
// to 4 ranks, or it is refused. One of four ranks has a single row. Ranks are played one after the
// other.

#include "lockstep/core/lanes.h"

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <iterator>
#include <optional>
#include <set>

#include "lockstep/autograd/checkpoint.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/core/generator.h"
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

/// What becomes of a rank's operands, as one number.
Tensor loss_of(const OpCase& op, const std::vector<Tensor>& operands) {
  const Tensor y = op.function(operands);
  return y.rank() == 0 ? y : mean(y);
}

/// What a world of `ranks` makes of the operands: the gradients of parameters, summed, then those
/// of samples, one rank's after another's, then the losses of all lanes.
std::vector<Tensor> gradients(const OpCase& op, const std::vector<Tensor>& all,
                              const std::vector<bool>& samples, int ranks) {
  std::vector<std::vector<Tensor>> parts(all.size());
  std::vector<Tensor> losses;
  for (int rank = 0; rank < ranks; ++rank) {
    const auto own = std::make_shared<const Lanes>(rows, lanes, Shard{rank, ranks});
    std::vector<Tensor> plain(all);
    for (std::size_t i = 0; i < all.size(); ++i)
      if (samples[i]) plain[i] = all[i].slice(own->first_row(), own->first_row() + own->rows());
    const double value = loss_of(op, plain).item();
    const LaneScope scope(own);
    std::vector<Parameter> parameters(all.size());
    Tape tape;
    std::vector<Tensor> operands;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (samples[i]) {
        operands.push_back(tape.watch(of_samples(plain[i].clone())));
      } else {
        parameters[i] = Parameter(all[i].clone(), std::to_string(i));
        operands.push_back(parameters[i]);
      }
    }
    const Tensor y = loss_of(op, operands);
    if (op.name != "dropout")  // which draws others
      CHECK(y.item() == doctest::Approx(value).epsilon(1e-5).scale(1));
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
          for (const int ranks : {2, 3, 4}) {
            CAPTURE(ranks);
            const std::vector<Tensor> several = gradients(op, all, samples, ranks);
            for (std::size_t i = 0; i < one.size(); ++i) {
              CAPTURE(i);
              CHECK(equal(several[i], one[i]));
            }
          }
          kept.insert(op.name);
        } catch (const StateError& error) {
          refused.insert(op.name);  // statistics of all ranks are SyncBatchNorm's
          const std::string message = error.what();
          CHECK_MESSAGE(message.find("convert_sync_batchnorm") != std::string::npos,
                        "refused on some numbers of ranks only: ", message);
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
                                       "matmul a^T b^T",
                                       "max along",
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

TEST_CASE("lanes: in the loop, but on no tape, products and dropout have the same bits, too") {
  const Tensor x = operands(op_table()[0], {{rows, 7}}, DType::f32, test_device())[0];
  const Tensor w = operands(op_table()[0], {{5, 7}}, DType::f32, test_device())[0];
  const auto made = [&](int ranks, bool on_tape) {
    std::vector<Tensor> parts;
    for (int rank = 0; rank < ranks; ++rank) {
      const auto own = std::make_shared<const Lanes>(rows, lanes, Shard{rank, ranks});
      const LaneScope scope(own);
      std::optional<Tape> tape;
      if (on_tape) tape.emplace();
      manual_seed(1);
      const Tensor mine = of_samples(x.slice(own->first_row(), own->first_row() + own->rows()));
      const Tensor h = dropout(mine, 0.3) * 0.5;
      const Tensor y = linear(h, w, Tensor()) + matmul(h, w, {.transpose_b = true});
      parts.push_back(y.to(Device{}));
    }
    return cat(parts);
  };
  const Tensor one = made(1, true);
  for (const int ranks : {1, 2, 3, 4}) {
    CAPTURE(ranks);
    CHECK(equal(made(ranks, true), one));
    CHECK(equal(made(ranks, false), one));
  }
}

// The gradient of what is made of parameters alone is a sum over samples, and so is theirs.
TEST_CASE("lanes: what is made of parameters alone stands beside samples") {
  const Tensor all = operands(op_table()[0], {{rows, 6}}, DType::f32, test_device())[0];
  const Tensor v = operands(op_table()[0], {{6, 6}}, DType::f32, test_device())[0];
  const std::vector<std::function<Tensor(const Tensor&, const Tensor&)>> uses{
      [](const Tensor& x, const Tensor& p) { return x * exp(select(p, 0, 1)); },
      [](const Tensor& x, const Tensor& p) { return matmul(x, transpose(p)); },
      [](const Tensor& x, const Tensor& p) { return linear(linear(x, p), p / norm(p)); },
      [](const Tensor& x, const Tensor& p) { return x * sum(square(p)) + linear(x, tanh(p)); },
      [](const Tensor& x, const Tensor& p) {
        return reshape(reshape(x, {x.size(0), 3, 2}) * reshape(select(p, 0, 0), {3, 2}),
                       {x.size(0), 6});
      },
      [](const Tensor& x, const Tensor& p) {
        return checkpoint([&p](const Tensor& h) { return linear(h, p * 2.0); }, x);
      },
  };
  for (std::size_t use = 0; use < uses.size(); ++use) {
    CAPTURE(use);
    const auto gradient = [&](int ranks) {
      std::vector<Tensor> parts;
      for (int rank = 0; rank < ranks; ++rank) {
        const auto own = std::make_shared<const Lanes>(rows, lanes, Shard{rank, ranks});
        const LaneScope scope(own);
        const Parameter p(v.clone());
        Tape tape;
        const Tensor x = of_samples(all.slice(own->first_row(), own->first_row() + own->rows()));
        tape.backward(mean(square(uses[use](x, p))), Weight(own->rows(), rows));
        parts.push_back(p.gradient().to(Device{}).clone());
      }
      std::vector<const std::byte*> sources;
      for (const Tensor& part : parts) sources.push_back(part.raw());
      const Tensor sum = Tensor::empty(v.shape());
      std::byte* const to[] = {sum.raw()};
      kernels::tree_reduce(DType::f32, sources, to, sum.numel());
      return sum;
    };
    const Tensor one = gradient(1);
    for (const int ranks : {2, 3, 4}) CHECK(equal(gradient(ranks), one));
    const Parameter p(v.clone());
    Tape tape;  // without lanes: the same but for rounding
    tape.backward(mean(square(uses[use](all, p))));
    CHECK(allclose(one, p.gradient().to(Device{}), 1e-4, 1e-5));
  }
}

// checkpoint() adds up what its block makes of all samples; the number of them depends on the rank.
TEST_CASE("lanes: a sum over samples that is passed on as a whole is refused, by name") {
  for (const int ranks : {1, 2}) {
    const auto own = std::make_shared<const Lanes>(rows, lanes, Shard{0, ranks});
    const LaneScope scope(own);
    const Parameter p(Tensor::full({6, 6}, 0.25, DType::f32, test_device()));
    const Tensor x = of_samples(Tensor::full({own->rows(), 6}, 0.5, DType::f32, test_device()));
    const auto block = [](std::span<const Tensor> in) { return linear(in[0], in[1]); };
    const auto passes = [](const Tensor& a, const Tensor& b) {
      return record("passes", linear(a.detach(), b.detach()), {apart(a), shared(b)},
                    [like = b.detach()](Gradients& g) {
                      if (g.needed(0))
                        g.pass(0, Tensor::zeros(g.shape(0), DType::f32, test_device()));
                      g.pass(1, zeros_like(like));
                    });
    };
    for (const bool derived : {false, true}) {
      CAPTURE(derived);
      const auto with = [&](const auto& use) {
        Tape tape;
        const Tensor w = derived ? p * 0.3 : Tensor(p);
        tape.backward(mean(square(use(x, w))), Weight(own->rows(), rows));
      };
      CHECK_THROWS_WITH_AS(with(passes), doctest::Contains("[passes] has no lanes"), StateError);
      CHECK_THROWS_WITH_AS(with([&](const Tensor& a, const Tensor& b) {
                             return checkpoint(block, {a, b});
                           }),
                           doctest::Contains("[checkpoint] has no lanes"), StateError);
    }
  }
}

// Eigen's products of small f64 matrices depend on where these lie.
TEST_CASE("lanes: products of batches have the same bits beside any other rows") {
  for (const DType dtype : {DType::f32, DType::f64})
    for (const bool in_tape : {false, true})
      for (std::int64_t t = 1; t < 6; ++t)
        for (std::int64_t c = 1; c < 10; ++c) {
          manual_seed(static_cast<std::uint64_t>(t * 100 + c));
          const Tensor all = Tensor::randn({8, t, c}, dtype);
          std::vector<Tensor> products;
          for (const int ranks : {1, 3, 8})
            for (int rank = 0; rank < ranks; ++rank) {
              const auto own = std::make_shared<const Lanes>(8, 8, Shard{rank, ranks});
              const LaneScope scope(own);
              std::optional<Tape> tape;
              if (in_tape) tape.emplace();
              const std::int64_t first = own->first_row();
              const Tensor x = of_samples(all.slice(first, first + own->rows()).clone());
              const Tensor y = matmul(x, x, {.transpose_b = true});
              if (ranks == 1) products.push_back(y.detach());
              const Tensor part = products[0].slice(first, first + own->rows());
              CHECK(std::memcmp(part.raw(), y.raw(), y.bytes()) == 0);
            }
        }
}

TEST_CASE("lanes: a label that is none is that of a sample of the batch, not of its lane") {
  const LaneScope scope(std::make_shared<const Lanes>(8, 4, Shard{}));
  const Tape tape;
  const Tensor labels = of_samples(Tensor::of<std::int64_t>({8}, {0, 1, 2, 0, 1, 3, 0, 0}));
  CHECK_THROWS_WITH_AS(cross_entropy(of_samples(Tensor::zeros({8, 3})), labels),
                       "[cross_entropy] label 3 of sample 5 is not in 0..2 (3 classes)", DataError);
}
