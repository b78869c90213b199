#include "lockstep/data/dataset.h"

#include <doctest/doctest.h>

#include <cmath>
#include <functional>
#include <memory>
#include <set>

#include "data/stored.h"
#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/data/loader.h"
#include "lockstep/data/map.h"
#include "lockstep/data/subset.h"

namespace lockstep::data {
namespace {

using Integers = std::vector<std::int64_t>;

/// A data set of one's own: what `make` gives for each of `n` samples.
struct Own : Dataset {
  Own(std::int64_t samples, std::function<Fields(std::int64_t)> function)
      : n(samples), make(std::move(function)) {}
  std::int64_t size() const override { return n; }
  Fields sample(std::int64_t i) const override { return make(i); }
  std::int64_t n;
  std::function<Fields(std::int64_t)> make;
};

/// Fields of every kind: an f32 matrix, an i64 scalar, a u8 vector, an f64 scalar.
Fields mixed(std::int64_t i) {
  const auto k = static_cast<double>(i);
  return {{"x", Tensor::full({2, 3}, k)},
          {"y", Tensor::scalar(100 + k, DType::i64)},
          {"mask", Tensor::full({4}, static_cast<double>(i % 250), DType::u8)},
          {"price", Tensor::scalar(0.1 * k, DType::f64)}};
}

/// The same samples in memory.
TensorDataset mixed_in_memory(std::int64_t n) {
  Own own(n, mixed);
  const Fields all = own.all();
  return TensorDataset(
      {{"x", all["x"]}, {"y", all["y"]}, {"mask", all["mask"]}, {"price", all["price"]}});
}

bool equal(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() && elements(a) == elements(b);
}

/// What the loader's DataError says, of any of its batches; "no error".
std::string message_of(const AnyDataset& dataset, std::int64_t batch = 4) {
  try {
    for (const Batch& each : Loader(dataset, {.batch = batch})) (void)each;
  } catch (const DataError& error) {
    return error.what();
  }
  return "no error";
}

std::uint64_t plan_of(const AnyDataset& dataset) {
  return Loader(dataset, {}).batch(0).weight.origin.deal_digest;
}

TEST_CASE("dataset: one's own and tensors in memory give the same batches, in every world") {
  const Own own(23, mixed);
  const TensorDataset memory = mixed_in_memory(23);
  for (const int world : {1, 2, 3, 4, 7})
    for (int rank = 0; rank < world; ++rank) {
      const LoaderOptions options{.batch = 3, .shuffle = true, .seed = 2};
      const Loader loader(own, options, {rank, world}, 1), other(memory, options, {rank, world}, 1);
      REQUIRE(loader.steps() == other.steps());
      for (std::int64_t step = 0; step < loader.steps(); ++step) {
        const Batch a = loader.batch(step), b = other.batch(step);
        const auto rows = static_cast<std::int64_t>(a.weight.local);
        CHECK(a["x"].shape() == Shape{rows, 2, 3});
        CHECK(a["y"].shape() == Shape{rows});
        CHECK(a["mask"].shape() == Shape{rows, 4});
        CHECK(a.fields.names() == "x, y, mask, price");
        for (const auto& [name, value] : a.fields) CHECK(equal(value, b[name]));
        CHECK(a.x.raw() == a["x"].raw());
        CHECK(a.y.raw() == a["y"].raw());
        for (std::int64_t row = 0; row < rows; ++row) {
          const std::int64_t sample = a.y.data<std::int64_t>()[row] - 100;
          const Fields expected = mixed(sample), got = detail::row_of(a.fields, row);
          for (const auto& [name, value] : expected) CHECK(equal(value, got[name]));
        }
      }
    }
}

TEST_CASE("dataset: fields by name") {
  const TensorDataset dataset({{"u", Tensor::zeros({3, 2})}, {"v", Tensor::arange(3)}});
  const Batch batch = Loader(dataset, {}).batch(0);
  CHECK_FALSE(batch.x.defined());
  CHECK_FALSE(batch.y.defined());
  CHECK(equal(batch["v"], Tensor::arange(3)));
  CHECK_THROWS_WITH_AS(batch["w"], "[Fields] there is no field 'w'; there is u, v", DataError);
  CHECK_THROWS_WITH_AS(dataset["w"], "[Fields] there is no field 'w'; there is u, v", DataError);
  CHECK_THROWS_WITH_AS(Batch{}["w"], "[Fields] there is no field 'w'; there are none", DataError);
  CHECK_THROWS_WITH_AS(Fields({{"a", Tensor::zeros({1})}, {"a", Tensor::zeros({1})}}),
                       "[Fields] two fields have the name 'a'", DataError);
  Fields fields = {{"a", Tensor::arange(2)}};
  fields.set("a", Tensor::arange(5));
  fields.set("b", Tensor::arange(1));
  CHECK(fields.names() == "a, b");
  CHECK(fields["a"].numel() == 5);
}

TEST_CASE("dataset: tensors that do not fit together") {
  CHECK_THROWS_WITH_AS(TensorDataset({{"x", Tensor::zeros({2, 5})}, {"y", Tensor::zeros({7})}}),
                       "[TensorDataset] field 'y' has 7 rows, but 'x' 2", DataError);
  CHECK_THROWS_AS(TensorDataset({{"x", Tensor::scalar(1)}}), DataError);
  CHECK_THROWS_AS(TensorDataset({{"x", Tensor{}}}), DataError);
  const TensorDataset dataset({{"x", Tensor::zeros({2, 5})}});
  for (const std::int64_t index : {-1, 2}) {
    CHECK_THROWS_AS(dataset.sample(index), UsageError);
    CHECK_THROWS_AS(dataset.rows({&index, 1}, 0), UsageError);
  }
  CHECK(TensorDataset().size() == 0);
  CHECK(message_of(TensorDataset()) == "no error");
}

TEST_CASE("dataset: samples that differ are named, with both") {
  const auto odd = [](std::int64_t which, Fields other) {
    return Own(12, [which, other](std::int64_t i) {
      return i == which ? other : Fields{{"x", Tensor::zeros({2, 3})}, {"y", Tensor::scalar(1)}};
    });
  };
  const Tensor x = Tensor::zeros({2, 3}), y = Tensor::scalar(1);
  CHECK(message_of(odd(6, {{"x", x}, {"y", y}})) == "no error");
  CHECK(message_of(odd(6, {{"x", Tensor::zeros({3, 2})}, {"y", y}})) ==
        "[Dataset] field 'x' of sample 6 is f32 (3, 2), but of sample 0 f32 (2, 3)");
  CHECK(message_of(odd(6, {{"x", x}, {"y", Tensor::scalar(1, DType::f64)}})) ==
        "[Dataset] field 'y' of sample 6 is f64 (), but of sample 0 f32 ()");
  CHECK(message_of(odd(6, {{"x", x}})) ==
        "[Dataset] sample 6 has the fields x, but sample 0 has x, y");
  CHECK(message_of(odd(6, {{"x", x}, {"z", y}})) ==
        "[Dataset] sample 6 has the fields x, z, but sample 0 has x, y");
  CHECK(message_of(odd(6, {{"x", x}, {"y", Tensor{}}})) ==
        "[Dataset] field 'y' of sample 6 is an undefined tensor");
  // Of many samples the digest reads but a few; the batch is compared with sample 0.
  const Own late(100, [&](std::int64_t i) {
    return Fields{{"x", i < 97 || i > 98 ? x : Tensor::zeros({7})}};
  });
  CHECK(message_of(late, 1) ==
        "[Dataset] field 'x' of sample 97 is f32 (7,), but of sample 0 f32 (2, 3)");
  CHECK(message_of(late, 100) ==
        "[Dataset] field 'x' of sample 97 is f32 (7,), but of sample 0 f32 (2, 3)");
}

TEST_CASE("dataset: nothing is asked of an empty one") {
  struct Empty : Dataset {
    std::int64_t size() const override { return 0; }
    Fields sample(std::int64_t) const override { fail<DataError>("a sample of none"); }
    Fields rows(std::span<const std::int64_t>, int) const override {
      fail<DataError>("rows of none");
    }
  };
  int batches = 0;
  for (const Batch& batch : Loader(Empty{}, {.batch = 2})) batches += batch.x.defined();
  CHECK(batches == 0);
}

TEST_CASE("dataset: rows() of one's own that gives something else") {
  struct Wrong : Own {
    Wrong(std::function<Fields(std::size_t)> function)
        : Own(5, mixed), of_rows(std::move(function)) {}
    Fields rows(std::span<const std::int64_t> samples, int) const override {
      return of_rows(samples.size());
    }
    std::uint64_t digest() const override { return 5; }
    std::function<Fields(std::size_t)> of_rows;
  };
  const auto says = [](std::function<Fields(std::size_t)> function) {
    return message_of(Wrong(std::move(function)));
  };
  CHECK(says([](std::size_t) {
          return Fields{{"x", Tensor::zeros({4})}};
        }) == "[Loader] rows() gave the shape (4,) for field 'x' of 1 samples");
  CHECK(says([](std::size_t n) {
          return Fields{{"x", Tensor::zeros({n == 1 ? 1 : 2})}};
        }) == "[Loader] rows() gave the shape (2,) for field 'x' of 4 samples");
  CHECK(says([](std::size_t) {
          return Fields{{"x", Tensor{}}};
        }) == "[Loader] rows() gave an undefined tensor for field 'x'");
  CHECK(says([](std::size_t n) {
          const Tensor x = Tensor::zeros({static_cast<std::int64_t>(n)});
          return n == 1 ? Fields{{"x", x}} : Fields{{"x", x}, {"z", x}};
        }) == "[Dataset] sample 0 has the fields x, z, but sample 0 has x");
}

TEST_CASE("dataset: nothing dangles, and a shared pointer is not copied") {
  struct Once : Own {
    Once() : Own(3, mixed) {}
    Once(const Once&) = delete;
    Once(Once&&) = delete;
  };
  static_assert(!std::is_constructible_v<AnyDataset, const Once&>);  // says so while compiling
  std::optional<Loader> loader;
  {
    TensorDataset dataset = mixed_in_memory(3);
    loader.emplace(Map(dataset, [](Fields sample, Random&) { return sample; }), LoaderOptions{});
    dataset = TensorDataset();
  }
  CHECK(elements(loader->batch(0).y) == std::vector<double>{100, 101, 102});
  auto shared = std::make_shared<const Once>();
  loader.emplace(shared, LoaderOptions{});
  CHECK(shared.use_count() == 2);
  shared.reset();
  CHECK(elements(loader->batch(0).y) == std::vector<double>{100, 101, 102});
  CHECK_THROWS_AS(Loader(std::shared_ptr<const Once>(), {}), UsageError);
}

TEST_CASE("dataset: the digest is of all labels, of names and shapes, and of some samples") {
  const std::int64_t n = 60;
  const auto of = [&](const Tensor& x, const Tensor& y, const char* name = "x") {
    return plan_of(TensorDataset({{name, x}, {"y", y}}));
  };
  const Tensor x = Tensor::zeros({n, 2}), y = Tensor::zeros({n}, DType::i64);
  const std::uint64_t usual = of(x, y);
  CHECK(of(x.clone(), y.clone()) == usual);
  std::set<std::uint64_t> digests{usual, of(x, y, "u"), of(x.view({n, 2, 1}), y),
                                  of(Tensor::zeros({n, 2}, DType::i32), y),
                                  of(Tensor::full({n, 2}, 0.5), y)};
  for (std::int64_t i = 0; i < n; ++i) {  // any label, also two columns of them, and bytes
    const Tensor other = y.clone(), pairs = Tensor::zeros({n, 2}, DType::i64);
    other.data<std::int64_t>()[i] = 1;
    pairs.data<std::int64_t>()[2 * i + 1] = 1;
    digests.insert(of(x, other));
    digests.insert(of(x, pairs));
  }
  CHECK(digests.size() == static_cast<std::size_t>(5 + 2 * n));
  for (const std::int64_t few : {1, 5, 15, 16}) {  // all samples of a small data set count
    std::set<std::uint64_t> of_few;
    for (std::int64_t i = 0; i < few; ++i) {
      const Tensor changed = Tensor::zeros({few});
      changed.data<float>()[i] = 1;
      of_few.insert(plan_of(TensorDataset({{"x", changed}})));
      of_few.insert(plan_of(Own(few, [i](std::int64_t k) {
        return Fields{{"own", Tensor::scalar(k == i ? 1 : 0)}};
      })));
    }
    CHECK(of_few.size() == static_cast<std::size_t>(2 * few));
  }
  CHECK(plan_of(Own(23, mixed)) == plan_of(Own(23, mixed)));
  CHECK(plan_of(Own(23, mixed)) != plan_of(Own(23, [](std::int64_t i) { return mixed(i + 1); })));
}

TEST_CASE("split, Subset: PyTorch's random_split, chosen samples, and what is refused") {
  const auto numbers = [](std::int64_t n) { return TensorDataset({{"i", Tensor::arange(n)}}); };
  const auto drawn = [](const Dataset& part) {
    const Tensor all = part.all()["i"];
    return all.to_vector<std::int64_t>();
  };
  for (const auto& expected : stored().at("splits")) {
    const auto sizes = expected.at("sizes").get<Integers>();
    std::int64_t n = 0;
    for (const std::int64_t size : sizes) n += size;
    const std::vector<Subset> parts = split(numbers(n), sizes, expected.at("seed"));
    REQUIRE(parts.size() == sizes.size());
    for (std::size_t k = 0; k < parts.size(); ++k) {
      CHECK(drawn(parts[k]) == expected.at("parts")[k].get<Integers>());
      CHECK(parts[k].size() == sizes[k]);
    }
  }
  const auto [train, test] = split(numbers(10), 0.8, 0);
  CHECK(drawn(train) == stored().at("splits")[0].at("parts")[0].get<Integers>());
  CHECK(drawn(test) == stored().at("splits")[0].at("parts")[1].get<Integers>());
  CHECK(split(numbers(100), 0.29, 0).train.size() == 29);  // 0.29 * 100 is 28.999999999999996
  CHECK(split(numbers(3), 1, 0).test.size() == 0);

  const Subset twice(train, Tensor::from<std::int64_t>({7, 0, 7}));
  CHECK(drawn(twice) == Integers{drawn(train)[7], drawn(train)[0], drawn(train)[7]});
  CHECK(elements(twice.sample(1)["i"])[0] == static_cast<double>(drawn(train)[0]));
  CHECK(plan_of(twice) != plan_of(Subset(train, Tensor::from<std::int64_t>({7, 7, 0}))));
  for (const std::int64_t bad : {-1, 10})
    CHECK_THROWS_AS(Subset(numbers(10), Tensor::from<std::int64_t>({0, bad})), DataError);
  CHECK_THROWS_AS(Subset(numbers(10), Tensor::zeros({2})), DataError);
  CHECK_THROWS_AS(Subset(numbers(10), Tensor{}), DataError);
  CHECK_THROWS_AS(twice.sample(3), UsageError);
  for (const Integers& sizes : {Integers{5, 4}, Integers{5, 6}, Integers{11, -1}, Integers{}})
    CHECK_THROWS_AS(split(numbers(10), sizes, 0), UsageError);
  for (const double fraction : {-0.1, 1.1, std::nan("")})
    CHECK_THROWS_AS(split(numbers(10), fraction, 0), UsageError);
}

TEST_CASE("dataset: a sample that wants a gradient is refused where it is copied into a batch") {
  const Parameter w(Tensor::ones({3}), "w");
  const auto scaled = [&](const Tensor& x) -> Fields { return {{"x", w * x}}; };
  const TensorDataset ones({{"x", Tensor::ones({4, 3})}});
  const std::vector<std::pair<const char*, AnyDataset>> all = {
      {"own", Own(4, [&](std::int64_t) { return scaled(Tensor::ones({3})); })},
      {"map", Map(ones, [&](const Fields& sample, Random&) { return scaled(sample["x"]); })},
      {"map of a map", Map(Map(ones, [&](const Fields& s, Random&) { return scaled(s["x"]); }),
                           [](const Fields& sample, Random&) { return sample; })},
      {"subset", Subset(Own(4, [&](std::int64_t) { return scaled(Tensor::ones({3})); }),
                        Tensor::of<std::int64_t>({2}, {2, 1}))},
  };
  for (const auto& [name, dataset] : all) {
    CAPTURE(name);
    const Loader loader(dataset, {.batch = 2});  // no tape lives, and nothing is recorded
    CHECK(loader.batch(0).x.shape() == Shape{2, 3});
    const Tape tape;
    const auto refuses = doctest::Contains("'x' of sample ");
    CHECK_THROWS_WITH_AS(loader.batch(0), refuses, DataError);
    CHECK_THROWS_WITH_AS(dataset->all(), doctest::Contains("wants a gradient"), DataError);
    CHECK_THROWS_AS(dataset->digest(), DataError);
  }
  const Tape tape;
  const auto check_taken = [&](const char* name, const std::function<Tensor()>& x) {
    CAPTURE(name);
    const Own own(4, [&](std::int64_t) -> Fields { return {{"x", x()}}; });
    CHECK(Loader(own, {.batch = 4}).batch(0).x.shape() == Shape{4, 3});
  };
  check_taken("constant", [] { return Tensor::ones({3}); });
  check_taken("detached", [&] { return (w * Tensor::ones({3})).detach(); });
  check_taken("values", [&] { return w.value() * Tensor::ones({3}); });
}

}  // namespace
}  // namespace lockstep::data
