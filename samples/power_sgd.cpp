// `./lockstep sample power_sgd`: a communication hook of your own. It sends gradients as products
// of two thin matrices, and adds what it left out to the next gradient: PowerSGD with error
// feedback (Vogels, Karimireddy and Jaggi, PowerSGD: Practical Low-Rank Gradient Compression for
// Distributed Optimization, NeurIPS 2019, algorithm 1).
//
// Rank k has the gradient M_k (m, n) of a matrix, what it kept E_k, and Q (r, n), which is the same
// on all ranks. Both collectives move less than M_k, if r (m + n) < m n:
//
//     A_k  = M_k + E_k
//     P    = sum over ranks of Q A_k^T        all-reduced: r m elements
//     P    = orthonormal rows of P            alike on all ranks, as P is
//     Q_k  = P A_k
//     E_k  = A_k - P^T Q_k                    what this rank did not send: kept for the next step
//     Q    = sum over ranks of Q_k            all-reduced: r n elements
//     sum := P^T Q                            in the place of the sum of the M_k
//
// It is not the mean gradient, and nothing hides the second all-reduce: it pays where the link is
// slow and matrices are large.

#include <lockstep/kernels/elementwise.h>
#include <lockstep/kernels/matmul.h>
#include <lockstep/kernels/reduce.h>
#include <lockstep/launch/report.h>
#include <lockstep/lockstep.h>

#include <cmath>
#include <map>

using namespace lockstep;

namespace {

constexpr int ranks = 2, epochs = 8;
constexpr std::int64_t batch = 64;  // samples of all ranks in a step

/// Gram-Schmidt. A row of which nothing but rounding is left becomes zero.
void orthonormalize(const Tensor& p) {
  const std::vector<Tensor> rows = p.rows();
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const double before = norm(rows[i]).item();
    for (std::size_t k = 0; k < i; ++k)
      rows[i].copy_from(rows[i] - rows[k] * sum(rows[i] * rows[k]));
    const double length = norm(rows[i]).item();
    length <= 1e-6 * before ? rows[i].fill_zero() : rows[i].copy_from(rows[i] / length);
  }
}

/// Draws the rows of Q that are zero, and would stay so, or not finite. All ranks draw the same.
void refill(const Tensor& q) {
  const Tensor drawn = Tensor::empty(q.shape());
  Generator(0).normal(drawn);
  const std::vector<Tensor> rows = q.rows(), fresh = drawn.rows();
  for (std::size_t i = 0; i < rows.size(); ++i)
    if (const double length = norm(rows[i]).item(); !(length > 0 && std::isfinite(length)))
      rows[i].copy_from(fresh[i]);
}

class PowerSgd final : public dist::CommunicationHook {
 public:
  explicit PowerSgd(std::int64_t rank) : rank_(rank) {}
  std::string name() const override { return fmt::format("PowerSGD, rank {}", rank_); }

  /// Called again after the first step, for other buckets: what is kept belongs to parameters.
  void prepare(std::span<const dist::BucketView> views, dist::Communicator& world) override {
    buckets_.clear();
    for (const dist::BucketView& view : views) {
      // From the front P and gradients that travel as they are, from the back Q.
      const Tensor wire = world.allocate(view.memory.numel(), DType::f32);
      std::int64_t begin = 0, end = wire.numel();
      const auto at_front = [&](const Shape& shape) {
        begin += shape.numel();
        return wire.slice(begin - shape.numel(), begin).view(shape);
      };
      Bucket& bucket = buckets_.emplace_back();
      for (const Parameter& parameter : view.parameters) {
        const Tensor& gradient = parameter.gradient_slot();
        const Shape& shape = gradient.shape();
        if (shape.rank() != 2 || rank_ * (shape[0] + shape[1]) >= shape[0] * shape[1]) {
          bucket.plain.emplace_back(gradient, at_front(shape));
          continue;
        }
        Kept& kept = kept_[parameter.id()];
        if (!kept.q.defined())
          kept = {Tensor::zeros(shape), Tensor::zeros({rank_, shape[1]})}, refill(kept.q);
        end -= rank_ * shape[1];
        const Tensor q = wire.slice(end, end + rank_ * shape[1]).view({rank_, shape[1]});
        bucket.low.push_back({gradient, at_front({rank_, shape[0]}), q, kept});
      }
      bucket.first = wire.slice(0, begin);
      bucket.second = wire.slice(end, wire.numel());
    }
  }

  dist::Work reduce(const dist::BucketView& view, dist::Communicator& world) override {
    const Bucket& bucket = buckets_[static_cast<std::size_t>(view.index)];
    for (const auto& [gradient, copy] : bucket.plain) copy.copy_from(gradient);
    for (const Low& low : bucket.low) {
      kernels::scale(1, low.gradient, low.kept.error, true);  // E_k becomes A_k
      kernels::matmul(low.kept.q, low.kept.error, low.p, {.transpose_b = true});
    }
    return world.all_reduce(bucket.first, view.name);
  }

  void complete(const dist::BucketView& view, dist::Communicator& world) override {
    const Bucket& bucket = buckets_[static_cast<std::size_t>(view.index)];
    for (const auto& [gradient, copy] : bucket.plain) gradient.copy_from(copy);
    for (const Low& low : bucket.low) {
      orthonormalize(low.p);
      kernels::matmul(low.p, low.kept.error, low.q);
      kernels::matmul(low.p, low.q, low.gradient, {.transpose_a = true});
      kernels::scale(-1, low.gradient, low.kept.error, true);
      // An infinite gradient spoils its own step (DdpOptions::nonfinite), and not those after it.
      if (!kernels::all_finite(low.kept.error)) low.kept.error.fill_zero();
    }
    if (bucket.low.empty()) return;
    world.all_reduce(bucket.second, fmt::format("{}, second", view.name)).wait();
    for (const Low& low : bucket.low) {
      kernels::matmul(low.p, low.q, low.gradient, {.transpose_a = true});
      low.kept.q.copy_from(low.q);
      refill(low.kept.q);
    }
  }

 private:
  /// From step to step. nn::Checkpoint does not have it: a resumed run begins with an empty error.
  struct Kept {
    Tensor error, q;
  };
  struct Low {
    Tensor gradient, p, q;
    Kept kept;  // handles of the tensors in kept_
  };
  struct Bucket {
    std::vector<std::pair<Tensor, Tensor>> plain;  // a gradient, and its copy that travels
    std::vector<Low> low;
    Tensor first, second;  // what the two all-reduces sum
  };
  std::int64_t rank_;
  std::vector<Bucket> buckets_;
  std::map<const void*, Kept> kept_;  // by Parameter::id()
};

/// The bytes of a step (Communicator::bytes_moved), and the accuracy at the end.
std::pair<std::uint64_t, double> train(World& world, const data::TrainTest& digits,
                                       std::shared_ptr<dist::CommunicationHook> hook) {
  manual_seed(0);
  nn::Sequential model{nn::Linear(64, 128), nn::ReLU(), nn::Linear(128, 64), nn::ReLU(),
                       nn::Linear(64, 10)};
  optim::SGD optimizer(model.parameters(), {.lr = 0.05, .momentum = 0.9});
  dist::DistributedDataParallel ddp(model.parameters(), model.buffers(), world,
                                    {.hook = std::move(hook)});
  std::uint64_t bytes = 0;
  for (int epoch = 0; epoch < epochs; ++epoch)
    for (const data::Batch& part :
         data::Loader(digits.train, {.total_batch = batch, .shuffle = true}, world, epoch)) {
      const std::uint64_t before = world.communicator().bytes_moved();
      Tape tape;
      tape.backward(nn::cross_entropy(model(part.x), part.y), part.weight);
      bytes = world.communicator().bytes_moved() - before;
      optimizer.step();
      optimizer.zero_grad();
    }
  const Tensor right = argmax(model(digits.test["x"]), 1) == digits.test["y"];
  return {bytes, sum(right).item() / static_cast<double>(digits.test.size())};
}

}  // namespace

int main() {
  return run_main([] {
    const data::TrainTest digits = data::load_idx(LOCKSTEP_SAMPLES_DATA "/digits");
    fmt::print("{} ranks, {} epochs of {} digits\n\n", ranks, epochs, digits.train.size());
    fmt::print("{:<18}{:>14}  {:>13}\n", "hook", "bytes per step", "test accuracy");
    std::vector<std::pair<std::uint64_t, double>> results;
    run_threads(ranks, {}, [&](World& world) {
      for (const auto& hook : {std::shared_ptr<PowerSgd>(), std::make_shared<PowerSgd>(4)}) {
        const auto [bytes, accuracy] = train(world, digits, hook);
        if (world.rank() > 0) continue;
        fmt::print("{:<18}{:>14}  {:>13.4f}\n", hook ? hook->name() : "none", bytes, accuracy);
        results.emplace_back(bytes, accuracy);
      }
    });
    const auto [plain, low] = std::pair(results[0], results[1]);
    const bool holds = low.first * 4 < plain.first && low.second > plain.second - 0.02;
    fmt::print("\n{}\n", holds ? "Less than a quarter of the bytes, and it learns as much."
                               : "It sends too much, or learns too little: this should not be.");
    return holds ? 0 : 1;
  });
}
