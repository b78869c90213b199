// The digest by which ranks compare how they stepped: every option of every optimizer is in it.

#include <doctest/doctest.h>

#include <set>

#include "lockstep/nn/optim/optimizer.h"

using namespace lockstep;

namespace {

/// The digest is for optimizers alone: this is one, in name.
struct Digest : optim::Optimizer {
  static std::uint64_t of(const optim::Optimizer& optimizer) {
    return (optimizer.*(&Digest::options_digest))();
  }
};

const std::vector<Parameter> one{Parameter(Tensor::zeros({2}), "w")};

template <class O>
std::uint64_t digest_of(const typename O::Options& options) {
  return Digest::of(O(one, options));
}

/// Whether all digests differ. The first is that of the options by default.
template <class O>
void check_all_differ(const std::vector<typename O::Options>& variants) {
  std::set<std::uint64_t> digests{digest_of<O>({})};
  for (const auto& options : variants) {
    CAPTURE(digests.size());
    CHECK(digests.insert(digest_of<O>(options)).second);
    CHECK(digest_of<O>(options) == digest_of<O>(options));
  }
}

}  // namespace

TEST_CASE("options digest: no option of an optimizer is left out") {
  check_all_differ<optim::SGD>({{.lr = 0.5},
                                {.momentum = 0.5},
                                {.momentum = 0.5, .nesterov = true},
                                {.dampening = 0.5},
                                {.weight_decay = 0.5},
                                {.maximize = true}});
  check_all_differ<optim::Adam>({{.lr = 0.5},
                                 {.beta1 = 0.5},
                                 {.beta2 = 0.5},
                                 {.eps = 0.5},
                                 {.weight_decay = 0.5},
                                 {.amsgrad = true},
                                 {.maximize = true},
                                 {.decoupled = true}});
  check_all_differ<optim::AdamW>({{.lr = 0.5},
                                  {.beta1 = 0.5},
                                  {.beta2 = 0.5},
                                  {.eps = 0.5},
                                  {.weight_decay = 0.5},
                                  {.amsgrad = true},
                                  {.maximize = true}});
  check_all_differ<optim::RMSprop>({{.lr = 0.5},
                                    {.alpha = 0.5},
                                    {.eps = 0.5},
                                    {.weight_decay = 0.5},
                                    {.momentum = 0.5},
                                    {.centered = true},
                                    {.maximize = true}});
  check_all_differ<optim::Lion>(
      {{.lr = 0.5}, {.beta1 = 0.5}, {.beta2 = 0.5}, {.weight_decay = 0.5}, {.maximize = true}});
}

TEST_CASE("options digest: optimizers with the same options, and their groups, differ") {
  using namespace optim;
  CHECK(digest_of<Adam>({.weight_decay = 0.5}) != digest_of<AdamW>({.weight_decay = 0.5}));
  CHECK(digest_of<SGD>({}) != digest_of<Adam>({}));
  const Parameter second(Tensor::zeros({3}), "v");
  const auto of_two = [&](double first_lr, double second_lr) {
    return Digest::of(SGD(
        std::vector<Group<SGD::Given>>{{one, {.lr = first_lr}}, {{second}, {.lr = second_lr}}}));
  };
  CHECK(of_two(0.1, 0.2) == of_two(0.1, 0.2));
  CHECK(of_two(0.1, 0.2) != of_two(0.2, 0.1));
  CHECK(of_two(0.1, 0.2) != of_two(0.1, 0.1));
  SGD grown(one, {.lr = 0.1});
  const std::uint64_t before = Digest::of(grown);
  grown.add_param_group({second}, {.lr = 0.1});
  CHECK(Digest::of(grown) != before);
  CHECK(Digest::of(grown) == of_two(0.1, 0.1));
}
