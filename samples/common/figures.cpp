#include "lockstep/samples/common/figures.h"

#include <algorithm>
#include <fstream>

namespace lockstep::samples {

std::string fixed(double value, int decimals) {
  std::string text = fmt::format("{:.{}f}", value, decimals);
  if (text.front() == '-' && text.find_first_not_of("-0.") == std::string::npos) text.erase(0, 1);
  return text;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

double waited_for_core() {
  double ran = 0, waited = 0;  // nanoseconds
  std::ifstream("/proc/thread-self/schedstat") >> ran >> waited;
  return waited / 1e9;
}

std::vector<std::vector<double>> gather(const World& world, const std::vector<double>& values) {
  const auto count = static_cast<std::int64_t>(values.size());
  const Tensor all = Tensor::empty({world.size(), count}, DType::f64);
  world.communicator()
      .all_gather(Tensor::of({count}, values), all.view({all.numel()}), "figures")
      .wait();
  std::vector<std::vector<double>> result;
  for (int rank = 0; rank < world.size(); ++rank)
    result.push_back(all.slice(rank, rank + 1).to_vector<double>());
  return result;
}

void Comparison::expect(std::string_view what, double actual, double published, int decimals) {
  ++figures_;
  const std::string here = fixed(actual, decimals), there = fixed(published, decimals);
  if (here != there && first_difference_.empty())
    first_difference_ = fmt::format("{}: {} here, {} published", what, here, there);
}

void Comparison::claim(std::string_view what, bool holds) {
  if (!holds && first_difference_.empty())
    first_difference_ = fmt::format("this does not hold: {}", what);
}

std::string Comparison::verdict() const {
  if (!first_difference_.empty()) fail<Error>("{}", first_difference_);
  return figures_ ? fmt::format("All {} figures agree with those published.", figures_)
                  : "There are no published figures to compare with.";
}

}  // namespace lockstep::samples
