#include "lockstep/dist/ddp/hooks/power_sgd.h"

#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <utility>

#include "lockstep/kernels/elementwise.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep::dist {
namespace {

/// Uniform in [-1, 1): the same numbers on every rank and machine.
void draw(const Tensor& q, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const Tensor host = Tensor::empty(q.shape(), q.dtype());
  visit_floating("power_sgd", q.dtype(), [&](auto zero) {
    for (auto& element : host.span<decltype(zero)>())
      element = static_cast<decltype(zero)>(static_cast<double>(random() >> 11) * 0x1p-52 - 1);
  });
  q.copy_from(host);
}

/// Whether the two factors have fewer elements than the (m, n) matrix.
bool worthwhile(const Shape& shape, std::int64_t rank) {
  return shape.rank() == 2 && (shape[0] + shape[1]) * rank < shape[0] * shape[1];
}

/// The columns `columns` of `to` := those of `from`, both (n, r).
void copy_columns(const std::vector<std::int64_t>& columns, const Tensor& from, const Tensor& to) {
  const Tensor source = from.to(Device{}), target = to.to(Device{});
  visit_floating("power_sgd", to.dtype(), [&](auto zero) {
    using T = decltype(zero);
    for (std::int64_t row = 0; row < to.size(0); ++row)
      for (const std::int64_t column : columns) {
        const std::int64_t k = row * to.size(1) + column;
        target.data<T>()[k] = source.data<T>()[k];
      }
  });
  if (to.device() != Device{}) to.copy_from(target);
}

/// Where kernels write (`here`), and what the communicator sums (`wire`): the same memory if
/// possible.
struct Wire {
  Wire(Communicator& communicator, std::int64_t numel, DType dtype, Device device)
      : wire(communicator.allocate(numel, dtype, device)),
        here(wire.device() == device ? wire : Tensor::zeros({numel}, dtype, device)) {}

  Work all_reduce(Communicator& communicator, std::string_view name) const {
    if (here.device() != wire.device()) wire.copy_from(here);
    return communicator.all_reduce(wire, name);
  }
  void copy_back() const {
    if (here.device() != wire.device()) here.copy_from(wire);
  }

  Tensor wire, here;
};

Tensor flat(const Tensor& gradient) { return gradient.view({gradient.numel()}); }

}  // namespace

/// What is kept of one parameter from step to step.
struct PowerSgd::Matrix {
  Parameter parameter;  // so that no other one gets its id
  std::string name;     // the parameter's
  std::uint64_t seed = 0;
  Tensor q;     // (n, r)
  Tensor kept;  // (m, n)
};

struct PowerSgd::Bucket {
  struct Low {
    Tensor gradient, p, q;  // (m, n); (m, r) in `first`; (n, r) in `second`
    Matrix* matrix;
  };
  struct Plain {
    Tensor gradient, copy;  // in `first`
  };
  Wire first, second;
  std::vector<Low> low{};
  std::vector<Plain> plain{};
  Tensor whole{};  // a copy that travels where the communicator does not reach the gradients
};

PowerSgd::PowerSgd(PowerSgdOptions options) : options_(options) {
  check<UsageError>(options.rank >= 1, "[power_sgd] the rank must be at least 1, got {}",
                    options.rank);
  check<UsageError>(options.start_after >= 0, "[power_sgd] start_after must be 0 or more, got {}",
                    options.start_after);
}

PowerSgd::~PowerSgd() = default;

std::string PowerSgd::name() const {
  return fmt::format("power_sgd rank {} start_after {}", options_.rank, options_.start_after);
}

Tensor PowerSgd::kept(const Parameter& parameter) const {
  const auto found = matrices_.find(parameter.id());
  return found == matrices_.end() ? Tensor() : found->second.kept;
}

void PowerSgd::prepare(std::span<const BucketView> views, Communicator& communicator) {
  const std::int64_t r = options_.rank;
  const auto low = [&](const Parameter& parameter) {
    return worthwhile(parameter.value().shape(), r);
  };
  buckets_.clear();
  // A hook may serve one model after another.
  std::erase_if(matrices_, [&](const auto& known) {
    return std::ranges::none_of(views, [&](const BucketView& view) {
      return std::ranges::count(view.parameters, known.first, &Parameter::id) > 0;
    });
  });
  for (const BucketView& view : views) {
    const DType dtype = view.memory.dtype();
    const Device device = view.memory.device();
    std::int64_t first = 0, second = 0;
    for (const Parameter& parameter : view.parameters) {
      const Shape& shape = parameter.value().shape();
      first += low(parameter) ? shape[0] * r : shape.numel();
      second += low(parameter) ? shape[1] * r : 0;
    }
    Bucket& bucket = buckets_.emplace_back(Bucket{.first = {communicator, first, dtype, device},
                                                  .second = {communicator, second, dtype, device}});
    first = second = 0;
    for (const Parameter& parameter : view.parameters) {
      const Tensor& gradient = parameter.gradient_slot();
      const Shape& shape = gradient.shape();
      if (!low(parameter)) {
        const Tensor copy = bucket.first.here.slice(first, first + gradient.numel());
        first += gradient.numel();
        bucket.plain.push_back({flat(gradient), copy});
        continue;
      }
      const Tensor p = bucket.first.here.slice(first, first + shape[0] * r);
      const Tensor q = bucket.second.here.slice(second, second + shape[1] * r);
      first += p.numel();
      second += q.numel();
      Matrix& matrix = matrices_[parameter.id()];
      if (!matrix.q.defined()) {
        matrix = {parameter, parameter.name(), matrices_.size(),
                  Tensor::empty({shape[1], r}, dtype, device), Tensor::zeros(shape, dtype, device)};
        draw(matrix.q, matrix.seed);
      }
      bucket.low.push_back({gradient, p.view({shape[0], r}), q.view({shape[1], r}), &matrix});
    }
  }
}

// ---- one step ----

Work PowerSgd::reduce(const BucketView& view, Communicator& communicator) {
  if (view.index == 0) ++step_;
  Bucket& bucket = buckets_[index(view.index)];
  if (!compresses()) return send_whole(bucket, view, communicator);
  for (const Bucket::Plain& plain : bucket.plain) plain.copy.copy_from(plain.gradient);
  for (const Bucket::Low& low : bucket.low) {
    const Tensor& a = low.matrix->kept;
    kernels::scale(1, low.gradient, a, true);
    kernels::matmul(a, low.matrix->q, low.p);
  }
  return bucket.first.all_reduce(communicator, view.name);
}

void PowerSgd::complete(const BucketView& view, Communicator& communicator) {
  Bucket& bucket = buckets_[index(view.index)];
  if (!compresses()) return receive_whole(bucket, view);
  bucket.first.copy_back();
  for (const Bucket::Plain& plain : bucket.plain) plain.gradient.copy_from(plain.copy);
  if (bucket.low.empty()) return;
  std::vector<std::vector<std::int64_t>> empty;  // columns of each P
  for (const Bucket::Low& low : bucket.low) {
    const Tensor& a = low.matrix->kept;
    empty.push_back(orthonormalize(low.p));
    kernels::matmul(a, low.p, low.q, {.transpose_a = true});
    const Tensor minus_p = Tensor::empty(low.p.shape(), low.p.dtype(), low.p.device());
    kernels::scale(-1, low.p, minus_p, false);
    kernels::matmul(minus_p, low.q, a, {.transpose_b = true, .accumulate = true});
  }
  bucket.second.all_reduce(communicator, fmt::format("{}, second", view.name)).wait();
  bucket.second.copy_back();
  for (std::size_t k = 0; k < bucket.low.size(); ++k) {
    const Bucket::Low& low = bucket.low[k];
    kernels::matmul(low.p, low.q, low.gradient, {.transpose_b = true});
    // A column of zeros would stay zero for ever: it begins again from the old one.
    if (!empty[k].empty()) copy_columns(empty[k], low.matrix->q, low.q);
    low.matrix->q.copy_from(low.q);
  }
}

// As without a hook, for gradients that the communicator reaches.
Work PowerSgd::send_whole(Bucket& bucket, const BucketView& view, Communicator& communicator) {
  if (bucket.first.wire.device() == view.memory.device())
    return communicator.all_reduce(view.memory, view.name);
  bucket.whole = view.memory.to(bucket.first.wire.device());
  return communicator.all_reduce(bucket.whole, view.name);
}

void PowerSgd::receive_whole(Bucket& bucket, const BucketView& view) {
  if (bucket.whole.defined()) view.memory.copy_from(std::exchange(bucket.whole, Tensor()));
}

void PowerSgd::scale_changes(double ratio) {
  for (auto& [id, matrix] : matrices_) kernels::scale(ratio, matrix.kept, matrix.kept, false);
}

CommunicationHook::State PowerSgd::state_dict() const {
  State state{{"step", Tensor::of<std::int64_t>({}, {step_})}};
  for (const auto& [id, matrix] : matrices_) {
    state.emplace(matrix.name + ".kept", matrix.kept);
    state.emplace(matrix.name + ".q", matrix.q);
  }
  return state;
}

void PowerSgd::load_state_dict(const State& state) {
  const State own = state_dict();
  for (const auto& [name, tensor] : own) {
    const auto found = state.find(name);
    check<StateError>(found != state.end() && found->second.shape() == tensor.shape() &&
                          found->second.dtype() == tensor.dtype(),
                      "[power_sgd] the state has no '{}' of {} {}", name, tensor.dtype(),
                      tensor.shape());
  }
  check<StateError>(own.size() == state.size(), "[power_sgd] the state has {} tensors, not {}",
                    state.size(), own.size());
  for (const auto& [name, tensor] : own) tensor.copy_from(state.at(name));
  step_ = own.at("step").to_vector<std::int64_t>()[0];
}

void PowerSgd::load_of_other_world(std::span<const State> states, Shard mine) {
  State sum;
  for (const auto& [name, tensor] : states[0])
    sum[name] = name.ends_with(".kept") ? zeros_like(tensor) : tensor;
  for (std::size_t k = index(mine.rank); k < states.size(); k += index(mine.size))
    for (const auto& [name, tensor] : states[k])
      if (name.ends_with(".kept")) kernels::scale(1, tensor, sum.at(name), true);
  load_state_dict(sum);
}

void PowerSgd::skipped() {
  for (auto& [id, matrix] : matrices_) {
    matrix.kept.fill_zero();
    draw(matrix.q, matrix.seed);
  }
}

std::vector<std::int64_t> orthonormalize(const Tensor& p) {
  const auto m = static_cast<std::size_t>(p.size(0)), r = static_cast<std::size_t>(p.size(1));
  const Tensor host = p.to(Device{});
  std::vector<std::int64_t> empty;
  visit_floating("orthonormalize", p.dtype(), [&](auto zero) {
    using T = decltype(zero);
    std::vector<std::vector<double>> columns(r, std::vector<double>(m));
    const auto at = [&](std::size_t k) -> double& { return columns[k % r][k / r]; };
    const auto dot = [](const std::vector<double>& a, const std::vector<double>& b) {
      return std::inner_product(a.begin(), a.end(), b.begin(), 0.0);
    };
    for (std::size_t k = 0; k < m * r; ++k) at(k) = static_cast<double>(host.data<T>()[k]);
    for (std::size_t c = 0; c < columns.size(); ++c) {
      std::vector<double>& now = columns[c];
      const double before = std::sqrt(dot(now, now));
      for (int pass = 0; pass < 2; ++pass)  // the second removes what rounding left
        for (std::size_t other = 0; other < c; ++other) {
          const double along = dot(now, columns[other]);
          for (std::size_t i = 0; i < now.size(); ++i) now[i] -= along * columns[other][i];
        }
      const double length = std::sqrt(dot(now, now));
      const bool is_empty = length <= 16 * std::numeric_limits<T>::epsilon() * before;
      for (double& x : now) x = is_empty ? 0 : x / length;
      if (is_empty) empty.push_back(static_cast<std::int64_t>(c));
    }
    for (std::size_t k = 0; k < m * r; ++k) host.data<T>()[k] = static_cast<T>(at(k));
  });
  if (p.device() != Device{}) p.copy_from(host);
  return empty;
}

}  // namespace lockstep::dist
