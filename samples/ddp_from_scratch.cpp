// `./lockstep sample ddp_from_scratch`: distributed data parallelism in one file.
//
// N ranks hold N copies of one model. In each step every rank computes gradients from its own rows.
// The ranks add up their gradients, and every rank takes the same optimizer step. The copies
// therefore stay equal, bit for bit, and the training is that of one process on all rows.
//
// Here a rank is a thread, and everything that happens between ranks is written out. The library
// only reads the data and computes: matrix products, the loss, the optimizer's formula. The trained
// parameters have the same bits as those of `./lockstep train --comm ring --bucket-cap-mb
// 0.0390625`. Each part names the files in which the real one lives.
//
// One step of one rank: backward computes the last layer's gradients first. They travel while it
// computes those of the earlier layers. Communication and computation overlap.
//
//     computing thread       | forward | backward: 4.w 4.b 2.w | 2.b 0.w 0.b | wait | step |
//     communication thread                                     |- bucket 0 -|- bucket 1 -|
//
// Not here: failures (an exception ends the program), parameters that a loss does not use, sample
// weights whose total is unknown, processes, GPUs: docs/ddp.md explains what the library does.

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/digest.h"
#include "lockstep/core/generator.h"
#include "lockstep/data/idx_folder.h"
#include "lockstep/data/loader.h"
#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/loss.h"
#include "lockstep/kernels/matmul.h"
#include "lockstep/kernels/optimizer.h"
#include "lockstep/kernels/reduce.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/cli.h"

namespace {

using namespace lockstep;

// These are the defaults of `./lockstep train`, except the cap: 25 MiB would hold all gradients.
constexpr std::int64_t widths[] = {64, 128, 64, 10};
constexpr std::size_t layers = std::size(widths) - 1;
constexpr std::uint64_t seed = 0;  // of the weights and the order of samples
constexpr kernels::SgdConfig sgd = {.lr = 0.1, .momentum = 0.9};
constexpr std::size_t bucket_cap = 40 << 10;  // bytes

// ---- 1. Links: dist/transport/transport.h, threads.cpp, shm.cpp, tcp.cpp ----
// A channel is a queue between two threads: `receive` waits until something is there. A message
// between ranks is a vector of floats, which the sender copies, as a socket would. `send` never
// waits, because the queue has no limit. A real link has one: if all ranks first sent and then
// received, each would wait for room, for ever. The library sends and receives at the same time.

template <class T>
class Channel {
 public:
  void send(T item) {
    const std::lock_guard lock(mutex_);
    items_.push_back(std::move(item));
    arrived_.notify_one();
  }
  T receive() {
    std::unique_lock lock(mutex_);
    arrived_.wait(lock, [this] { return !items_.empty(); });
    T item = std::move(items_.front());
    items_.pop_front();
    return item;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::deque<T> items_;
};

using Link = Channel<std::vector<float>>;
using Ring = std::vector<Link>;  // link r leads from rank r to rank r + 1, link n - 1 to rank 0

// ---- 2. The ring: dist/collectives/plan/ring.cpp, executor.cpp ----
// An all-reduce replaces every rank's data by the sum over all ranks. In a ring each rank talks to
// its two neighbours only. The data is cut into as many parts as there are ranks. Each part makes
// two rounds of n - 1 hops: first every rank adds its own numbers, then every rank stores the sum.
//
//     +--> rank 0 --> rank 1 --> rank 2 --+
//     +-----------------------------------+
//
// Ranks 0, 1, 2 hold a, b, c; part 0 of b is b0:
//     first round    rank 1 sends b0 --> rank 2 sends b0 + c0 --> rank 0 has b0 + c0 + a0
//     second round   rank 0 sends the sum --> rank 1 sends it on --> rank 2
//
// At the same time part 1 starts at rank 2 and part 2 at rank 0, so all links are busy. Each rank
// sends 2 (n - 1) messages of 1/n of the data: no algorithm can send fewer bytes per rank. Floats
// are rounded after each addition. From three ranks on, an element's last bits therefore depend on
// the order of the additions, and that order depends on the part in which it lies.

void ring_all_reduce(std::span<float> data, std::size_t rank, Ring& ring) {
  const std::size_t n = ring.size();
  const auto part = [&](std::size_t number) {  // modulo n; the first parts are one element longer
    const std::size_t p = number % n, size = data.size() / n, longer = data.size() % n;
    return data.subspan(p * size + std::min(p, longer), size + (p < longer ? 1 : 0));
  };
  const auto exchange = [&](std::span<const float> out) {  // returns what the previous rank sends
    ring[rank].send({out.begin(), out.end()});
    return ring[(rank + n - 1) % n].receive();
  };
  // Reduce-scatter: at its end part `rank` is complete.
  for (std::size_t step = 0; step + 1 < n; ++step) {
    const std::vector<float> in = exchange(part(n + rank - step - 1));
    const std::span<float> sum = part(n + rank - step - 2);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += in[i];
  }
  // All-gather: the complete parts go around.
  for (std::size_t step = 0; step + 1 < n; ++step) {
    const std::vector<float> in = exchange(part(n + rank - step));
    std::ranges::copy(in, part(n + rank - step - 1).begin());
  }
}

// ---- 3. The model: nn/layers.h, autograd/tape.h, autograd/ops/matrix.cpp ----
// A multilayer perceptron with a backward written by hand. (In the library a tape records what
// forward does, and runs the backward functions in reverse.) What matters here is `ready`: as soon
// as a gradient is final, backward says its number, and goes on.

struct Parameter {
  Tensor value, momentum;
  Tensor gradient{};       // a piece of a bucket's memory
  std::size_t bucket = 0;  // the number of that bucket: part 4
};

struct Model {
  std::vector<Parameter> parameters;  // in the order of registration: 0.w 0.b 2.w 2.b 4.w 4.b
  std::vector<Tensor> inputs;         // of each layer, kept by forward for backward

  Model() {
    Generator generator(seed);  // the same numbers on every rank
    const auto add = [&](const Shape& shape, double bound) {
      parameters.push_back({Tensor::empty(shape), Tensor::empty(shape)});
      generator.uniform(parameters.back().value, -bound, bound);
    };
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::int64_t in = widths[layer], out = widths[layer + 1];
      const double root = std::sqrt(static_cast<double>(in));
      // As in PyTorch: kaiming_uniform with a = sqrt(5), and 1 / sqrt(inputs) for the bias.
      add({out, in}, std::sqrt(3.0) * (std::sqrt(2.0 / (1.0 + 5.0)) / root));
      add({out}, 1.0 / root);
    }
  }

  Tensor forward(Tensor x) {  // (rows, 64) -> (rows, 10)
    inputs.clear();
    for (std::size_t layer = 0; layer < layers; ++layer) {
      if (layer > 0) kernels::unary(kernels::Unary::relu, x, x);
      const Tensor y = Tensor::empty({x.size(0), widths[layer + 1]});
      kernels::linear(x, parameters[2 * layer].value, {parameters[2 * layer + 1].value}, y);
      inputs.push_back(std::exchange(x, y));
    }
    return x;
  }

  void backward(Tensor dy, auto&& ready) {
    for (std::size_t layer = layers; layer-- > 0;) {
      const std::size_t weight = 2 * layer, bias = weight + 1;
      const Tensor& x = inputs[layer];
      kernels::matmul(dy, x, parameters[weight].gradient, {.transpose_a = true});  // dw = dy^T x
      ready(weight);
      kernels::sum_rows(dy, parameters[bias].gradient);
      ready(bias);
      if (layer == 0) break;
      const Tensor dx = Tensor::empty(x.shape());
      kernels::matmul(dy, parameters[weight].value, dx);
      kernels::unary_backward(kernels::Unary::relu, dx, x, dx, false);
      dy = dx;
    }
  }
};

// ---- 4. Buckets: dist/ddp/buckets/bucket_layout.h, gradient_buckets.h ----
// A message costs time however short it is, and one message for all gradients could not leave
// before backward ends. Gradients therefore travel in buckets: a few that become ready one after
// another share a message. A bucket is a piece of memory. Backward writes into it, the ring adds in
// it, and the optimizer reads from it: no code packs or unpacks gradients.

struct Bucket {
  std::vector<std::size_t> members{};  // the numbers of its parameters
  Tensor memory{};                     // their gradients; in the last bucket notes follow (part 5)
  std::size_t pending = 0;             // how many of the gradients are not ready yet
};

// Cuts `order` into buckets of at most `bucket_cap` bytes (a larger gradient has its own). They are
// filled from the end of `order`, so bucket 0 takes the remainder. The library fills only its last
// bucket in this way, and the others from the start: with two buckets that is the same.
std::vector<Bucket> cut_into_buckets(const std::vector<std::size_t>& order,
                                     const std::vector<Parameter>& parameters) {
  std::vector<Bucket> buckets;
  std::size_t held = 0;  // bytes in the bucket that is being filled
  for (std::size_t i = order.size(); i-- > 0;) {
    const std::size_t bytes = parameters[order[i]].value.bytes();
    if (buckets.empty() || held + bytes > bucket_cap) {
      buckets.insert(buckets.begin(), Bucket{});
      held = 0;
    }
    buckets.front().members.push_back(order[i]);
    held += bytes;
  }
  return buckets;
}

// ---- 5. The reducer: dist/ddp/reducer.h, buckets/ready_order.h, step_metadata.h ----
// The reducer counts ready gradients. When no gradient of a bucket is missing, the communication
// thread sums it over the ranks. All ranks launch the buckets in the same order, even if a later
// bucket is ready first, because a ring adds up whatever its neighbours send next.
//
// A communication thread keeps the ring simple: it waits for the neighbour, and backward goes on.
// The library has no such thread, because it would compete with the computing threads for the
// processor's cores. There the computing thread moves the ring on whenever a gradient is ready, and
// waits only after backward. That turns the two loops of part 2 into a state machine.

class Reducer {
 public:
  Reducer(std::vector<Parameter>& parameters, std::size_t rank, Ring& ring)
      : parameters_(parameters), rank_(rank), ring_(ring) {
    for (std::size_t p = parameters.size(); p-- > 0;) ready_order_.push_back(p);  // a first guess
    lay_out_buckets();
    communication_ = std::thread([this] {
      while (Bucket* bucket = launched_.receive()) {
        ring_all_reduce(bucket->memory.span<float>(), rank_, ring_);
        arrived_.send(bucket);
      }
    });
  }
  ~Reducer() {
    launched_.send(nullptr);
    communication_.join();
  }

  /// `note` is what this rank tells the others in this step.
  void backward_begins(double note) {
    std::ranges::fill(notes_, 0.0F);
    notes_[rank_] = static_cast<float>(note);
    for (Bucket& bucket : buckets_) bucket.pending = bucket.members.size();
    next_ = 0;
    ready_order_.clear();
  }

  void gradient_ready(std::size_t parameter) {
    ready_order_.push_back(parameter);
    --buckets_[parameters_[parameter].bucket].pending;
    while (next_ < buckets_.size() && buckets_[next_].pending == 0)
      launched_.send(&buckets_[next_++]);
  }

  /// Waits until all buckets have arrived. Returns the sum of the ranks' notes.
  double backward_ends() {
    for (std::size_t b = 0; b < buckets_.size(); ++b) arrived_.receive();
    return std::accumulate(notes_.begin(), notes_.end(), 0.0);
  }

  /// Cuts the ready order of the last backward into buckets. Within a bucket gradients lie in the
  /// order of registration. Each begins at a multiple of 16 floats, so that no two share a cache
  /// line. What lies between them is zero and stays zero.
  void lay_out_buckets() {
    // Behind the last bucket travels what ranks tell each other. A rank writes its own note and
    // zeros for the others, so the sum holds all notes. The library sends 44 numbers per rank, and
    // for each parameter how many ranks used it. Here a rank sends one number, its loss. The notes
    // are as long as the library's: with another length the ring would cut the last bucket into
    // other parts, and bits would differ.
    const auto notes = static_cast<std::int64_t>(parameters_.size() + 44 * ring_.size());
    buckets_ = cut_into_buckets(ready_order_, parameters_);
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      auto& [members, memory, pending] = buckets_[b];
      std::ranges::sort(members);
      std::vector<std::int64_t> begin = {0};
      for (const std::size_t p : members)
        begin.push_back(begin.back() + (parameters_[p].value.numel() + 15) / 16 * 16);
      const bool last = b + 1 == buckets_.size();
      memory = Tensor::zeros({begin.back() + (last ? notes : 0)});
      for (std::size_t k = 0; k < members.size(); ++k) {
        Parameter& p = parameters_[members[k]];
        p.gradient = memory.slice(begin[k], begin[k] + p.value.numel()).view(p.value.shape());
        p.bucket = b;
      }
    }
    notes_ = buckets_.back().memory.span<float>().last(static_cast<std::size_t>(notes));
  }

 private:
  std::vector<Parameter>& parameters_;
  std::size_t rank_;
  Ring& ring_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> ready_order_;  // of the last backward
  std::span<float> notes_;                // at the end of the last bucket
  std::size_t next_ = 0;                  // the bucket to be launched next
  Channel<Bucket*> launched_, arrived_;   // to the communication thread, and back
  std::thread communication_;
};

// ---- 6. Training: samples/train_mlp/train.cpp, data/sampler.h, launch/launch.h ----
// The loader deals the rows of an epoch to the ranks like cards. A rank's loss is the mean over its
// own rows. Backward starts with rows / all ranks' rows in the place of 1. So the sum of all ranks'
// gradients is already the gradient of the mean over all rows.

double accuracy(Model& model, const data::TensorDataset& set) {
  const Tensor guess = Tensor::empty({set.size()}, DType::i64);
  kernels::argmax(model.forward(set["x"]), guess);
  const auto labels = set["y"].span<std::int64_t>(), guesses = guess.span<std::int64_t>();
  double right = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) right += labels[i] == guesses[i] ? 1 : 0;
  return right / static_cast<double>(set.size());
}

std::string digest(const Model& model) {
  Digest digest;
  for (const Parameter& parameter : model.parameters)
    digest.add({parameter.value.raw(), parameter.value.bytes()});
  return Digest::hex(digest.value());
}

/// Returns the digest of the trained parameters.
std::string train_rank(std::size_t rank, Ring& ring, const data::TrainTest& set, int epochs) {
  Model model;
  Reducer reducer(model.parameters, rank, ring);
  const Shard shard{static_cast<int>(rank), static_cast<int>(ring.size())};
  const data::LoaderOptions loading{.batch = 32, .shuffle = true, .seed = seed};
  bool first = true;
  for (int epoch = 0; epoch < epochs; ++epoch) {
    double loss_sum = 0;
    for (const data::Batch& batch : data::Loader(set.train, loading, shard, epoch)) {
      const Tensor logits = model.forward(batch.x);
      const Tensor loss = Tensor::empty({}), gradient = Tensor::empty(logits.shape());
      kernels::cross_entropy(logits, batch.y, loss, gradient);
      const Tensor factor = Tensor::scalar(batch.weight.local / batch.weight.total);
      kernels::cross_entropy_backward(factor, gradient, gradient, false);

      reducer.backward_begins(loss.item() * batch.weight.local);
      model.backward(gradient, [&](std::size_t parameter) { reducer.gradient_ready(parameter); });
      loss_sum += reducer.backward_ends();

      std::vector<kernels::SgdItem> items;
      for (const Parameter& p : model.parameters)
        items.push_back({p.value, p.gradient, p.momentum, first});
      kernels::sgd_step(items, sgd);
      // Now the order in which gradients become ready is known. It is the same on all ranks here;
      // in the library one rank tells the others its own order.
      if (std::exchange(first, false)) reducer.lay_out_buckets();
    }
    if (rank == 0)
      fmt::print("{:>5}  {:>8.4f}  {:>8.4f}\n", epoch + 1,
                 loss_sum / static_cast<double>(set.train.size()), accuracy(model, set.test));
  }
  return digest(model);
}

int run(int argc, char** argv) {
  std::size_t n = 2;
  int epochs = 30;
  cli::App app("Distributed data parallelism in one file", "lockstep sample ddp_from_scratch");
  app.add_option("--ranks", n, "Replicas, each a thread: 1 to 8 (2)")
      .check(cli::whole_number<std::size_t>());
  app.add_option("--epochs", epochs, "Passes over the training set (30)")
      .check(cli::whole_number<int>());
  if (!app.parse(argc, argv)) return 0;
  check<UsageError>(n >= 1 && n <= 8, "--ranks must be in 1..8, got {}", n);
  check<UsageError>(epochs > 0, "--epochs must be positive, got {}", epochs);

  const data::TrainTest set = data::load_idx(LOCKSTEP_SAMPLES_DATA "/digits");
  fmt::print("epoch      loss      test\n");
  Ring ring(n);
  std::vector<std::string> digests(n);
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < n; ++r)
    ranks.emplace_back([&, r] { digests[r] = train_rank(r, ring, set, epochs); });
  for (std::thread& rank : ranks) rank.join();

  const bool identical = std::ranges::count(digests, digests[0]) == std::ssize(digests);
  fmt::print(
      "\nranks={} replicas={}\nparameter_digest={}\n\nThe library ends with the same digest:\n"
      "  ./lockstep train --device cpu --comm ring --ranks {} --epochs {} --bucket-cap-mb {} "
      "--json /dev/stdout\n",
      n, identical ? "identical" : "different", digests[0], n, epochs,
      static_cast<double>(bucket_cap) / (1 << 20));
  return identical ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
