// What docs/from_pytorch.md shows beside PyTorch's: layers.inc, training.inc and ranks.inc, against
// what PyTorch gives (make_programs.py).
//
//   PAIR(theirs, ours)      two expressions
//   FILLS(theirs, ours)     ours is a statement that fills w; theirs returns it
//   PROGRAM(theirs, {...})  the value of the last line
//   RANKS(theirs, {...})    the same on two ranks, whose data differ
//   COMPILED(theirs, {...}) not run here; a comment says which test does
//
// They find: x (8, 4) in [-2, 2) and t (8, 3) in [0, 1), f32; y (8,) in 0 .. 2, i64; w (5, 4) to be
// filled; model = Sequential(Linear(4, 5), Tanh, Linear(5, 3)), made after manual_seed(0), after
// which manual_seed(1) is called; fit(optimizer): three steps on (x, y).

#include <doctest/doctest.h>
#include <fmt/core.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "lockstep/lockstep.h"

using namespace lockstep;

namespace {

/// What a row comes to: all its numbers, one after another.
struct Value {
  template <class Number>
  requires std::is_arithmetic_v<Number> Value(Number number)
      : numbers{static_cast<double>(number)} {}
  Value(const Tensor& tensor)
      : numbers(cast(tensor.detach().to(Device{}), DType::f64).to_vector<double>()) {}
  Value(const std::vector<Tensor>& tensors) {
    for (const Tensor& tensor : tensors) append(tensor);
  }
  Value(std::initializer_list<Value> parts) {
    for (const Value& part : parts) append(part);
  }
  void append(const Value& part) {
    numbers.insert(numbers.end(), part.numbers.begin(), part.numbers.end());
  }
  std::vector<double> numbers{};
};

std::vector<Tensor> values_of(nn::Module& model) {
  std::vector<Tensor> values;
  for (const Parameter& parameter : model.parameters()) values.push_back(parameter.value());
  return values;
}

template <class F>
double sum_of(const std::vector<Parameter>& parameters, F number) {
  double result = 0;
  for (const Parameter& parameter : parameters) result += static_cast<double>(number(parameter));
  return result;
}

/// As make_programs.py draws it.
Tensor draw_program_data(int seed, const Shape& shape, double low, double width) {
  const Tensor result = Tensor::empty(shape, DType::f64);
  for (std::int64_t e = 0; e < result.numel(); ++e) {
    const auto drawn = static_cast<double>((seed * 7919 + e * 104729 + 12345) % 10007) / 10007;
    result.data<double>()[e] = low + width * drawn;
  }
  return result;
}

/// What the rows find.
struct Setting {
  explicit Setting(World& world_)
      : world(world_),
        x(cast(draw_program_data(1 + 50 * world.rank(), {8, 4}, -2, 4), DType::f32)),
        y(cast(draw_program_data(2 + 50 * world.rank(), {8}, 0, 3), DType::i64)),
        t(cast(draw_program_data(3 + 50 * world.rank(), {8, 3}, 0, 1), DType::f32)),
        w(Tensor::zeros({5, 4})) {
    manual_seed(0);
    model = nn::Sequential{nn::Linear(4, 5), nn::Tanh(), nn::Linear(5, 3)};
    manual_seed(1);
  }
  std::vector<Tensor> fit(optim::Optimizer& optimizer) {
    for (int step = 0; step < 3; ++step) {
      Tape tape;
      tape.backward(cross_entropy(model(x), y));
      optimizer.step();
      optimizer.zero_grad();
    }
    return values_of(model);
  }

  World& world;
  Tensor x, y, t, w;
  nn::Sequential model{};
};

struct Row {
  std::string text;
  int ranks;
  std::function<Value(Setting&)> ours;
};

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"

#define LOCKSTEP_NAMES                                                                    \
  [[maybe_unused]] World& world = setting.world;                                          \
  [[maybe_unused]] Tensor &x = setting.x, &y = setting.y, &t = setting.t, &w = setting.w; \
  [[maybe_unused]] nn::Sequential& model = setting.model;                                 \
  [[maybe_unused]] const auto fit = [&](auto&& optimizer) { return setting.fit(optimizer); };

#define LOCKSTEP_ROW(text, ranks, ...)                          \
  table.push_back({text, ranks, [](Setting& setting) -> Value { \
                     LOCKSTEP_NAMES                             \
                     __VA_ARGS__                                \
                   }});
#define PAIR(text, ...) LOCKSTEP_ROW(text, 1, return Value(__VA_ARGS__);)
#define FILLS(text, ...) LOCKSTEP_ROW(text, 1, __VA_ARGS__; return Value(w);)
#define PROGRAM(text, ...) LOCKSTEP_ROW(text, 1, __VA_ARGS__)
#define RANKS(text, ...) LOCKSTEP_ROW(text, 2, __VA_ARGS__)
#define COMPILED(text, ...)                         \
  static_cast<void>([](Setting& setting) {          \
    LOCKSTEP_NAMES                                  \
    data::TensorDataset mine({{"x", x}, {"y", y}}); \
    __VA_ARGS__                                     \
  });

std::vector<Row> layer_rows() {
  std::vector<Row> table;
#include "vocabulary/layers.inc"
  return table;
}

std::vector<Row> training_rows() {
  std::vector<Row> table;
#include "vocabulary/training.inc"
  return table;
}

std::vector<Row> rank_rows() {
  std::vector<Row> table;
#include "vocabulary/ranks.inc"
  return table;
}

#undef COMPILED
#undef RANKS
#undef PROGRAM
#undef FILLS
#undef PAIR
#undef LOCKSTEP_ROW
#undef LOCKSTEP_NAMES
#pragma GCC diagnostic pop

void check_row(const Row& row, const nlohmann::json& values) {
  REQUIRE(values.size() == static_cast<std::size_t>(row.ranks));
  std::vector<std::vector<double>> mine(values.size());
  run_threads(row.ranks, {}, [&](World& world) {
    Setting setting(world);
    mine[static_cast<std::size_t>(world.rank())] = row.ours(setting).numbers;
  });
  for (std::size_t rank = 0; rank < mine.size(); ++rank) {
    CAPTURE(rank);
    const auto right = values[rank].get<std::vector<double>>();
    REQUIRE(mine[rank].size() == right.size());
    for (std::size_t e = 0; e < right.size(); ++e) {
      CAPTURE(e);
      CAPTURE(mine[rank][e]);
      CAPTURE(right[e]);
      CHECK(std::abs(mine[rank][e] - right[e]) <= 1e-5 * std::max(1.0, std::abs(right[e])));
    }
  }
}

}  // namespace

TEST_CASE("vocabulary: layers, training and ranks give PyTorch's numbers") {
  const auto reference =
      nlohmann::json::parse(std::ifstream(LOCKSTEP_SOURCE_DIR "/test/vocabulary/programs.json"));
  std::vector<Row> table = layer_rows();
  for (const auto& more : {training_rows(), rank_rows()})
    table.insert(table.end(), more.begin(), more.end());
  const auto& rows = reference["rows"];
  REQUIRE(rows.size() == table.size());
  CHECK(rows.size() >= 100);
  for (std::size_t k = 0; k < table.size(); ++k) {
    // A program's text begins and ends with a line break.
    std::string text = table[k].text;
    if (text.starts_with('\n')) text = text.substr(1, text.size() - 2);
    REQUIRE(rows[k]["text"].get<std::string>() == text);
    INFO(text);
    try {
      check_row(table[k], rows[k]["values"]);
    } catch (const Error& error) {
      FAIL_CHECK(text, ": ", std::string(error.what()));
    }
  }
}
