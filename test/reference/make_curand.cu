// Writes curand.json: for elements of long tensors the number by which PyTorch's dropout keeps one
// on a GPU of 132 multiprocessors, if it is below 1 - p; for test/kernels/random_test.cpp. Computed
// by cuRAND's own functions, on the processor, in the layout of PyTorch's kernel
// (aten/src/ATen/native/cuda/Dropout.cu): what each thread draws, and which elements get it.
//
// Usage: nvcc -O2 -o make_curand make_curand.cu && ./make_curand > curand.json    (needs no GPU)

// What cuRAND declares its functions with; it lets the includer choose.
#define QUALIFIERS static inline __host__ __device__
#include <curand_kernel.h>

#include <cstdint>
#include <cstdio>

namespace {

constexpr std::int64_t threads = 132 * 2048;

struct Case {
  std::uint64_t seed, offset;
};

curandStatePhilox4_32_10_t state_of(const Case& c, std::int64_t thread, std::int64_t round) {
  curandStatePhilox4_32_10_t state;
  curand_init(c.seed, static_cast<std::uint64_t>(thread), c.offset, &state);
  for (std::int64_t i = 0; i < round; ++i) curand4(&state);
  return state;
}

double number(const float4& v, std::int64_t k) {
  return k == 0 ? v.x : k == 1 ? v.y : k == 2 ? v.z : v.w;
}

double element(const Case& c, std::int64_t i) {
  auto state = state_of(c, i / 4 % threads, i / 4 / threads);
  return number(curand_uniform4(&state), i % 4);
}

void print(const Case& c, const char* separator) {
  const std::int64_t round = threads * 4;
  std::printf("%s\n  {\"seed\": %llu, \"offset\": %llu, \"elements\": [", separator,
              static_cast<unsigned long long>(c.seed), static_cast<unsigned long long>(c.offset));
  const char* comma = "";
  for (const std::int64_t i :
       {std::int64_t{0}, std::int64_t{1}, std::int64_t{2}, std::int64_t{3}, std::int64_t{7},
        std::int64_t{255}, std::int64_t{256}, threads - 1, threads, threads + 6, 2 * threads - 1,
        round - 1, round, round + 1}) {
    std::printf("%s\n    [%lld, %.17g]", comma, static_cast<long long>(i), element(c, i));
    comma = ",";
  }
  std::printf("]}");
}

}  // namespace

int main() {
  std::printf("[");
  print({7, 0}, "");
  print({0x123456789abcdef, 12}, ",");  // a seed of two words
  std::printf("\n]\n");
}
