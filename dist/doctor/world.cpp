// The checks of a world. Every rank gives a text or numbers, and all come to the same finding.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <set>

#include "lockstep/autograd/ops.h"
#include "lockstep/core/generator.h"
#include "lockstep/core/gpu/gpu.h"
#include "lockstep/dist/ddp/ddp.h"
#include "lockstep/dist/doctor/bytes.h"
#include "lockstep/dist/doctor/gpu.h"
#include "lockstep/dist/gpu/device_engine.h"

namespace lockstep::doctor {
namespace {

/// Every rank's complaint, empty if it has none, becomes one finding.
Finding join(const World& world, std::string check, std::string_view complaint, std::string good,
             std::string advice) {
  Finding finding{.check = std::move(check), .found = std::move(good), .advice = {}};
  const auto texts = dist::gather_text(world.communicator(), complaint, "doctor");
  std::vector<std::string> bad;
  for (std::size_t r = 0; r < texts.size(); ++r)
    if (!texts[r].empty()) bad.push_back(fmt::format("rank {}: {}", r, texts[r]));
  if (bad.empty()) return finding;
  finding.good = false;
  finding.found = fmt::format("{}", fmt::join(bad, "; "));
  finding.advice = std::move(advice);
  return finding;
}

double seconds(const World& world) { return world.communicator().now().count(); }

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

}  // namespace

Finding check_placement(const World& world, const std::vector<Parameter>& parameters,
                        const std::vector<Buffer>& buffers, const std::vector<Tensor>& tensors) {
  check_each_once("check_placement", parameters);
  std::vector<std::pair<std::string, Device>> places;
  for (const Parameter& parameter : parameters)
    places.emplace_back(parameter.name(), parameter.value().device());
  for (const Buffer& buffer : buffers) places.emplace_back(buffer.name, buffer.value.device());
  for (std::size_t i = 0; i < tensors.size(); ++i)
    places.emplace_back(fmt::format("tensor {}", i), tensors[i].device());
  std::vector<std::string> strays;
  for (const auto& [name, device] : places)
    if (device != places[0].second)
      strays.push_back(fmt::format("{} is on {}", name, device.to_string()));
  std::string complaint;
  if (!strays.empty())
    complaint = fmt::format("{}, but {} on {}", fmt::join(strays, ", "), places[0].first,
                            places[0].second.to_string());
  const std::string kind(places.empty() ? "nothing" : Device::name_of(places[0].second.kind));
  const auto kinds = dist::gather_text(world.communicator(), kind, "doctor");
  if (complaint.empty() && kind != kinds[0])
    complaint = fmt::format("everything is on {}, on rank 0 on {}", kind, kinds[0]);
  return join(world, "placement", complaint,
              fmt::format("{} parameters, {} buffers and {} tensors on {}", parameters.size(),
                          buffers.size(), tensors.size(), kind),
              "model.to(device) before the optimizer and DDP are made; batches: "
              "LoaderOptions::device.");
}

Finding check_same_model(const World& world, const std::vector<Parameter>& parameters) {
  check_each_once("check_same_model", parameters);
  std::string text;
  for (const Parameter& parameter : parameters)
    text += fmt::format("{} {} {}\n", parameter.name(), parameter.value().shape(),
                        parameter.value().dtype());
  const auto texts = dist::gather_text(world.communicator(), text, "doctor");
  const auto differences = dist::differences(texts);
  Finding finding{
      .check = "model",
      .good = differences.empty(),
      .found = fmt::format("{} parameters, alike on {} ranks", parameters.size(), world.size()),
      .advice = {}};
  if (!differences.empty()) {
    finding.found =
        fmt::format("parameter {}: {}", differences[0].line, dist::describe(differences[0].said));
    finding.advice =
        "Build the model from the same options on all ranks, in the same order; nothing in it may "
        "depend on the rank.";
  }
  return finding;
}

std::string wrong_sum(std::span<const float> sums, int ranks) {
  const std::int64_t n = ranks, count = std::ssize(sums);
  for (std::int64_t i = 0; i < count; ++i) {
    // Whole numbers below 2^24, which f32 adds without rounding in any order.
    const auto expected = static_cast<float>(n * (i % 1000) + 500 * n * (n - 1));
    const float sum = sums[static_cast<std::size_t>(i)];
    if (!(sum == expected))
      return fmt::format("element {} of {} is {}, not {}", i, count, sum, expected);
  }
  return "";
}

namespace {

/// "all-reduce", or of tensors on a GPU "all-reduce on cuda".
std::string check_on(Device device, std::string_view check) {
  return device == Device{} ? std::string(check)
                            : fmt::format("{} on {}", check, Device::name_of(device.kind));
}

}  // namespace

Finding check_all_reduce(const World& world, Device device) {
  dist::Communicator& communicator = world.communicator();
  const bool on_host = device == Device{};
  std::string complaint, advice =
                             "Run it again with --transport tcp and with --comm ring: which of "
                             "them fails? Then suspect "
                             "memory or network.";
  // A simulator takes seconds for the largest.
  const auto sizes = on_host ? std::vector<std::int64_t>{0, 1, 7, 1000, 65536, 1'000'003}
                             : std::vector<std::int64_t>{1, 7, 1000, 65536};
  for (const std::int64_t count : sizes) {
    for (const bool shared : {true, false}) {
      Tensor data = Tensor::empty({count}, DType::f32, device);
      if (shared) data = communicator.allocate(count, DType::f32, device);
      if (data.device() != device) {  // on all ranks: an engine is for all or for none
        advice = "DDP copies gradients to the host and back. See GPU peers, NCCL and containers.";
        return join(world, check_on(device, "all-reduce"), "nothing reaches the GPUs of all ranks",
                    {}, advice);
      }
      const Tensor known = Tensor::empty({count});
      for (std::int64_t i = 0; i < count; ++i)
        known.data<float>()[i] = static_cast<float>(i % 1000 + 1000 * world.rank());
      data.copy_from(known);
      communicator.all_reduce(data, "doctor").finish();
      if (complaint.empty()) complaint = wrong_sum(data.to_vector<float>(), world.size());
    }
  }
  return join(world, check_on(device, "all-reduce"), complaint,
              fmt::format("{} sums of up to {} numbers are right ({}{})", 2 * sizes.size(),
                          sizes.back(), communicator.algorithm(4 << 20),
                          on_host ? fmt::format(" over {}", world.transport()) : ""),
              advice);
}

namespace {

// Rank r has r + 1 rows: the mean over all rows of 2 w x, with x = r + 1 in each row, is
// 2 sum((r + 1)^2) / sum(r + 1).
double expected_mean(int ranks) {
  double squares = 0, total = 0;
  for (int r = 1; r <= ranks; ++r) {
    squares += r * r;
    total += r;
  }
  return 2 * squares / total;
}

}  // namespace

std::string wrong_mean(std::span<const float> means, bool unused_has_gradient, int ranks) {
  const double expected = expected_mean(ranks);
  for (const float mean : means)
    if (!(std::abs(mean - expected) <= 1e-5 * expected))
      return fmt::format("the mean gradient is {}, not {}", mean, expected);
  return unused_has_gradient ? "a parameter that no rank used has a gradient" : "";
}

Finding check_gradients(const World& world, Device device) {
  const int n = world.size(), rows = world.rank() + 1;
  const auto full = [&](const Shape& shape, double value) {
    return Tensor::full(shape, value, DType::f32, device);
  };
  const Parameter w(full({3}, 1.0), "w"), unused(full({2}, 1.0), "unused");
  dist::DistributedDataParallel ddp({w, unused}, {}, world, {.check_replicas = false});
  {
    Tape tape;
    const Tensor x = full({rows, 3}, static_cast<double>(rows));
    const Tensor loss = mean(sum(x * Tensor(w) * 2.0, 1));
    tape.backward(loss, Weight{static_cast<double>(rows)});
  }
  const bool unused_has = unused.gradient_state() != GradientState::nothing;
  return join(world, check_on(device, "gradients"),
              wrong_mean(w.gradient().to_vector<float>(), unused_has, n),
              fmt::format("the mean over {} uneven batches is {:.6g}", n, expected_mean(n)),
              device == Device{} ? "Run ./lockstep test on this machine."
                                 : "Run ./lockstep test --device cuda on this machine.");
}

namespace {

// A file that cannot be read leaves its text empty, which is unknown.
std::string this_machine() {
  std::string machine;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), machine);
  return machine;
}

}  // namespace

Finding check_gpu_memory(const World& world, Device device, std::uint64_t bytes) {
  // Ranks on the GPU of the same place: each may see another part of the machine.
  const auto devices = gpu::facts().devices;
  const std::string mine =
      dist::index(device.index) < devices.size() ? devices[dist::index(device.index)].bus : "";
  const auto all = dist::gather_text(world.communicator(), this_machine() + "\n" + mine, "doctor");
  const int sharing = static_cast<int>(std::ranges::count(all, all[dist::index(world.rank())]));
  return join(world, "GPU memory", lacking_memory(gpu::memory(device.index), sharing, bytes),
              fmt::format("as far as known, there is room for {} on each rank's GPU",
                          gib(memory_needed(sharing, bytes))),
              "End what else uses it (nvidia-smi shows it), or a smaller model, or fewer ranks on "
              "each GPU.");
}

Finding check_containers(const World& world) {
  const std::string machine = this_machine();
  std::error_code ignored;
  const auto processes = std::filesystem::read_symlink("/proc/self/ns/pid", ignored).string();
  std::vector<Place> places;
  for (const std::string& text :
       dist::gather_text(world.communicator(), machine + "\n" + processes, "doctor"))
    places.push_back({text.substr(0, text.find('\n')), text.substr(text.find('\n') + 1)});
  return judge_places(places, dist::nccl_available());
}

std::vector<Link> measure_links(const World& world) {
  std::vector<Link> links;
  const int n = world.size();
  for (int i = 0; i < n; ++i)
    for (int k = i + 1; k < n; ++k)
      if (n <= 8 || k == i + 1 || (i == 0 && k == n - 1)) links.push_back({.one = i, .other = k});
  for (Link& link : links) {
    const auto group = world.new_group({link.one, link.other});
    if (group) {
      dist::Communicator& pair = group->communicator();
      std::vector<double> latency, transfer;
      for (int round = 0; round < 50; ++round) {
        const double begin = seconds(world);
        pair.barrier("doctor").wait();
        latency.push_back(seconds(world) - begin);
      }
      const Tensor data = pair.allocate(1 << 20, DType::f32);
      for (int round = 0; round < 5; ++round) {
        const double begin = seconds(world);
        pair.all_reduce(data, "doctor").wait();
        transfer.push_back(seconds(world) - begin);
      }
      link.latency_us = 1e6 * median(latency);
      link.mb_per_s = static_cast<double>(data.bytes()) / 1e6 / *std::ranges::min_element(transfer);
    }
    // All ranks shall come to the same finding.
    for (double* figure : {&link.latency_us, &link.mb_per_s}) {
      const Tensor known = Tensor::scalar(world.rank() == link.one ? *figure : 0, DType::f64);
      world.communicator().all_reduce(known.view({1}), "doctor").wait();
      *figure = known.item();
    }
  }
  return links;
}

Finding judge_links(const std::vector<Link>& links) {
  Finding finding{.check = "links", .found = "there is one rank", .advice = {}};
  if (links.empty()) return finding;
  std::vector<double> latencies, rates;
  for (const Link& link : links) {
    latencies.push_back(link.latency_us);
    rates.push_back(link.mb_per_s);
  }
  // The best quarter is the measure: one bad machine of three makes two of three pairs slow.
  std::ranges::sort(latencies);
  std::ranges::sort(rates, std::greater());
  const double latency = latencies[(latencies.size() - 1) / 4];
  const double rate = rates[(rates.size() - 1) / 4];
  finding.found =
      fmt::format("{:.1f} us, {:.0f} MB/s ({})", latency, rate,
                  links.size() == 1 ? "the only pair: there is no other to compare it with"
                                    : fmt::format("the best quarter of {} pairs", links.size()));
  std::vector<std::string> slow;
  for (const Link& link : links)
    if (link.latency_us > 5 * latency + 1000 || link.mb_per_s < rate / 5)
      slow.push_back(fmt::format("ranks {} and {}: {:.1f} us, {:.0f} MB/s", link.one, link.other,
                                 link.latency_us, link.mb_per_s));
  if (slow.empty()) return finding;
  finding.good = false;
  finding.found = fmt::format("{}; the best quarter is {:.1f} us, {:.0f} MB/s",
                              fmt::join(slow, "; "), latency, rate);
  finding.advice =
      "Every step waits for the slowest link: look at the cable, the interface "
      "(LOCKSTEP_INTERFACE), and what else uses it.";
  return finding;
}

Finding measure_step(const World& world) {
  Tensor weights[2] = {Tensor::empty({256, 512}), Tensor::empty({512, 64})};
  Generator generator(1);
  for (const Tensor& weight : weights) generator.normal(weight, 0, 0.05);
  const Parameter first(weights[0], "first"), second(weights[1], "second");
  dist::DistributedDataParallel ddp({first, second}, {}, world, {.check_replicas = false});
  const Tensor x = Tensor::full({32, 256}, 0.1);
  constexpr int steps = 50;
  double begin = 0, exposed = 0;
  for (int i = 0; i < 5 + steps; ++i) {
    if (i == 5) {
      begin = seconds(world);
      exposed = ddp.statistics().exposed_seconds;
    }
    Tape tape;
    tape.backward(mean(matmul(relu(matmul(x, Tensor(first))), Tensor(second))));
    ddp.zero_grad();
  }
  const double step = (seconds(world) - begin) / steps;
  exposed = (ddp.statistics().exposed_seconds - exposed) / steps;
  const auto texts = dist::gather_text(
      world.communicator(),
      fmt::format("{:.0f} of {:.0f} us on rank {}", 1e6 * exposed, 1e6 * step, world.rank()),
      "doctor");
  const auto& slowest = ddp.statistics().slowest;
  return {.check = "a step",
          .found = fmt::format("communication takes {}; rank {} was the slowest in {} of {} steps",
                               fmt::join(texts, ", "),
                               std::ranges::max_element(slowest) - slowest.begin(),
                               *std::ranges::max_element(slowest), 5 + steps),
          .advice = {}};
}

std::vector<Finding> check_world(const World& world) {
  return {check_all_reduce(world), check_gradients(world), judge_links(measure_links(world)),
          measure_step(world)};
}

}  // namespace lockstep::doctor
