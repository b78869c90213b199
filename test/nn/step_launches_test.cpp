// A training step of an MLP: the kernels that it launches on a GPU, and losses that are those of a
// step made of single operations.
#include <doctest/doctest.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

#include "lockstep/core/gpu/facts.h"
#include "lockstep/lockstep.h"
#include "support/device.h"

namespace step_launches_cases {
namespace {

using namespace lockstep;
using test::test_device;

/// Products by the ladder, as long as it lives.
struct Handwritten {
  kernels::GemmLibrary before = kernels::gemm_library();
  Handwritten() { kernels::set_gemm_library(kernels::GemmLibrary::handwritten); }
  ~Handwritten() { kernels::set_gemm_library(before); }
};

using Sizes = std::vector<std::int64_t>;

/// Linear layers with a ReLU between any two. `parts`: each operation is recorded alone.
struct Net {
  std::vector<Parameter> all;
  bool parts;
  Net(const Sizes& sizes, bool in_parts) : parts(in_parts) {
    manual_seed(3);
    for (std::size_t i = 0; i + 1 < sizes.size(); ++i) {
      const double bound = 1 / std::sqrt(static_cast<double>(sizes[i]));
      all.emplace_back((Tensor::randn({sizes[i + 1], sizes[i]}) * bound).to(test_device()));
      all.emplace_back((Tensor::randn({sizes[i + 1]}) * bound).to(test_device()));
    }
    for (std::size_t i = 0; i < all.size(); ++i) all[i].set_name(std::to_string(i));
  }
  Tensor operator()(Tensor x) const {
    for (std::size_t i = 0; i < all.size(); i += 2) {
      const bool last = i + 2 == all.size();
      if (last || parts)
        x = linear(x, all[i], all[i + 1]);
      else
        x = linear_relu(x, all[i], all[i + 1], true);
      if (!last && parts) x = relu(x);
    }
    return x;
  }
};

struct Run {
  std::vector<double> losses;
  std::map<std::string, std::uint64_t> launches;  // of the last step
  std::uint64_t all = 0;
};

Run train(const Sizes& sizes, std::int64_t batch, int steps, bool parts, DType factors) {
  const Handwritten handwritten;
  const Net net(sizes, parts);
  optim::SGD sgd(net.all, optim::SGD::Options{.lr = 0.1, .momentum = 0.9});
  manual_seed(4);
  const Tensor x = Tensor::randn({batch, sizes.front()}).to(test_device());
  const Tensor y = Tensor::randint(sizes.back(), {batch}).to(test_device());
  Run run;
  for (int step = 0; step < steps; ++step) {
    const std::map<std::string, std::uint64_t> before = gpu::kernel_launches();
    Tape tape;
    Tensor loss;
    {
      const Autocast autocast(factors);
      loss = nn::cross_entropy(net(x), y);
    }
    tape.backward(loss);
    sgd.step();
    sgd.zero_grad();
    run.launches.clear();
    for (const auto& [kernel, count] : gpu::kernel_launches()) {
      const auto at = before.find(kernel);
      if (const auto own = count - (at == before.end() ? 0 : at->second))
        run.launches[kernel] = own;
    }
    run.losses.push_back(loss.detach().item());
  }
  for (const auto& [kernel, count] : run.launches) run.all += count;
  return run;
}

std::string described(const Run& run) {
  std::string text;
  for (const auto& [kernel, count] : run.launches)
    text += kernel + " " + std::to_string(count) + "\n";
  return text;
}

}  // namespace

TEST_CASE("a step of an MLP: losses are those of single operations, in f32 and bf16") {
  for (const DType factors : {DType::f32, DType::bf16}) {
    CAPTURE(factors);
    const Sizes sizes{20, 33, 17, 10};
    const Run one = train(sizes, 24, 30, false, factors);
    const Run parts = train(sizes, 24, 30, true, factors);
    CHECK(one.losses.back() < one.losses.front() / 2);
    for (std::size_t i = 0; i < one.losses.size(); ++i)
      CHECK(one.losses[i] == doctest::Approx(parts.losses[i]).epsilon(1e-6));
  }
}

// 3 products forward, 5 backward, cross-entropy, the optimizer. Slices of a product meet in a
// cluster of blocks; GPUs without clusters have a further kernel for them. In bf16 the products
// round their factors.
TEST_CASE("a step of an MLP on a GPU is ten kernels, in f32 and in bf16") {
  if (test::on_cpu()) return;
  const bool clusters = gpu::facts().devices.front().capability >= 90;
  for (const DType factors : {DType::f32, DType::bf16}) {
    CAPTURE(factors);
    const Run run = train({784, 512, 256, 10}, 128, 2, false, factors);
    INFO(described(run));
    const auto folds = run.launches.find("gemm_fold_slices_kernel");
    const std::uint64_t slices = folds == run.launches.end() ? 0 : folds->second;
    CHECK((slices == 0) == clusters);
    CHECK(run.all == 10 + slices);
  }
}

}  // namespace step_launches_cases
