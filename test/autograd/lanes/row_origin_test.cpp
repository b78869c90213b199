// What belongs to samples, and what mixes them: known by where it comes from.

#include <doctest/doctest.h>

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/rows.h"
#include "lockstep/core/generator.h"
#include "lockstep/core/lanes.h"

using namespace lockstep;

namespace row_origin {

namespace {

constexpr int lanes = 4;
constexpr std::int64_t rows = 10;  // lanes of 3, 3, 3, 1

/// The message of the StateError that f throws, or "".
template <class F>
std::string refusal(const F& f) {
  try {
    f();
  } catch (const StateError& error) {
    return error.what();
  }
  return "";
}

/// What makes x, a batch of 6 rows of 3 that no tape records, into the operand of a layer.
struct Mixed {
  const char* by;  // the operation that the refusal names
  std::function<Tensor(const Tensor&)> make;
};

/// x after it was written to.
std::function<Tensor(const Tensor&)> written(std::function<void(const Tensor&)> write) {
  return [write = std::move(write)](const Tensor& x) {
    write(x);
    return x;
  };
}

}  // namespace

// A batch is not recorded, and what is made of it is not either, before a layer uses it.
TEST_CASE("lanes: what mixes the samples of a batch is refused where a layer uses it, by name") {
  const Parameter w(Tensor::ones({4, 3}));
  const std::vector<Mixed> mixed{
      {"flip", [](const Tensor& x) { return x * 0.7 + flip(x, {0}) * 0.3; }},
      {"mean", [](const Tensor& x) { return x - mean(x, {0}); }},
      {"mean", [](const Tensor& x) { return x - mean(x); }},
      {"sum", [](const Tensor& x) { return x / sum(x, 0, keepdim); }},
      {"norm", [](const Tensor& x) { return x / (norm(x - 1.0) + 1.0); }},
      {"norm", [](const Tensor& x) { return x / norm(x); }},
      {"amax", [](const Tensor& x) { return x / amax(x, 0); }},
      {"max", [](const Tensor& x) { return x / max(x); }},
      {"index_select",
       [](const Tensor& x) {
         return index_select(x, 0, Tensor::from({5, 4, 3, 2, 1, 0}));
       }},
      {"cat",
       [](const Tensor& x) {
         return cat({x, x});
       }},
      {"slice", [](const Tensor& x) { return slice(x, 0, 0, 3); }},
      {"slice", [](const Tensor& x) { return x.slice(0, 3); }},
      {"slice",
       [](const Tensor& x) {
         return x.rows()[2].view({1, 3});
       }},
      {"slice", [](const Tensor& x) { return x + x.slice(1, 2); }},
      {"cumsum", [](const Tensor& x) { return cumsum(x, 0); }},
      {"transpose", [](const Tensor& x) { return softmax(x, 0); }},
      {"transpose", [](const Tensor& x) { return transpose(transpose(x)); }},
      {"matmul", [](const Tensor& x) { return matmul(matmul(x, x, {.transpose_b = true}), x); }},
      {"reshape",
       [](const Tensor& x) {
         return matmul(reshape(x, {9, 2}), Tensor::ones({2, 3}));
       }},
      {"triu", [](const Tensor& x) { return triu(x); }},
      {"randn_like", [](const Tensor& x) { return x + randn_like(x); }},
      {"rand_like", [](const Tensor& x) { return x + rand_like(x); }},
      {"add",
       [](const Tensor& x) {
         return x + Tensor::randn({6, 3});
       }},
      {"compare",
       [](const Tensor& x) {
         return where(x > Tensor::rand({6, 3}), x, 0.0);
       }},
      {"mean",
       [](const Tensor& x) {
         const Tensor center = Tensor::zeros({3});
         center += mean(x, 0);  // kept from step to step, perhaps
         return x - center;
       }},
      {"mean",
       [](const Tensor& x) {
         const Tensor center = Tensor::zeros({3});
         center.copy_from(mean(x, 0));
         return x - center;
       }},
      {"copy_from",
       [](const Tensor& x) {
         const Tensor bank = Tensor::zeros({12, 3});  // of samples that this rank has seen
         bank.slice(3, 9).copy_from(x);
         return matmul(matmul(x, bank, {.transpose_b = true}), bank);
       }},
      {"add",
       [](const Tensor& x) {
         const Tensor noisy = x.clone();
         noisy += Tensor::randn({6, 3});
         return noisy;
       }},
      // What is written into a part of a batch: which samples are there, depends on the rank.
      {"fill", written([](const Tensor& x) { x.slice(0, 1).fill(0); })},
      {"fill_zero", written([](const Tensor& x) { x.slice(0, 1).fill_zero(); })},
      {"set", written([](const Tensor& x) {
         x.set({0, 0}, 5);
       })},
      {"copy_from", written([](const Tensor& x) {
         x.slice(0, 1).copy_from(Tensor::ones({1, 3}));
       })},
      {"slice", written([](const Tensor& x) { x.slice(0, 1) *= 0.0; })},
      {"normal", written([](const Tensor& x) { default_generator().normal(x); })},
      {"unsqueeze",
       [](const Tensor& x) {
         return reshape(unsqueeze(x, 0), {6, 3});
       }},
      {"uniform", written([](const Tensor& x) { default_generator().uniform(x); })},
      {"normal",
       [](const Tensor& x) {
         const Tensor noise = zeros_like(x);
         default_generator().normal(noise);
         return x + noise;
       }},
      // Statistics of some samples, and what normalizes with them.
      {"slice",
       [](const Tensor& x) {
         const BatchStatistics some = batch_statistics(x.slice(0, 2));
         return x - cast(some.mean, DType::f32);
       }},
      {"mean",
       [](const Tensor& x) {
         const BatchStatistics some{.mean = cast(mean(x, {0}), DType::f64),
                                    .m2 = Tensor::ones({3}, DType::f64),
                                    .count = 6};
         return batch_norm(x, Tensor(), Tensor(), some, 1e-5);
       }},
  };
  for (const Mixed& how : mixed)
    for (const bool in_tape : {false, true}) {
      CAPTURE(how.by);
      const LaneScope scope(std::make_shared<const Lanes>(rows, lanes, Shard{0, 2}));  // 6 rows
      const Tensor x = of_samples(Tensor::of<float>(
          {6, 3}, {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18}));
      std::optional<Tape> tape;
      if (in_tape) tape.emplace();
      const Tensor made = how.make(x);  // not recorded: it may be what somebody prints
      if (!in_tape) tape.emplace();
      const std::string message = refusal([&] { (void)linear(made, w); });
      CAPTURE(message);
      CHECK(message.find(fmt::format("was made by [{}], which mixes", how.by)) !=
            std::string::npos);
      CHECK(message.starts_with("[linear] operand 0"));
    }
}

TEST_CASE("lanes: what is made of each sample alone is a sample, recorded or not") {
  const Parameter w(Tensor::ones({4, 3}));
  const LaneScope scope(std::make_shared<const Lanes>(rows, lanes, Shard{0, 2}));
  const Tensor x = of_samples(Tensor::ones({6, 3}));
  const std::vector<std::function<Tensor()>> apart{
      [&] { return x * 2.0 + Tensor::randn({3}); },
      [&] {
        return x + Tensor::randn({1, 3});
      },
      [&] { return x - mean(x, 1, keepdim); },
      [&] { return x + zeros_like(x); },
      [&] { return flip(x, {1}); },
      [&] { return where(x > 0.0, x, -x); },
      [&] {
        return x.clone().to(Device{}).view({6, 3});
      },
      [&] {
        return reshape(x, {18}).view({6, 3});
      },
      [&] { return cast(cast(x, DType::i64), DType::f32); },
      [&] {
        return slice(cat({slice(x, 1, 0, 1), x, slice(x, 1, 0, 1)}, 1), 1, 1, 4);
      },
      [&] { return softmax(x, 1); },
      [&] { return layer_norm(x); },
      [&] { return cast(one_hot(argmax(x, 1), 3), DType::f32); },
      [&] {
        return x + of_samples(Tensor::ones({6, 3}));
      },
      [&] {
        const Tensor copy = Tensor::empty({6, 3});
        copy.copy_from(x);
        return copy;
      },
      // Constants, whatever there was before.
      [&] { return x + zeros_like(mean(x, 0)); },
      [&] { return x + full_like(slice(x, 0, 0, 1), 2); },
      [&] {
        const Tensor center = mean(x, 0);
        center.fill_zero();
        return x + center;
      },
      [&] {
        const Tensor center = mean(x, 0);
        center.fill(1);
        center.set({0}, 2);
        return x + center;
      },
      [&] {
        const Tensor center = mean(x, 0);
        center.copy_from(Tensor::ones({3}));
        return x + center;
      },
      [&] {
        const Tensor same = x.clone();
        same.fill(2);
        return same;
      },
  };
  for (std::size_t i = 0; i < apart.size(); ++i) {
    CAPTURE(i);
    Tape tape;
    CHECK(refusal([&] {
            const Tensor loss = mean(square(linear(apart[i](), w)));
            tape.backward(loss, Weight(6, rows));
          }) == "");
    w.zero_grad();
  }
}

// As in a training against adversarial samples.
TEST_CASE("lanes: the gradient of samples is made of samples") {
  const Parameter w(Tensor::ones({4, 3}));
  const LaneScope scope(std::make_shared<const Lanes>(rows, lanes, Shard{0, 2}));
  Tape tape;
  const Tensor x = tape.watch(of_samples(Tensor::ones({6, 3})));
  tape.backward(mean(square(linear(x, w))), Weight(6, rows));
  const Tensor step = sign(tape.gradient(x).detach());
  Tape next;
  CHECK(refusal([&] { (void)linear(x.detach() + step * 0.1, w); }) == "");
}

// A sum over this rank's samples, which no other rank has.
TEST_CASE("lanes: the gradient of what is no sample is refused as a constant beside samples") {
  const Parameter w(Tensor::ones({4, 3}));
  const LaneScope scope(std::make_shared<const Lanes>(rows, lanes, Shard{0, 2}));
  const Tensor x = of_samples(Tensor::ones({6, 3}));
  Tape tape;
  const Tensor s = tape.watch(Tensor::ones({3}));
  tape.backward(mean(square(linear(x * s, w))), Weight(6, rows));
  const Tensor g = tape.gradient(s).detach();
  Tape next;
  CHECK(refusal([&] { (void)linear(x * g, w); }).find("was made by [gradient]") !=
        std::string::npos);
}

TEST_CASE("lanes: one sample more or less in front changes nothing: unsqueeze is refused by name") {
  const Parameter w(Tensor::ones({4, 3}));
  for (const int ranks : {1, 4}) {  // 10 rows, or 1
    const auto own = std::make_shared<const Lanes>(rows, lanes, Shard{ranks - 1, ranks});
    const LaneScope scope(own);
    Tape tape;
    const Tensor y = linear(of_samples(Tensor::ones({own->rows(), 3})), w);
    CHECK(refusal([&] { (void)unsqueeze(y, 0); }).starts_with("[unsqueeze]"));
    CHECK(refusal([&] { (void)unsqueeze(y, 1); }) == "");
  }
}

TEST_CASE("lanes: numbers are added to losses, and reshape(x, {x.size(0), -1}) takes no rows") {
  const Parameter w(Tensor::ones({4, 6}));
  for (const int rank : {0, 1}) {
    const auto own = std::make_shared<const Lanes>(1, lanes, Shard{rank, 2});  // 1 row, or none
    const LaneScope scope(own);
    Tape tape;
    const Tensor x = of_samples(Tensor::ones({own->rows(), 2, 3}));
    const Tensor flat = reshape(x, {x.size(0), -1});
    CHECK(flat.shape() == Shape{own->rows(), 6});
    CHECK(reshape(x, {x.size(0), -1, 2}).shape() == Shape{own->rows(), 3, 2});
    const Tensor loss = mean(square(linear(flat, w)));
    const double value = loss.item();
    const Tensor shifted = 0.5 + loss - 2.0;
    CHECK(shifted.item() == value - 1.5);
    if (rank == 0) CHECK(lane_losses(shifted).item({0}) == lane_losses(loss).item({0}) - 1.5);
    tape.backward(shifted, Weight(static_cast<double>(own->rows()), 1));
  }
}

// Its size says nothing: whatever a rank's number of samples is, and whoever asks.
TEST_CASE("lanes: numbers that belong to no sample are drawn in any world") {
  for (const int ranks : {1, 2, 3, 4})
    for (int rank = 0; rank < ranks; ++rank) {
      const auto own = std::make_shared<const Lanes>(rows, lanes, Shard{rank, ranks});
      const LaneScope scope(own);
      const std::int64_t n = own->rows();
      const Parameter w(Tensor::ones({n, 3}));
      Tape tape;
      const Tensor x = of_samples(Tensor::ones({n, 3}));
      const Tensor noisy = matmul(x, w + Tensor::randn({n, 3}), {.transpose_b = true});
      tape.backward(mean(noisy * Tensor::rand({n})), Weight(n, rows));
      CHECK(w.gradient().shape() == Shape{n, 3});
      // Beside samples, such a constant has a row for each.
      if (n == 1) continue;
      Tape other;
      const std::string message = refusal([&] { (void)(linear(x, w) + Tensor::randn({n, n})); });
      CHECK(message.find("has a row for each sample of this rank") != std::string::npos);
      CHECK(message.find("of_samples(x)") != std::string::npos);
    }
}

TEST_CASE(
    "lanes: an operation that does not say what it does with rows is refused beside samples") {
  const LaneScope scope(std::make_shared<const Lanes>(rows, lanes, Shard{}));
  const Parameter w(Tensor::ones({3}));
  Tape tape;
  const auto silent = [](const Tensor& x) {
    return record("silent", x.detach().clone(), {&x}, [](Gradients& g) { g.pass(0, g.output()); });
  };
  (void)silent(w);
  const Tensor h = of_samples(Tensor::ones({rows, 3})) * w;
  CHECK(refusal([&] { (void)silent(h); }).starts_with("[silent] does not say what it does"));
}

// Its storage is not new where an operation returns its operand, of whatever size.
TEST_CASE("lanes: what mixes nothing leaves a rank without samples its batch") {
  const LaneScope scope(std::make_shared<const Lanes>(1, lanes, Shard{1, 2}));  // none
  const Parameter w(Tensor::ones({4, 3}));
  const Tensor x = of_samples(Tensor::zeros({0, 3}));
  (void)reshape(x, {3, 0});  // which is no row of samples
  CHECK(x.row_origin().is_samples());
  Tape tape;
  CHECK(refusal([&] { (void)linear(x, w); }) == "");
}

TEST_CASE("a mixed origin keeps the operation's name") {
  RowOrigin origin;
  {
    const std::string name = fmt::format("an operation of {} letters", 100);
    origin = RowOrigin::mixed(name);
    CHECK(RowOrigin::mixed(name) == origin);
  }
  CHECK(origin.mixed_by() == "an operation of 100 letters");
  CHECK(RowOrigin::mixed("another") != origin);
}

// How many rows a rank has must not move the streams that all ranks share.
TEST_CASE("lanes: random streams go on by as much, whatever a rank's number of samples is") {
  const auto after = [](int rank) {
    const auto own = std::make_shared<const Lanes>(rows, lanes, Shard{rank, 2});
    const LaneScope scope(own);
    manual_seed(5);
    const Tensor x = of_samples(Tensor::ones({own->rows(), 3}));
    (void)rand_like(x);
    (void)randn_like(x - mean(x, 0));
    (void)dropout(x, 0.5);
    (void)dropout(x - mean(x, 0), 0.5);
    return std::pair(Tensor::rand({4}).to_vector<float>(),
                     dropout(Tensor::ones({64}), 0.5).to_vector<float>());
  };
  CHECK(after(0) == after(1));  // 6 and 4 rows
}

}  // namespace row_origin
