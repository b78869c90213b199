// Which gradient lies in which bucket, and in which order they become ready: from a real reducer.

#include <algorithm>
#include <cmath>
#include <mutex>

#include "lockstep/lockstep.h"
#include "tour/pictures/pictures.h"
#include "tour/pictures/svg.h"

namespace lockstep::test {
namespace {

constexpr double page_width = 860, column = 120;

class ReadyOrder final : public GradientObserver {
 public:
  explicit ReadyOrder(const std::vector<Parameter>& parameters) {
    for (const Parameter& parameter : parameters) observations_.push_back(parameter.observe(*this));
  }
  void gradient_ready(const Parameter& parameter) override { names.push_back(parameter.name()); }
  std::vector<std::string> names;

 private:
  std::vector<Observation> observations_;
};

struct Found {
  struct Member {
    std::string name;
    std::int64_t elements = 0;
  };
  std::vector<Member> registered;
  std::vector<std::string> ready;
  struct Bucket {
    std::vector<Member> members;
    std::int64_t elements =
        0;  // with what lies between gradients, so that none shares a cache line
  };
  std::vector<Bucket> buckets;
  std::int64_t trailer = 0;  // elements
};

Found second_step() {
  Found found;
  run_threads(2, {}, [&](World& world) {
    manual_seed(0);
    nn::Sequential model{nn::Linear(784, 512), nn::ReLU(), nn::Linear(512, 256), nn::ReLU(),
                         nn::Linear(256, 10)};
    dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world);
    const auto backward = [&] {
      Tape tape;
      tape.backward(
          nn::cross_entropy(model(Tensor::full({4, 784}, 0.1)), Tensor::zeros({4}, DType::i64)));
      for (const Parameter& parameter : model.parameters()) parameter.zero_grad();
    };
    backward();  // after it the buckets follow the ready order
    const ReadyOrder order(model.parameters());
    backward();
    if (world.rank() != 0) return;
    for (const Parameter& parameter : model.parameters())
      found.registered.push_back({parameter.name(), parameter.value().numel()});
    found.ready = order.names;
    for (const auto& bucket : ddp.buckets().all()) {
      found.buckets.push_back({{}, bucket.memory.numel()});
      for (const Parameter& parameter : bucket.parameters)
        found.buckets.back().members.push_back({parameter.name(), parameter.value().numel()});
    }
    found.trailer = ddp.buckets().used().numel() + ddp.buckets().metadata().numel();
  });
  return found;
}

/// How wide a gradient is drawn, in any unit: the names of small ones must be read, too.
double drawn(std::int64_t elements) {
  return std::max(70.0, 2.6 * std::cbrt(static_cast<double>(elements)));
}

}  // namespace

std::string buckets_picture() {
  const Found found = second_step();
  double sum = 0;
  for (const auto& member : found.registered) sum += drawn(member.elements);
  const double scale = (page_width - column - 20) / (sum + 120);
  const auto width_of = [&](std::int64_t elements) { return scale * drawn(elements); };
  Svg svg(page_width, 272, "Parameters, the order in which gradients become ready, and buckets");
  svg.text(8, 36, "registered");
  double x = column;
  std::vector<std::pair<std::string, double>> middle;
  for (const auto& [name, elements] : found.registered) {
    const double w = width_of(elements);
    svg.box(x, 16, w - 3, 30, "light");
    svg.text(x + w / 2, 36, name, "middle", "s");
    middle.emplace_back(name, x + w / 2);
    x += w;
  }
  svg.text(8, 112, "ready, in time");
  svg.text(8, 128, "backward runs", "start", "s");
  const double slot = (x - column) / static_cast<double>(found.ready.size());
  for (std::size_t k = 0; k < found.ready.size(); ++k) {
    const double at = column + slot * (static_cast<double>(k) + 0.5);
    const auto from =
        std::ranges::find(middle, found.ready[k], &std::pair<std::string, double>::first);
    svg.arrow(from->second, 48, at, 92);
    svg.box(at - slot / 2 + 6, 94, slot - 12, 30, "part2");
    svg.text(at, 114, fmt::format("{}. {}", k + 1, found.ready[k]), "middle", "t");
  }
  svg.text(8, 216, "memory");
  x = column;
  std::size_t ready = 0;
  for (std::size_t b = 0; b < found.buckets.size(); ++b) {
    const double begin = x;
    for (const auto& [name, elements] : found.buckets[b].members) {
      const double w = width_of(elements);
      svg.box(x, 196, w - 3, 30, "bucket");
      svg.text(x + w / 2, 216, name, "middle", "w");
      x += w;
      ++ready;
    }
    if (b + 1 == found.buckets.size()) {
      svg.box(x, 196, 70, 30, "optimizer");
      svg.text(x + 35, 216, "metadata", "middle", "w");
      svg.text(x + 35, 246, fmt::format("{} elements", found.trailer), "middle", "s");
    }
    svg.text((begin + x) / 2, 246,
             fmt::format("bucket {}: {} gradients, {} elements", b, found.buckets[b].members.size(),
                         found.buckets[b].elements),
             "middle", "s");
    const double at = column + slot * (static_cast<double>(ready) - 0.5);
    svg.arrow(at, 126, (begin + x) / 2, 192);
    svg.text((at + (begin + x) / 2) / 2 + 10, 164, fmt::format("launches bucket {}", b), "start",
             "s");
    x += 24;
  }
  return svg.str();
}

}  // namespace lockstep::test
