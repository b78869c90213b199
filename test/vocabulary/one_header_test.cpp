// docs/from_pytorch.md says that all of its lines need one header: here they are compiled with that
// header alone. The other tests of this folder include more, and so would not notice one that is
// missing. Nothing here runs.

#include <lockstep/lockstep.h>

using namespace lockstep;

namespace {

/// What the lines find.
struct Names {
  World world;
  Tensor x, y, t, w, p, q, v, u, k, b, s, z, l, i, j, n, d, m;
  nn::Sequential model;
};

[[maybe_unused]] std::vector<Tensor> values_of(nn::Module&) { return {}; }
template <class F>
double sum_of(const std::vector<Parameter>&, F) {
  return 0;
}

/// What they come to.
struct Value {
  template <class T>
  Value(const T&) {}
  Value(std::initializer_list<Value>) {}
};

}  // namespace

#pragma GCC diagnostic ignored "-Wshadow"
#pragma GCC diagnostic ignored "-Wunused-variable"
#pragma GCC diagnostic ignored "-Wunused-but-set-variable"

#define LOCKSTEP_NAMES                                           \
  World& world = names.world;                                    \
  Tensor &x = names.x, &y = names.y, &t = names.t, &w = names.w; \
  nn::Sequential& model = names.model;                           \
  const auto fit = [&](auto&&) { return values_of(model); };

#define PROGRAM(text, ...)                      \
  static_cast<void>([](Names& names) -> Value { \
    LOCKSTEP_NAMES                              \
    __VA_ARGS__                                 \
  });
#define COMPILED(text, ...)                         \
  static_cast<void>([](Names& names) {              \
    LOCKSTEP_NAMES                                  \
    data::TensorDataset mine({{"x", x}, {"y", y}}); \
    __VA_ARGS__                                     \
  });
#define RANKS(text, ...) PROGRAM(text, __VA_ARGS__)
#define PAIR(text, ...) PROGRAM(text, return Value(__VA_ARGS__);)
#define FILLS(text, ...) PROGRAM(text, __VA_ARGS__; return Value(w);)

#define SAME(text, ...)                                                                        \
  static_cast<void>([](Names& names) -> Tensor {                                               \
    Tensor &x = names.x, &y = names.y, &p = names.p, &q = names.q, &v = names.v, &u = names.u, \
           &w = names.w, &k = names.k, &b = names.b, &t = names.t, &s = names.s, &z = names.z, \
           &l = names.l, &i = names.i, &j = names.j, &n = names.n, &d = names.d, &m = names.m; \
    return __VA_ARGS__;                                                                        \
  });
#define MEAN(text, ...) SAME(text, __VA_ARGS__)

[[maybe_unused]] static void with_one_header() {
#include "vocabulary/expressions.inc"
#include "vocabulary/layers.inc"
#include "vocabulary/ranks.inc"
#include "vocabulary/training.inc"
}
