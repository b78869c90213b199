// Losses that are divided by what labels count for, and not by their number, on several ranks: the
// gradient of one process on the whole batch, or a refusal.

#include <doctest/doctest.h>

#include <functional>
#include <mutex>

#include "lockstep/lockstep.h"
#include "support/text.h"

using namespace lockstep;

namespace class_weights {
namespace {

constexpr std::int64_t samples = 45;

data::TensorDataset make_data() {
  manual_seed(5);
  const Tensor x = Tensor::randn({samples, 6}), y = Tensor::empty({samples}, DType::i64);
  for (std::int64_t i = 0; i < samples; ++i)
    y.data<std::int64_t>()[i] = i % 7 == 6 ? -100 : (i * i) % 4;
  return data::TensorDataset({{"x", x}, {"y", y}});
}

using Loss = std::function<Tensor(const Tensor& logits, const Tensor& labels)>;
using Of = std::function<Weight(const data::Batch&)>;

/// The parameters after an epoch, whose steps have 15 samples in any world.
std::vector<float> trained(int ranks, const Loss& loss, const Of& weight) {
  std::vector<float> result;
  std::mutex mutex;
  run_threads(ranks, {}, [&](World& world) {
    manual_seed(1);
    nn::Sequential model{nn::Linear(6, 4)};
    optim::SGD optimizer(model.parameters(), {.lr = 0.5});
    dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    for (const data::Batch& batch :
         data::Loader(make_data(), {.total_batch = 15, .shuffle = true}, world)) {
      Tape tape;
      tape.backward(loss(model(batch.x), batch.y), weight(batch));
      optimizer.step();
      optimizer.zero_grad();
    }
    const std::lock_guard lock(mutex);
    result = model.parameters()[0].value().to_vector<float>();
  });
  return result;
}

struct Case {
  const char* name;
  CrossEntropyOptions options;
};

std::vector<Case> cases() {
  const Tensor weight = Tensor::from({0.2F, 1.0F, 3.0F, 7.0F});
  return {{"class weights", {.weight = weight}},
          {"ignored rows", {.label_smoothing = 0.1}},
          {"both", {.weight = weight, .label_smoothing = 0.2}}};
}

}  // namespace

TEST_CASE("class weights: batch.weight is refused on several ranks") {
  for (const Case& one : cases()) {
    CAPTURE(one.name);
    const auto message = [&](int ranks, const Loss& loss, const Of& weight) {
      try {
        (void)trained(ranks, loss, weight);
      } catch (const StateError& error) {
        return std::string(error.what());
      }
      return std::string();
    };
    const Loss plain = [&](const Tensor& logits, const Tensor& labels) {
      return nn::cross_entropy(logits, where(labels == -100.0, 0.0, labels), one.options);
    };
    const Loss ignoring = [&](const Tensor& logits, const Tensor& labels) {
      return nn::cross_entropy(logits, labels, one.options) * 0.5 + mean(square(logits)) * 0.1;
    };
    const Loss of_nll = [&](const Tensor& logits, const Tensor& labels) {
      return nn::nll(log_softmax(logits), labels, one.options);
    };
    const Of samples_of = [](const data::Batch& batch) { return batch.weight; };
    const bool weighs = one.options.weight.defined();
    CHECK(test::contains(message(2, plain, samples_of), weighs ? "what its labels count for" : ""));
    if (!weighs) CHECK(message(2, plain, samples_of) == "");  // no row is ignored
    for (const Loss& loss : {ignoring, of_nll}) {
      const std::string text = message(3, loss, samples_of);
      CHECK(test::contains(text, "[backward] the loss is divided by what its labels count for"));
      CHECK(test::contains(text, "batch.weight.counting(label_weight(labels, options))"));
    }
    // A process alone divides by what it has, and a mean of the ranks' means was asked for.
    CHECK(message(1, of_nll, samples_of) == "");
    CHECK(message(2, of_nll, [](const data::Batch&) { return Weight{1, 2}; }) == "");
  }
}

TEST_CASE("class weights: with the labels' own weight several ranks train as one") {
  for (const Case& one : cases()) {
    CAPTURE(one.name);
    const Loss loss = [&](const Tensor& logits, const Tensor& labels) {
      return nn::cross_entropy(logits, labels, one.options);
    };
    const Of own = [&](const data::Batch& batch) {
      return batch.weight.counting(label_weight(batch.y, one.options));
    };
    const std::vector<float> whole =
        trained(1, loss, [](const data::Batch& batch) { return batch.weight; });
    for (const int ranks : {1, 2, 3, 4}) {
      CAPTURE(ranks);
      const std::vector<float> split = trained(ranks, loss, own);
      REQUIRE(split.size() == whole.size());
      for (std::size_t i = 0; i < whole.size(); ++i)
        CHECK(split[i] == doctest::Approx(whole[i]).epsilon(1e-5));
    }
  }
}

}  // namespace class_weights
