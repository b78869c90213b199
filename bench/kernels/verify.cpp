#include "verify.h"

#include <cmath>
#include <limits>

#include "lockstep/core/gpu/stream.h"

namespace bench {
namespace {

using namespace lockstep;

constexpr std::int64_t most_operations = 1 << 24;

double poison_for(DType dtype) {
  switch (dtype) {
    case DType::u8: return 255;
    case DType::i32:
    case DType::i64: return -1;
    default: return std::numeric_limits<double>::quiet_NaN();
  }
}

void poison(const Case& work) {
  for (const Output& output : work.outputs) {
    const Tensor& tensor = output.tensor;
    bool is_input = false;
    for (const Tensor& input : work.inputs) is_input |= input.raw() == tensor.raw();
    if (is_input) continue;
    tensor.fill(poison_for(tensor.dtype()));
  }
}

/// Where to look among n elements: everywhere, or in each of `parts` equal parts, at a place that
/// differs from part to part.
std::vector<std::int64_t> places(std::int64_t n, std::int64_t parts) {
  parts = std::min(parts, n);
  std::vector<std::int64_t> result;
  for (std::int64_t part = 0; part < parts; ++part) {
    const std::int64_t begin = part * n / parts, end = (part + 1) * n / parts;
    const std::uint64_t hash = static_cast<std::uint64_t>(part) * 0x9e3779b97f4a7c15u >> 20;
    result.push_back(begin + static_cast<std::int64_t>(hash) % (end - begin));
  }
  return result;
}

}  // namespace

Values::Values(const Tensor& tensor)
    : host_(tensor.device() == Device{} ? tensor.clone() : tensor.to(Device{})) {}

double Values::operator[](std::int64_t i) const {
  return visit_any(host_.dtype(), [&](auto zero) {
    using T = decltype(zero);
    return static_cast<double>(reinterpret_cast<const T*>(host_.raw())[i]);
  });
}

void verify(const Case& work, const Contender& contender) {
  std::vector<Values> inputs;
  for (const Tensor& input : work.inputs) inputs.emplace_back(input);
  poison(work);
  contender.run();
  for (std::size_t k = 0; k < work.outputs.size(); ++k) {
    const Output& output = work.outputs[k];
    const Values actual(output.tensor);
    const std::vector<std::int64_t> where =
        places(actual.size(), std::max<std::int64_t>(1, most_operations / output.cost));
    std::vector<double> expected;
    double squares = 0;
    for (const std::int64_t i : where) {
      expected.push_back(output.expected(inputs, i));
      squares += expected.back() * expected.back();
    }
    const double typical = std::sqrt(squares / static_cast<double>(where.size()));
    for (std::size_t s = 0; s < where.size(); ++s) {
      const double got = actual[where[s]], wanted = expected[s];
      const double allowed = output.tolerance * std::max(std::abs(wanted), typical);
      if (!(std::abs(got - wanted) <= allowed))
        fail<VerificationError>("[verify] {}: output {} has {} at element {} instead of {} (+- {})",
                                contender.name, k, got, where[s], wanted, allowed);
    }
  }
}

}  // namespace bench
