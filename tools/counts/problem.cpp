#include "lockstep/tools/counts/problem.h"

#include <fmt/ranges.h>
#include <fnmatch.h>

#include <algorithm>
#include <set>

#include "lockstep/core/error.h"

namespace lockstep::counts {

Tensor Tensors::zeros(const Shape& shape, DType dtype) const {
  return Tensor::zeros(shape, dtype).to(device_);
}

Tensor Tensors::read(const Shape& shape, DType dtype) {
  const Tensor tensor = zeros(shape, dtype);
  read_ += tensor.bytes();
  return tensor;
}

Tensor Tensors::written(const Shape& shape, DType dtype) {
  const Tensor tensor = zeros(shape, dtype);
  written_ += tensor.bytes();
  return tensor;
}

Tensor Tensors::both(const Shape& shape, DType dtype) {
  const Tensor tensor = read(shape, dtype);
  written_ += tensor.bytes();
  return tensor;
}

Tensor Tensors::indices(std::int64_t n, std::int64_t end) {
  const Tensor here = Tensor::zeros({n}, DType::i64);
  for (std::int64_t i = 0; i < n; ++i) here.data<std::int64_t>()[i] = i * 7 % end;
  read_ += here.bytes();
  return here.to(device_);
}

std::vector<Problem> memory_bound_problems() {
  std::vector<Problem> all;
  for (const auto part : {elementwise_problems, row_problems, update_problems})
    for (Problem& problem : part()) all.push_back(std::move(problem));
  return all;
}

std::vector<Problem> all_problems() {
  std::vector<Problem> all = memory_bound_problems();
  for (Problem& problem : ladder_problems()) all.push_back(std::move(problem));
  return all;
}

std::vector<Problem> chosen(const std::vector<std::string>& patterns) {
  std::vector<Problem> all = all_problems();
  if (patterns.empty()) return all;
  const auto matches = [](const std::string& pattern, const Problem& problem) {
    return fnmatch(pattern.c_str(), problem.name.c_str(), 0) == 0;
  };
  for (const std::string& pattern : patterns)
    if (std::ranges::none_of(all, [&](const auto& problem) { return matches(pattern, problem); })) {
      std::set<std::string> names;
      for (const Problem& problem : all) names.insert(problem.name);
      throw UsageError(fmt::format("count: no kernel is named '{}' (there are: {})", pattern,
                                   fmt::join(names, ", ")));
    }
  std::erase_if(all, [&](const Problem& problem) {
    return std::ranges::none_of(patterns, [&](const auto& p) { return matches(p, problem); });
  });
  return all;
}

}  // namespace lockstep::counts
