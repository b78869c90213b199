// `./lockstep sample ddp_from_scratch`: distributed data parallelism in one file.
//
// N ranks hold N copies of one model. In each step every rank computes gradients from its own rows.
// The ranks add up their gradients and every rank takes the same optimizer step. The copies
// therefore stay equal, bit for bit, and the training is that of one process on all rows.
//
// Here a rank is a thread. Everything that happens between ranks is written out in this file. The
// library computes (matrix products, the loss, the optimizer's formula) and reads the data. The
// trained parameters have the same bits as those of `./lockstep train --comm ring`, where these
// parts are real:
//
//     1  Channel, the links      dist/transport/transport.h, threads.cpp, shm.cpp, tcp.cpp
//     2  ring_all_reduce         dist/collectives/plan.h, executor.cpp
//     3  Model                   nn/layers.h, autograd/tape.h, autograd/ops_matrix.cpp
//     4  cut_into_buckets        dist/ddp/bucket_layout.h, gradient_buckets.h
//     5  Reducer                 dist/ddp/reducer.h, step_metadata.h, rebuild_buckets.cpp
//     6  train_rank, run         samples/train_mlp/train.cpp, launch/launch.h
//
// One step of one rank. Backward computes the last layer's gradients first. They travel while it
// computes those of the earlier layers: communication and computation overlap.
//
//     computing thread       | forward | backward: 4.w 4.b 2.w | 2.b 0.w 0.b | wait | step |
//     communication thread                                     |- bucket 0 -|- bucket 1 -|

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "lockstep/core/digest.h"
#include "lockstep/core/generator.h"
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

struct Options {
  std::size_t ranks = 2;
  std::int64_t epochs = 30;
  std::uint64_t seed = 0;
};

// The same as the defaults of `./lockstep train`, but for the cap: 25 MiB would hold all gradients.
constexpr std::int64_t widths[] = {64, 128, 64, 10};
constexpr std::size_t layers = std::size(widths) - 1;
constexpr std::int64_t batch_per_rank = 32;
constexpr kernels::SgdConfig sgd = {.lr = 0.1, .momentum = 0.9};
constexpr std::size_t bucket_cap = 40 << 10;  // bytes

// ---- 1. Links ----
//
// A channel is a queue between two threads. `receive` waits until something is there. A message
// between ranks is a vector of floats: the sender copies it into the channel, as into a socket.
// `send` never waits here. A real link holds only so many bytes: if all ranks first sent a large
// message, all of them would wait for ever. The library sends and receives at the same time.

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
using Ring = std::vector<Link>;  // link r leads from rank r to rank r + 1, the last one to rank 0

// ---- 2. The ring ----
//
// Afterwards `data` holds, on every rank, the sum of all ranks' `data`. A rank talks to its two
// neighbours only. The data is cut into as many parts as there are ranks. Each part travels around
// the ring twice: first every rank adds its own numbers, then every rank stores the sum.
//
//     +--> rank 0 --> rank 1 --> rank 2 --+
//     +-----------------------------------+
//
//     part 0 of a, b, c:   rank 1 sends b0 --> rank 2 sends b0 + c0 --> rank 0 has b0 + c0 + a0
//                          rank 0 sends the sum --> rank 1 sends it on --> rank 2
//
// At the same time part 1 starts at rank 2 and part 2 at rank 0, and all links are busy. Each rank
// sends 2 (n - 1) messages of 1/n of the data: no algorithm can send fewer bytes. Sums of floats
// are rounded, so an element's last bits depend on where its sum begins: on the part it lies in.

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
  for (std::size_t step = 0; step + 1 < n; ++step) {  // reduce-scatter: part `rank` gets complete
    const std::vector<float> in = exchange(part(n + rank - step - 1));
    const std::span<float> sum = part(n + rank - step - 2);
    for (std::size_t i = 0; i < sum.size(); ++i) sum[i] += in[i];
  }
  for (std::size_t step = 0; step + 1 < n; ++step) {  // all-gather: complete parts go around
    const std::vector<float> in = exchange(part(n + rank - step));
    std::ranges::copy(in, part(n + rank - step - 1).begin());
  }
}

// ---- 3. The model ----
//
// A multilayer perceptron with its backward written by hand. In the library a tape records the
// forward operations and runs their backward functions in reverse. What matters here is `ready`:
// backward says which gradient is final as soon as it is, and then goes on.

struct Parameter {
  Tensor value, momentum;
  Tensor gradient{};  // lies in a bucket: see part 4
};

struct Model {
  std::vector<Parameter> parameters;  // in the order of registration: 0.w 0.b 2.w 2.b 4.w 4.b
  std::vector<Tensor> inputs;         // of each layer, kept by forward for backward

  explicit Model(std::uint64_t seed) {  // every rank draws the same numbers
    Generator generator(seed);
    const auto add = [&](const Shape& shape, double bound) {
      parameters.push_back({Tensor::empty(shape), Tensor::empty(shape)});
      generator.uniform(parameters.back().value, -bound, bound);
    };
    for (std::size_t layer = 0; layer < layers; ++layer) {
      const std::int64_t in = widths[layer], out = widths[layer + 1];
      const double root = std::sqrt(static_cast<double>(in));
      add({out, in}, std::sqrt(3.0) * (std::sqrt(2.0 / (1.0 + 5.0)) / root));
      add({out}, 1.0 / root);
    }
  }

  Tensor forward(Tensor x) {  // (rows, 64) -> (rows, 10)
    inputs.clear();
    for (std::size_t layer = 0; layer < layers; ++layer) {
      if (layer > 0) kernels::unary(kernels::Unary::relu, x, x);
      const Tensor y = Tensor::empty({x.size(0), widths[layer + 1]});
      kernels::linear(x, parameters[2 * layer].value, parameters[2 * layer + 1].value, y);
      inputs.push_back(std::exchange(x, y));
    }
    return x;
  }

  void backward(Tensor dy, const std::function<void(std::size_t)>& ready) {
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

// ---- 4. Buckets ----
//
// A message costs time however short it is, and one message for all gradients could not leave
// before backward ends. Gradients therefore travel in buckets, in about the order in which they get
// ready. A bucket is a piece of memory, and backward writes straight into it: nobody copies
// gradients into a bucket or out of it.

struct Bucket {
  std::vector<std::size_t> members;  // parameters
  std::span<float> data{};           // their gradients; in the last bucket the notes follow
  std::size_t pending = 0;           // gradients that are not ready yet
};

// No bucket exceeds the cap. The last bucket is filled first, from the end of the order.
std::vector<Bucket> cut_into_buckets(const std::vector<std::size_t>& order,
                                     const std::vector<Parameter>& parameters) {
  const auto bytes = [&](std::size_t i) { return parameters[order[i]].value.bytes(); };
  std::size_t last = order.size(), held = 0;  // where the last bucket begins
  while (last > 0 && held + bytes(last - 1) <= bucket_cap) held += bytes(--last);

  std::vector<Bucket> buckets;
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || i == last || held + bytes(i) > bucket_cap) {
      buckets.emplace_back();
      held = 0;
    }
    held += bytes(i);
    buckets.back().members.push_back(order[i]);
  }
  return buckets;
}

// ---- 5. The reducer ----
//
// It counts ready gradients. When a bucket's last gradient is ready, the communication thread sums
// the bucket over all ranks. Ranks may differ in when their buckets get ready. They always launch
// them in the same order, because the ring adds up whatever comes next.
//
// A thread for communication is the clearest way: the ring can wait, and backward goes on. The
// library has no such thread, because it would take the processor from the thread that computes.
// There the computing thread moves the ring on at every ready gradient, and never waits for it
// before backward ends. That turns the two loops of part 2 into a state machine.

class Reducer {
 public:
  Reducer(std::vector<Parameter>& parameters, std::size_t rank, Ring& ring)
      : parameters_(parameters), rank_(rank), ring_(ring) {
    for (std::size_t p = parameters.size(); p-- > 0;) ready_order_.push_back(p);  // a first guess
    lay_out();
    communication_ = std::thread([this] {
      while (Bucket* bucket = launched_.receive()) {
        ring_all_reduce(bucket->data, rank_, ring_);
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
    notes_[parameters_.size() + note_size * rank_] = static_cast<float>(note);
    for (Bucket& bucket : buckets_) bucket.pending = bucket.members.size();
    next_ = 0;
    ready_order_.clear();
  }

  void gradient_ready(std::size_t parameter) {
    ready_order_.push_back(parameter);
    --buckets_[bucket_of_[parameter]].pending;
    while (next_ < buckets_.size() && buckets_[next_].pending == 0)
      launched_.send(&buckets_[next_++]);
  }

  /// Waits until all buckets have arrived. Returns the sum of the ranks' notes.
  double backward_ends() {
    for (std::size_t b = 0; b < buckets_.size(); ++b) arrived_.receive();
    double sum = 0;
    for (std::size_t r = 0; r < ring_.size(); ++r)
      sum += notes_[parameters_.size() + note_size * r];
    return sum;
  }

  /// After the first step: now it is known in which order gradients get ready. It is the same on
  /// all ranks here. In the library it may differ, and rank 0 tells the others its own.
  void rebuild_buckets() { lay_out(); }

 private:
  // Behind the last bucket the ranks tell each other about the step. A rank writes its own note and
  // zeros for the others, so the sum holds everybody's. The library sends 32 numbers per rank, and
  // how many ranks used each parameter. Here one number is enough, but the space is the same:
  // another length would cut the last bucket into other parts, and change the last bits (part 2).
  static constexpr std::size_t note_size = 32;

  // One piece of memory for all buckets. Within a bucket gradients lie in the order of
  // registration, each on a cache line of its own (16 floats). The padding is zero and stays zero.
  void lay_out() {
    buckets_ = cut_into_buckets(ready_order_, parameters_);
    bucket_of_.resize(parameters_.size());
    const std::size_t notes = parameters_.size() + note_size * ring_.size();
    const auto padded = [](std::int64_t numel) { return (numel + 15) / 16 * 16; };
    std::int64_t total = static_cast<std::int64_t>(notes);
    for (const Parameter& parameter : parameters_) total += padded(parameter.value.numel());
    const Tensor memory = Tensor::zeros({total});

    std::int64_t at = 0;
    for (std::size_t b = 0; b < buckets_.size(); ++b) {
      const std::int64_t begin = at;
      std::ranges::sort(buckets_[b].members);
      for (const std::size_t p : buckets_[b].members) {
        const Tensor& value = parameters_[p].value;
        parameters_[p].gradient = memory.slice(at, at + value.numel()).view(value.shape());
        bucket_of_[p] = b;
        at += padded(value.numel());
      }
      buckets_[b].data = memory.slice(begin, b + 1 < buckets_.size() ? at : total).span<float>();
    }
    notes_ = buckets_.back().data.last(notes);
  }

  std::vector<Parameter>& parameters_;
  std::size_t rank_;
  Ring& ring_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;    // by parameter
  std::vector<std::size_t> ready_order_;  // of the last backward
  std::span<float> notes_;
  std::size_t next_ = 0;                 // the bucket to be launched next
  Channel<Bucket*> launched_, arrived_;  // to the communication thread, and back
  std::thread communication_;
};

// ---- 6. Training ----
//
// The loader deals the rows of an epoch to the ranks like cards. A rank's loss is the mean over its
// own rows. Backward scales it by rows / all ranks' rows, so that the sum of the ranks' gradients
// is the gradient of the mean over all rows. Nothing is left to divide afterwards.

double accuracy(Model& model, const data::Dataset& set) {
  const Tensor guess = Tensor::empty({set.size()}, DType::i64);
  kernels::argmax(model.forward(set.images), guess);
  const auto labels = set.labels.span<std::int64_t>(), guesses = guess.span<std::int64_t>();
  std::int64_t right = 0;
  for (std::size_t i = 0; i < labels.size(); ++i) right += labels[i] == guesses[i];
  return static_cast<double>(right) / static_cast<double>(set.size());
}

std::string digest(const Model& model) {
  Digest digest;
  for (const Parameter& parameter : model.parameters)
    digest.add({parameter.value.raw(), parameter.value.bytes()});
  return Digest::hex(digest.value());
}

/// Returns the digest of the trained parameters.
std::string train_rank(const Options& o, const data::TrainTest& set, std::size_t rank, Ring& ring) {
  Model model(o.seed);
  Reducer reducer(model.parameters, rank, ring);
  const Shard shard{static_cast<int>(rank), static_cast<int>(o.ranks)};
  bool first = true;
  for (int epoch = 0; epoch < o.epochs; ++epoch) {
    double loss_sum = 0;
    for (const data::Batch& batch :
         data::Loader(set.train, {.batch = 32, .shuffle = true, .seed = o.seed}, shard, epoch)) {
      const Tensor logits = model.forward(batch.x);
      const Tensor loss = Tensor::empty({}), gradient = Tensor::empty(logits.shape());
      kernels::cross_entropy(logits, batch.y, loss, gradient);
      const Tensor scale = Tensor::scalar(batch.weight.local / batch.weight.total);
      kernels::cross_entropy_backward(scale, gradient, gradient, false);

      reducer.backward_begins(loss.item() * batch.weight.local);
      model.backward(gradient, [&](std::size_t p) { reducer.gradient_ready(p); });
      loss_sum += reducer.backward_ends();

      std::vector<kernels::SgdItem> items;
      for (const auto& [value, momentum, sum] : model.parameters)
        items.push_back({value, sum, momentum, first});
      kernels::sgd_step(items, sgd);
      if (std::exchange(first, false)) reducer.rebuild_buckets();
    }
    if (rank == 0)
      fmt::print("{:>5}  {:>8.4f}  {:>8.4f}\n", epoch + 1,
                 loss_sum / static_cast<double>(set.train.size()), accuracy(model, set.test));
  }
  return digest(model);
}

int run(int argc, char** argv) {
  Options o;
  CLI::App app("Distributed data parallelism in one file", "lockstep sample ddp_from_scratch");
  app.add_option("--ranks", o.ranks, "Replicas, each a thread: 1 to 8 (2)")
      ->check(cli::whole_number<std::size_t>());
  app.add_option("--epochs", o.epochs, "Passes over the training set (30)")
      ->check(cli::whole_number());
  app.add_option("--seed", o.seed, "Of the weights and the order of samples (0)")
      ->check(cli::whole_number<std::uint64_t>());
  if (!cli::parse(app, argc, argv)) return 0;
  check<UsageError>(o.ranks >= 1 && o.ranks <= 8, "--ranks must be in 1..8, got {}", o.ranks);
  check<UsageError>(o.epochs > 0, "--epochs must be positive, got {}", o.epochs);

  const data::TrainTest set = data::load_idx(LOCKSTEP_SAMPLES_DATA "/digits");
  fmt::print("epoch      loss      test\n");
  Ring ring(o.ranks);
  std::vector<std::string> digests(o.ranks);
  std::vector<std::thread> ranks;
  for (std::size_t r = 0; r < o.ranks; ++r)
    ranks.emplace_back([&, r] { digests[r] = train_rank(o, set, r, ring); });
  for (std::thread& rank : ranks) rank.join();

  const bool identical = std::ranges::count(digests, digests[0]) == std::ssize(digests);
  fmt::print("\nranks={} replicas={}\nparameter_digest={}\n\n", o.ranks,
             identical ? "identical" : "different", digests[0]);
  fmt::print(
      "The library ends with the same digest:\n  ./lockstep train --device cpu --comm ring "
      "--ranks {} --epochs {} --seed {} --bucket-cap-mb {} --json /dev/stdout\n",
      o.ranks, o.epochs, o.seed, static_cast<double>(bucket_cap) / (1 << 20));
  return identical ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
