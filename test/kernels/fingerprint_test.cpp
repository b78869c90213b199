#include "lockstep/kernels/fingerprint.h"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/support.h"
#include "lockstep/kernels/optimizer.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

using Words = std::vector<std::uint32_t>;

Tensor new_sum() { return here(Tensor::zeros({2}, DType::i64)); }

std::uint64_t read(const Tensor& sum) {
  return static_cast<std::uint64_t>(sum.to_vector<std::int64_t>()[0]);
}

std::uint64_t print_of(const std::vector<Tensor>& tensors, std::uint32_t salt = 5) {
  const Tensor sum = new_sum();
  add_fingerprint(tensors, {&sum, salt});
  return read(sum);
}

/// The elements as 32-bit words in the order of memory, each element rotated by `bits`.
template <class T>
Words words_of(const Tensor& tensor, int bits) {
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  Words words;
  for (const T& element : tensor.to_vector<T>()) {
    const Word word = std::rotl(std::bit_cast<Word>(element), bits);
    words.push_back(static_cast<std::uint32_t>(word));
    if constexpr (sizeof(T) == 8) words.push_back(static_cast<std::uint32_t>(word >> 32));
  }
  return words;
}

/// The definition in the header, by the remainder.
template <class T>
std::uint64_t by_hand(const std::vector<Tensor>& tensors, std::uint32_t salt) {
  Words words = words_of<T>(tensors[0], 0);
  for (std::size_t k = 1; k < tensors.size(); ++k) {
    const Words more = words_of<T>(tensors[k], 11 * static_cast<int>(k));
    for (std::size_t w = 0; w < words.size(); ++w) words[w] ^= more[w];
  }
  std::uint64_t sum = 0;
  for (std::size_t w = 0; w < words.size(); ++w) {
    const std::uint64_t keyed = (std::uint64_t{words[w]} + salt + w * 2654435769u) % (1ull << 32);
    sum += keyed * keyed;
  }
  return sum;
}

}  // namespace

TEST_CASE_TEMPLATE("a fingerprint is the sum of the squares of keyed words", T, float, double) {
  for (const std::int64_t n : {0, 1, 3, 16, 17, 1000, 4099, 20001})
    for (const int shift : {0, 1}) {
      CAPTURE(n);
      CAPTURE(shift);
      std::vector<Tensor> tensors;
      for (int k = 0; k < 4; ++k) {
        tensors.push_back(shifted<T>(varied<T>({n}, k), shift));
        CHECK(print_of(tensors, 77) == by_hand<T>(tensors, 77));
      }
    }
  // A value by hand: 1.0f is 0x3f800000.
  if constexpr (std::is_same_v<T, float>) {
    CHECK(print_of({of_values<T>({1}, {1})}, 3) == 0x3f800003ull * 0x3f800003ull);
  }
}

TEST_CASE_TEMPLATE("a fingerprint sees every bit, every place and every salt", T, float, double) {
  const Tensor x = varied<T>({70}, 1), y = varied<T>({70}, 2);
  const std::uint64_t before = print_of({x, y});
  CHECK(print_of({x, y}) == before);
  CHECK(print_of({x, y}, 6) != before);
  CHECK(print_of({y, x}) != before);
  CHECK(print_of({x}) != before);
  using Word = std::conditional_t<sizeof(T) == 4, std::uint32_t, std::uint64_t>;
  for (const bool second : {false, true})
    for (const std::size_t at : {0u, 33u, 69u})
      for (std::size_t bit = 0; bit < 8 * sizeof(T); ++bit) {
        std::vector<T> elements = (second ? y : x).to_vector<T>();
        elements[at] = std::bit_cast<T>(std::bit_cast<Word>(elements[at]) ^ (Word(1) << bit));
        const Tensor flipped = here(Tensor::of<T>({70}, elements));
        CHECK(print_of({second ? x : flipped, second ? flipped : y}) != before);
      }
  for (const std::size_t other : {1u, 32u, 69u}) {
    std::vector<T> elements = x.to_vector<T>();
    std::swap(elements[0], elements[other]);
    CHECK(print_of({here(Tensor::of<T>({70}, elements)), y}) != before);
  }
}

TEST_CASE_TEMPLATE("optimizers add the fingerprint of what they leave", T, float, double) {
  const Tensor sum = new_sum();
  std::uint64_t expected = 0;
  const auto add = [&](const std::vector<Tensor>& tensors, std::uint32_t salt) {
    expected += by_hand<T>(tensors, salt);
  };
  std::uint32_t salt = 9;
  for (const std::int64_t n : {0, 1, 17, 4099}) {
    for (const bool decay : {false, true})
      for (const bool variant : {false, true}) {
        CAPTURE(n);
        const SgdItem plain{varied<T>({n}, 1), varied<T>({n}, 2), {}, false, {&sum, ++salt}};
        sgd_step({&plain, 1}, {.lr = 0.1, .weight_decay = decay ? 0.1 : 0});
        add({plain.value}, salt);

        const SgdItem item{
            varied<T>({n}, 1), varied<T>({n}, 2), varied<T>({n}, 3), variant, {&sum, ++salt}};
        sgd_step(
            {&item, 1},
            {.lr = 0.1, .momentum = 0.9, .weight_decay = decay ? 0.1 : 0, .nesterov = variant});
        add({item.value, item.momentum}, salt);

        const AdamItem adam{varied<T>({n}, 1),
                            varied<T>({n}, 2),
                            varied<T>({n}, 3),
                            here(Tensor::full({n}, 0.5, dtype_of<T>())),
                            here(Tensor::of<std::int64_t>({}, {6})),
                            {&sum, ++salt}};
        adam_step({&adam, 1}, {.beta1 = variant ? 0.4 : 0.9, .weight_decay = decay ? 0.1 : 0});
        add({adam.value, adam.mean, adam.variance}, salt);
        const std::uint64_t count = (7 + ~salt) & 0xffffffffu;  // the step count, as a word
        expected += count * count;

        const LionItem lion{
            varied<T>({n}, 1), varied<T>({n}, 2), varied<T>({n}, 3), {&sum, ++salt}};
        lion_step({&lion, 1}, {.weight_decay = decay ? 0.1 : 0, .maximize = variant});
        add({lion.value, lion.momentum}, salt);
        CHECK(read(sum) == expected);
      }
  }
}

TEST_CASE_TEMPLATE("optimizers add the fingerprint of what some options keep", T, float, double) {
  const Tensor sum = new_sum();
  std::uint64_t expected = 0;
  std::uint32_t salt = 4;
  for (const std::int64_t n : {0, 1, 17, 4099}) {
    CAPTURE(n);
    const auto half = [&] { return here(Tensor::full({n}, 0.5, dtype_of<T>())); };
    for (const bool centered : {false, true})
      for (const double momentum : {0.0, 0.5}) {
        const RmspropItem item{varied<T>({n}, 1), varied<T>({n}, 2), half(),
                               varied<T>({n}, 3), varied<T>({n}, 4), {&sum, ++salt}};
        rmsprop_step({&item, 1},
                     {.alpha = 0.9, .eps = 1, .momentum = momentum, .centered = centered});
        std::vector<Tensor> kept{item.value, item.square};
        if (centered) kept.push_back(item.mean);
        if (momentum != 0) kept.push_back(item.momentum);
        expected += by_hand<T>(kept, salt);
        CHECK(read(sum) == expected);
      }
    const AdamItem adam{varied<T>({n}, 1),
                        varied<T>({n}, 2),
                        varied<T>({n}, 3),
                        half(),
                        here(Tensor::of<std::int64_t>({}, {6})),
                        {&sum, ++salt},
                        half()};
    adam_step({&adam, 1}, {.amsgrad = true});
    const std::uint64_t count = (7 + ~salt) & 0xffffffffu;
    expected +=
        by_hand<T>({adam.value, adam.mean, adam.variance, adam.max_variance}, salt) + count * count;
    CHECK(read(sum) == expected);
  }
}

TEST_CASE_TEMPLATE("every step sees a parameter that is infinite or NaN", T, float, double) {
  using Limits = std::numeric_limits<T>;
  for (const std::int64_t n : {1, 17, 4099})
    for (const std::int64_t place : {std::int64_t{0}, n / 2, n - 1})
      for (const T bad : {Limits::infinity(), -Limits::infinity(), Limits::quiet_NaN(),
                          Limits::max(), Limits::lowest()}) {
        CAPTURE(n);
        CAPTURE(place);
        CAPTURE(bad);
        std::vector<T> values(static_cast<std::size_t>(n), T{2});
        values[static_cast<std::size_t>(place)] = bad;
        const auto value = [&] { return here(Tensor::of<T>({n}, values)); };
        const auto zeros = [&] { return here(Tensor::zeros({n}, dtype_of<T>())); };
        // No momentum is looked at: an infinite one makes the parameter infinite.
        const auto sees = [&](const auto& step) {
          const Tensor sum = new_sum();
          step(Fingerprint{&sum, 3});
          CHECK((sum.to_vector<std::int64_t>()[1] > 0) == !std::isfinite(bad));
        };
        sees([&](const Fingerprint& fingerprint) {
          const SgdItem item{value(), zeros(), {}, false, fingerprint};
          sgd_step({&item, 1}, {});
        });
        sees([&](const Fingerprint& fingerprint) {
          const AdamItem item{
              value(), zeros(), zeros(), zeros(), here(Tensor::zeros({}, DType::i64)), fingerprint};
          adam_step({&item, 1}, {});
        });
        sees([&](const Fingerprint& fingerprint) {
          const RmspropItem item{value(), zeros(), zeros(), {}, {}, fingerprint};
          rmsprop_step({&item, 1}, {});
        });
        sees([&](const Fingerprint& fingerprint) {
          const LionItem item{value(), zeros(), zeros(), fingerprint};
          lion_step({&item, 1}, {});
        });
        sees([&](const Fingerprint& fingerprint) {
          const Tensor x = value();
          add_fingerprint({&x, 1}, fingerprint);
        });
      }
}

TEST_CASE("fingerprints: what they refuse") {
  const Tensor x = varied<float>({3}), sum = new_sum();
  add_fingerprint({}, {});  // nobody wants it
  const auto add = [&](std::vector<Tensor> tensors, const Tensor& to) {
    add_fingerprint(tensors, {&to, 0});
  };
  CHECK_THROWS_WITH_AS(add({}, sum), "[add_fingerprint] takes one to four tensors, got 0",
                       UsageError);
  CHECK_THROWS_AS(add({x, x, x, x, x}, sum), UsageError);
  CHECK_THROWS_AS(add({x, varied<float>({4})}, sum), ShapeError);
  CHECK_THROWS_AS(add({x, varied<double>({3})}, sum), DTypeError);
  CHECK_THROWS_AS(add({sum}, sum), DTypeError);
  CHECK_THROWS_AS(add({x}, x), DTypeError);
  CHECK_THROWS_AS(add({x}, here(Tensor::zeros({}, DType::i64))), ShapeError);
  const SgdItem item{x, x, {}, false, {&x, 0}};
  CHECK_THROWS_WITH_AS(sgd_step({&item, 1}, {}), "[sgd_step] fingerprint: expected i64, got f32",
                       DTypeError);
}
