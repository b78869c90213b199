// What of kernels that draw and update elements takes how many times as long as a copy.
#include "kernels/ratios.h"
#include "lockstep/kernels/clip.h"
#include "lockstep/kernels/optimizer.h"
#include "lockstep/kernels/random.h"

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

namespace {

constexpr std::int64_t elements = 65536;

/// What a step updates, and what an optimizer may keep of it.
struct Updated {
  Tensor value = varied<float>({elements}, 1), gradient = varied<float>({elements}, 2);
  Tensor kept = Tensor::zeros({elements}), also = kept.clone(), too = kept.clone();
  Tensor step = Tensor::zeros({}, DType::i64), sum = Tensor::zeros({2}, DType::i64);
};

/// Of each optimizer every loop: a compiler may vectorize one and not the next.
class Steps {
 public:
  explicit Steps(bool terms) : terms_(terms) {
    for (const bool maximize : {false, true})
      for (const double decay : {0.0, 0.1}) all(maximize, decay);
  }

  std::vector<Timed> rows;

 private:
  void all(bool maximize, double decay) {
    for (const double momentum : {0.0, 0.9})
      for (const bool first : {false, true}) {
        add<SgdItem>("sgd",
                     SgdConfig{.momentum = momentum,
                               .weight_decay = decay,
                               .nesterov = momentum > 0 && first,
                               .maximize = maximize},
                     [=](const Updated& w, SgdItem& item) {
                       if (momentum > 0) item.momentum = w.kept;
                       item.first = first;
                     });
        const bool centered = first;
        add<RmspropItem>("rmsprop",
                         RmspropConfig{.weight_decay = decay,
                                       .momentum = momentum,
                                       .centered = centered,
                                       .maximize = maximize},
                         [=](const Updated& w, RmspropItem& item) {
                           item.square = w.kept;
                           if (centered) item.mean = w.also;
                           if (momentum > 0) item.momentum = w.too;
                         });
      }
    for (const bool amsgrad : {false, true})
      for (const bool decoupled : {false, true})
        add<AdamItem>("adam",
                      AdamConfig{.weight_decay = decay,
                                 .amsgrad = amsgrad,
                                 .maximize = maximize,
                                 .decoupled = decoupled},
                      [=](const Updated& w, AdamItem& item) {
                        item.mean = w.kept, item.variance = w.also, item.step = w.step;
                        if (amsgrad) item.max_variance = w.too;
                      });
    add<LionItem>("lion", LionConfig{.weight_decay = decay, .maximize = maximize},
                  [](const Updated& w, LionItem& item) { item.momentum = w.kept; });
  }

  template <class Item, class Config, class Keep>
  void add(const std::string& name, const Config& config, Keep keep) {
    const auto run = [config, keep, terms = terms_, w = Updated()] {
      Item item{};
      item.value = w.value, item.gradient = w.gradient;
      item.fingerprint = {.sum = &w.sum, .terms = terms};
      keep(w, item);
      step(std::span<const Item>(&item, 1), config);
    };
    rows.push_back({name + " " + std::to_string(rows.size()), terms_ ? 16.0 : 12.0, run});
  }

  static void step(std::span<const SgdItem> items, const SgdConfig& c) { sgd_step(items, c); }
  static void step(std::span<const AdamItem> items, const AdamConfig& c) { adam_step(items, c); }
  static void step(std::span<const LionItem> items, const LionConfig& c) { lion_step(items, c); }
  static void step(std::span<const RmspropItem> items, const RmspropConfig& c) {
    rmsprop_step(items, c);
  }

  bool terms_;
};

std::vector<Timed> draws(const Tensor& x, const Tensor& out) {
  const PhiloxState state{.seed = 3};
  const Tensor mask = Tensor::zeros(x.shape(), DType::u8), norm = Tensor::zeros({}, DType::f64);
  return {
      {"dropout", 110, [=] { dropout(state, x, 0.4, out, mask); }},
      {"dropout_backward", 12, [=] { dropout_backward(x, mask, 0.4, out, false); }},
      {"global_norm", 8, [=] { global_norm(std::span(&x, 1), norm); }},
  };
}

}  // namespace

TEST_CASE("ratios: no optimizer's step takes many times as long as a copy") {
  if (!worth_timing()) return;
  const Updated t;
  for (const bool terms : {false, true}) check_ratios(t.value, t.kept, Steps(terms).rows);
}

TEST_CASE("ratios: no kernel that draws takes many times as long as a copy") {
  if (!worth_timing()) return;
  const Updated t;
  check_ratios(t.value, t.kept, draws(t.value, t.also));
}
