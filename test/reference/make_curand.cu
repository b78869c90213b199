// Writes curand.json: elements of long tensors as PyTorch draws them on a GPU of 132
// multiprocessors, for test/kernels/random_test.cpp. Computed by cuRAND's own functions, on the
// processor, in the layouts of PyTorch's kernels (aten/src/ATen/native/cuda,
// DistributionTemplates.h and Dropout.cu): what each thread draws, and to which elements it gives
// it. "uniform" is on (0, 1], as cuRAND has it; "dropout" is the number by which an element is
// kept, if it is below 1 - p.
//
// Usage: nvcc -O2 -o make_curand make_curand.cu && ./make_curand > curand.json    (needs no GPU)

// What cuRAND declares its functions with; it lets the includer choose.
#define QUALIFIERS static inline __host__ __device__
#include <curand_kernel.h>

#include <cstdint>
#include <cstdio>
#include <string>
#include <vector>

namespace {

constexpr std::int64_t threads = 132 * 2048;

struct Case {
  std::string kind, dtype;
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
  if (c.kind == "dropout") {
    auto state = state_of(c, i / 4 % threads, i / 4 / threads);
    return number(curand_uniform4(&state), i % 4);
  }
  const int per_call = c.dtype == "f64" ? 2 : 4;
  auto state = state_of(c, i % threads, i / threads / per_call);
  const std::int64_t k = i / threads % per_call;
  if (c.dtype == "f32")
    return number(c.kind == "uniform" ? curand_uniform4(&state) : curand_normal4(&state), k);
  const double2 v =
      c.kind == "uniform" ? curand_uniform2_double(&state) : curand_normal2_double(&state);
  return k == 0 ? v.x : v.y;
}

void print(const Case& c, const char* separator) {
  const std::int64_t round = threads * (c.dtype == "f64" ? 2 : 4);
  std::printf(
      "%s\n  {\"kind\": \"%s\", \"dtype\": \"%s\", \"seed\": %llu, \"offset\": %llu, "
      "\"elements\": [",
      separator, c.kind.c_str(), c.dtype.c_str(), static_cast<unsigned long long>(c.seed),
      static_cast<unsigned long long>(c.offset));
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
  const char* separator = "";
  for (const char* dtype : {"f32", "f64"})
    for (const char* kind : {"uniform", "normal"}) {
      print({kind, dtype, 7, 0}, separator);
      separator = ",";
      // A seed of two words, and an offset from which the counter carries into its second word.
      print({kind, dtype, 0x123456789abcdef, std::uint64_t{4} * 0xffffffff}, separator);
    }
  print({"dropout", "f32", 7, 0}, separator);
  print({"dropout", "f32", 0x123456789abcdef, 12}, separator);
  std::printf("\n]\n");
}
