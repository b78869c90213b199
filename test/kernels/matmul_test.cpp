#include "lockstep/kernels/matmul.h"

#include <pthread.h>
#include <signal.h>
#include <sys/time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <thread>

#include "kernels/support.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/kernels/cuda/gemm/beside_cublas.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/reduce.h"
#include "support/capture_binding.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

template <class T>
Values naive_product(const Tensor& a, bool ta, const Tensor& b, bool tb, std::int64_t m,
                     std::int64_t n, std::int64_t k) {
  const Values x = to_values<T>(a), y = to_values<T>(b);
  const auto at = [](const Values& values, std::int64_t i) {
    return values[static_cast<std::size_t>(i)];
  };
  Values result;
  for (std::int64_t i = 0; i < m; ++i)
    for (std::int64_t j = 0; j < n; ++j) {
      double total = 0;
      for (std::int64_t l = 0; l < k; ++l)
        total += at(x, ta ? l * m + i : i * k + l) * at(y, tb ? j * k + l : l * n + j);
      result.push_back(total);
    }
  return result;
}

}  // namespace

TEST_CASE_TEMPLATE("matmul agrees with three loops", T, float, double) {
  const std::int64_t
      sizes[][3] = {{1, 1, 1},    {2, 3, 4},    {1, 7, 5},    {5, 1, 7},
                    {7, 5, 1},    {3, 3, 17},   {32, 10, 64}, {33, 65, 31},
                    {64, 64, 64}, {24, 512, 9}, {30, 1024, 5}};  // rows of b 2 and 4 KiB apart
  for (const auto& [m, n, k] : sizes)
    for (const bool ta : {false, true})
      for (const bool tb : {false, true}) {
        CAPTURE_BINDING(m);
        CAPTURE_BINDING(n);
        CAPTURE_BINDING(k);
        CAPTURE(ta);
        CAPTURE(tb);
        const Tensor a = varied<T>(ta ? Shape{k, m} : Shape{m, k}, 1);
        const Tensor b = varied<T>(tb ? Shape{n, k} : Shape{k, n}, 2);
        const Tensor out = nan<T>({m, n});
        Values expected = naive_product<T>(a, ta, b, tb, m, n, k);
        matmul(a, b, out, {.transpose_a = ta, .transpose_b = tb});
        check_close<T>(out, expected, tolerance<T>(1e-5, 1e-13));
        matmul(a, b, out, {.transpose_a = ta, .transpose_b = tb, .accumulate = true});
        for (double& v : expected) v *= 2;
        check_close<T>(out, expected, tolerance<T>(1e-5, 1e-13));
      }
}

TEST_CASE_TEMPLATE("matmul with an empty dimension", T, float, double) {
  const std::int64_t sizes[][3] = {{0, 3, 4}, {3, 0, 4}, {3, 4, 0}, {0, 0, 0}};
  for (const auto& [m, n, k] : sizes)
    for (const bool transposed : {false, true}) {
      const Tensor a = varied<T>(transposed ? Shape{k, m} : Shape{m, k});
      const Tensor b = varied<T>(transposed ? Shape{n, k} : Shape{k, n});
      const Tensor out = nan<T>({m, n});
      MatmulFlags flags{.transpose_a = transposed, .transpose_b = transposed};
      matmul(a, b, out, flags);
      check_close<T>(out, Values(static_cast<std::size_t>(m * n), 0.0), 0);
      out.fill(3);
      flags.accumulate = true;
      matmul(a, b, out, flags);
      check_close<T>(out, Values(static_cast<std::size_t>(m * n), 3.0), 0);
    }
}

TEST_CASE_TEMPLATE("matmul passes NaN on", T, float, double) {
  const Tensor a = of_values<T>({2, 3}, {1, std::nan(""), 2, 3, 4, 5});
  const Tensor b = Tensor::zeros({3, 2}, dtype_of<T>(), test_device()), out = nan<T>({2, 2});
  matmul(a, b, out);
  check_close<T>(out, {std::nan(""), std::nan(""), 0, 0}, 0);
}

TEST_CASE_TEMPLATE("linear adds its bias to every row", T, float, double) {
  for (std::int64_t n : {0, 1, 5})
    for (std::int64_t in : {0, 1, 6})
      for (std::int64_t to : {0, 1, 4}) {
        const Tensor x = varied<T>({n, in}, 1), w = varied<T>({to, in}, 2);
        const Tensor bias = varied<T>({to}, 3), out = nan<T>({n, to});
        Values expected = naive_product<T>(x, false, w, true, n, to, in);
        linear(x, w, {}, out);
        check_close<T>(out, expected, tolerance<T>(1e-6, 1e-14));
        for (std::size_t i = 0; i < expected.size(); ++i)
          expected[i] += value_at(static_cast<std::int64_t>(i) % to, 3);
        out.fill(std::nan(""));
        linear(x, w, {bias}, out);
        check_close<T>(out, expected, tolerance<T>(1e-6, 1e-14));
      }
}

TEST_CASE_TEMPLATE("an epilogue has the bits of the operations one after the other", T, float,
                   double, BFloat16, Half) {
  const auto bits = [](const Tensor& x) { return x.to_vector<T>(); };
  const auto same = [&](const Tensor& x, const Tensor& y) {
    const std::vector<T> a = bits(x), b = bits(y);
    return std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
  };
  // Other operations take 16-bit elements as f32.
  const auto as_wide = [](const Tensor& x) {
    const Tensor y = Tensor::empty(x.shape(), sizeof(T) == 2 ? DType::f32 : x.dtype(), x.device());
    cast(x, y);
    return y;
  };
  const auto wide = [&](const Tensor& out, const auto& write) {
    const Tensor to = as_wide(out);
    write(to);
    cast(to, out);
  };
  for (const std::int64_t n : {0, 1, 5, 130})
    for (const std::int64_t in : {0, 6, 300})
      for (const std::int64_t to : {0, 1, 4, 70}) {
        CAPTURE(n);
        CAPTURE(in);
        CAPTURE(to);
        const Tensor x = varied<T>({n, in}, 1), w = varied<T>({to, in}, 2);
        const Tensor bias = varied<T>({to}, 3), plain = nan<T>({n, to});
        const Tensor expected = nan<T>({n, to}), out = nan<T>({n, to});
        const std::vector<std::int64_t> cuts{0, n / 3, n / 3, n};
        for (const RowBlocks blocks : {RowBlocks(), RowBlocks(cuts)}) {
          linear(x, w, {bias}, plain, blocks);
          wide(expected, [&](const Tensor& to) { unary(Unary::relu, as_wide(plain), to); });
          linear(x, w, {bias, true}, out, blocks);
          CHECK(same(out, expected));
          // dx of a layer behind relu, whose result is x: some NaN, some -0.
          const Tensor dx = nan<T>({n, in}), masked = nan<T>({n, in}), dx_out = nan<T>({n, in});
          matmul(expected, w, dx, {}, blocks);
          wide(masked, [&](const Tensor& to) {
            unary_backward(Unary::relu, as_wide(dx), as_wide(x), to, false);
          });
          matmul(expected, w, dx_out, {}, blocks, {.positive = x});
          CHECK(same(dx_out, masked));
        }
      }
}

TEST_CASE_TEMPLATE("linear_gradients are a product and the sum of rows", T, float, double, BFloat16,
                   Half) {
  for (const std::int64_t n : {0, 1, 5, 300})
    for (const std::int64_t in : {0, 1, 70})
      for (const std::int64_t to : {0, 1, 33})
        for (const bool add_w : {false, true})
          for (const bool add_b : {false, true}) {
            CAPTURE(n);
            CAPTURE(in);
            CAPTURE(to);
            const Tensor dy = varied<T>({n, to}, 1), x = varied<T>({n, in}, 2);
            const Tensor dw = varied<T>({to, in}, 3), db = varied<T>({to}, 4);
            const Tensor dw_alone = varied<T>({to, in}, 3), db_alone = varied<T>({to}, 4);
            linear_gradients(dy, x, {dw, add_w}, {db, add_b});
            matmul(dy, x, dw_alone, {.transpose_a = true, .accumulate = add_w});
            sum_rows(dy, db_alone, add_b);
            check_close<T>(dw, to_values<T>(dw_alone), 0);
            check_close<T>(db, to_values<T>(db_alone),
                           sizeof(T) == 2 ? 0.02 : tolerance<T>(1e-5, 1e-14));
          }
  const Tensor dy = varied<float>({3, 2}, 1);
  CHECK_THROWS_WITH_AS(linear_gradients(dy, dy, {nan<float>({2, 2})}, {nan<float>({3})}),
                       "[linear_gradients] dbias: expected shape (2,), got (3,)", ShapeError);
}

TEST_CASE("products beside cuBLAS: ours where an H100 took at most as long for them") {
  using cuda::by_hand, cuda::Precision;
  struct Timed {  // docs/benchmarks.md: cuBLAS's time in ours
    std::int64_t m, n, k;
    double f32, sixteen_bits;
  };
  constexpr Timed all[] = {
      {128, 256, 256, 1.81, 1.81},    {256, 256, 128, 2.27, 1.85},   {1024, 256, 256, 1.13, 1.69},
      {256, 256, 1024, 1.18, 1.59},   {1024, 1024, 128, 1.13, 1.47}, {1024, 4096, 4096, 0.79, 0.98},
      {4096, 4096, 8192, 0.87, 0.99}, {128, 4096, 4096, 0.85, 0.66}, {8192, 1024, 1024, 0.80, 0.92},
      {8192, 4096, 4096, 0.81, 0.98},
  };
  for (const auto& [m, n, k, f32, sixteen_bits] : all) {
    CAPTURE(m);
    CAPTURE(n);
    CAPTURE(k);
    CHECK(by_hand(Precision::f32, m, n, k, false) == (f32 >= 1));
    CHECK(by_hand(Precision::sixteen_bits, m, n, k, false) == (sixteen_bits >= 1));
    CHECK(by_hand(Precision::sixteen_bits, m, n, k, true));
  }
}

TEST_CASE("an epilogue takes NaN for positive, and refuses what does not fit") {
  const Tensor one = of_values<float>({1, 1}, {1}), none = of_values<float>({1, 1}, {std::nan("")});
  const Tensor out = nan<float>({1, 1});
  matmul(one, one, out, {}, {}, {.positive = none});
  check_close<float>(out, {1}, 0);
  linear(one, none, {{}, true}, out);
  check_close<float>(out, {std::nan("")}, 0);
  CHECK_THROWS_WITH_AS(matmul(one, one, out, {.accumulate = true}, {}, {.relu = true}),
                       "[matmul] accumulate with an epilogue", UsageError);
  CHECK_THROWS_WITH_AS(matmul(one, one, out, {}, {}, {.positive = nan<float>({1})}),
                       "[matmul] positive: expected shape (1, 1), got (1,)", ShapeError);
  CHECK_THROWS_AS(matmul(one, one, out, {}, {}, {.positive = nan<double>({1, 1})}), DTypeError);
}

TEST_CASE("products in several threads") {
  // Every rank may be a thread; each must get the bits that it would get alone.
  const Tensor a = varied<float>({33, 65}, 1), b = varied<float>({65, 31}, 2);
  const Tensor alone = nan<float>({33, 31});
  matmul(a, b, alone);
  std::vector<Tensor> outs;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) outs.push_back(nan<float>({33, 31}));
  Stream::current(test_device()).synchronize();  // every thread has a stream of its own
  for (const Tensor& out : outs)
    threads.emplace_back([&a, &b, out] {
      matmul(a, b, out);
      Stream::current(test_device()).synchronize();
    });
  for (std::thread& thread : threads) thread.join();
  for (const Tensor& out : outs) check_close<float>(out, to_values<float>(alone), 0);
}

TEST_CASE("products refuse what does not fit") {
  const Tensor a = varied<float>({32, 64}), b = varied<float>({63, 128});
  const Tensor out = nan<float>({32, 128});
  CHECK_THROWS_WITH_AS(matmul(a, b, out), "[matmul] inner dimensions differ: (32, 64) x (63, 128)",
                       ShapeError);
  CHECK_THROWS_WITH_AS(matmul(a, a, out, {.transpose_a = true, .transpose_b = true}),
                       "[matmul] inner dimensions differ: (32, 64)^T x (32, 64)^T", ShapeError);
  CHECK_THROWS_WITH_AS(matmul(a, a, out, {.transpose_b = true}),
                       "[matmul] out: expected shape (32, 32), got (32, 128)", ShapeError);
  CHECK_THROWS_AS(matmul(varied<float>({3}), b, out), ShapeError);
  CHECK_THROWS_AS(matmul(a, varied<double>({64, 128}), out), DTypeError);
  const Tensor label = Tensor::zeros({2, 2}, DType::i64);
  CHECK_THROWS_AS(matmul(label, label, label), DTypeError);
  const Tensor w = varied<float>({128, 64});
  CHECK_THROWS_WITH_AS(linear(a, w, {varied<float>({127})}, out),
                       "[linear] bias: expected shape (128,), got (127,)", ShapeError);
  CHECK_THROWS_AS(linear(a, w, {varied<float>({128})}, nan<float>({31, 128})), ShapeError);
  CHECK_THROWS_WITH_AS(linear(a, varied<float>({128, 63}), {varied<float>({128})}, out),
                       "[linear] inner dimensions differ: (32, 64) x (128, 63)^T", ShapeError);
  CHECK(std::isnan(to_values<float>(out)[0]));
}

TEST_CASE_TEMPLATE("16-bit products are added up in f32 and rounded once", T, Half, BFloat16) {
  const auto rounded = [](const Shape& shape, int seed) {
    std::vector<T> values;
    for (std::int64_t i = 0; i < shape.numel(); ++i) values.push_back(T(value_at(i, seed)));
    return here(Tensor::of<T>(shape, values));
  };
  const std::int64_t m = 17, n = 9, k = 33;
  const Tensor a = rounded({m, k}, 1), b = rounded({n, k}, 2), bias = rounded({n}, 3);
  const Tensor out = rounded({m, n}, 4);
  linear(a, b, {bias}, out);
  Values expected = naive_product<T>(a, false, b, true, m, n, k);
  const Values added = to_values<T>(bias);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += added[i % added.size()];
  // Half a unit in the last place, and the f32 sum's own error where that decides a tie.
  const double half_unit = std::is_same_v<T, Half> ? 0x1p-11 * 1.01 : 0x1p-8 * 1.01;
  check_close<T>(out, expected, half_unit);

  const Values before = to_values<T>(out);
  matmul(a, b, out, {.transpose_b = true, .accumulate = true});
  expected = naive_product<T>(a, false, b, true, m, n, k);
  for (std::size_t i = 0; i < expected.size(); ++i) expected[i] += before[i];
  check_close<T>(out, expected, half_unit);
}

TEST_CASE("products of 16-bit factors into f32: exact products, f32 sums") {
  const std::int64_t sizes[][3] = {{1, 1, 1},  {2, 3, 4},    {1, 7, 5},    {5, 1, 7}, {7, 5, 1},
                                   {3, 3, 17}, {32, 10, 64}, {33, 65, 31}, {0, 3, 4}, {3, 4, 0}};
  for (const DType dtype : {DType::bf16, DType::f16})
    for (const auto& [m, n, k] : sizes)
      for (const bool ta : {false, true})
        for (const bool tb : {false, true}) {
          CAPTURE_BINDING(m);
          CAPTURE_BINDING(n);
          CAPTURE_BINDING(k);
          CAPTURE(ta);
          CAPTURE(tb);
          const auto factor = [&](const Shape& shape, int seed) {
            const Tensor x = Tensor::empty(shape, dtype, test_device());
            cast(varied<float>(shape, seed), x);
            return x;
          };
          const auto as_f32 = [&](const Tensor& x) {
            const Tensor y = nan<float>(x.shape());
            cast(x, y);
            return y;
          };
          const Tensor a = factor(ta ? Shape{k, m} : Shape{m, k}, 1);
          const Tensor b = factor(tb ? Shape{n, k} : Shape{k, n}, 2);
          const Tensor bias = varied<float>({n}, 3), out = nan<float>({m, n});
          Values expected = naive_product<float>(as_f32(a), ta, as_f32(b), tb, m, n, k);
          const double enough = tolerance<float>(1e-5, 0);
          matmul(a, b, out, {.transpose_a = ta, .transpose_b = tb});
          check_close<float>(out, expected, enough);
          matmul(a, b, out, {.transpose_a = ta, .transpose_b = tb, .accumulate = true});
          for (double& v : expected) v *= 2;
          check_close<float>(out, expected, enough);
          if (ta || !tb) continue;
          for (std::size_t i = 0; i < expected.size(); ++i)
            expected[i] = expected[i] / 2 + value_at(static_cast<std::int64_t>(i) % n, 3);
          out.fill(std::nan(""));
          linear(a, b, {bias}, out);
          check_close<float>(out, expected, enough);
        }
  const Tensor half = Tensor::zeros({2, 2}, DType::f16, test_device());
  const Tensor single = Tensor::zeros({2, 2}, DType::f32, test_device());
  const Tensor wide = Tensor::zeros({2, 2}, DType::f64, test_device());
  const Tensor brain = Tensor::zeros({2, 2}, DType::bf16, test_device());
  for (const Tensor& out : {wide, brain}) CHECK_THROWS_AS(matmul(half, half, out), DTypeError);
  CHECK_THROWS_AS(matmul(half, brain, single), DTypeError);
  CHECK_THROWS_AS(matmul(single, single, half), DTypeError);
  CHECK_THROWS_AS(linear(half, half, {Tensor::zeros({2}, DType::f16, test_device())}, single),
                  DTypeError);
}

// A library's code may lend the stack pointer to its own work. Then a handler writes there. (The
// signal may also come to another thread, such as those of CUDA's driver: these do not count.)
TEST_CASE("matmul: a signal of the program's, at any moment of a product, finds the stack") {
  static std::atomic<int> signals, elsewhere;
  static std::uintptr_t begin, end;
  static pid_t thread;
  signals = elsewhere = 0;
  thread = ::gettid();
  pthread_attr_t attributes;
  void* lowest = nullptr;
  std::size_t bytes = 0;
  REQUIRE(::pthread_getattr_np(::pthread_self(), &attributes) == 0);
  ::pthread_attr_getstack(&attributes, &lowest, &bytes);
  ::pthread_attr_destroy(&attributes);
  begin = reinterpret_cast<std::uintptr_t>(lowest);
  end = begin + bytes;
  struct sigaction handler {
  }, before{};
  handler.sa_sigaction = [](int, siginfo_t*, void*) {
    const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
    if (::gettid() != thread) return;
    ++signals;
    if (here < begin || here >= end) ++elsewhere;
  };
  handler.sa_flags = SA_RESTART | SA_SIGINFO;
  REQUIRE(::sigaction(SIGALRM, &handler, &before) == 0);
  const itimerval often{{0, 150}, {0, 150}}, never{};
  ::setitimer(ITIMER_REAL, &often, nullptr);
  bool right = true;
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const auto& [k, times] : {std::pair{64, 200}, {256, 200}, {784, 200}, {3000, 50}}) {
      const Tensor a = Tensor::full({8, k}, 0.5, dtype), b = Tensor::full({k, 512}, 2, dtype);
      const Tensor c = Tensor::zeros({8, 512}, DType::f32);
      for (int time = 0; time < times; ++time) {
        matmul(a, b, c);
        const float* const values = c.data<float>();
        for (const int i : {0, 511, 512, 4095}) right = right && values[i] == static_cast<float>(k);
      }
    }
  ::setitimer(ITIMER_REAL, &never, nullptr);
  ::sigaction(SIGALRM, &before, nullptr);
  CHECK(right);
  CHECK(signals.load() > 20);
  CHECK(elsewhere.load() == 0);
}
