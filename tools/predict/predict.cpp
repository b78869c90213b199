#include "lockstep/tools/predict/predict.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "lockstep/core/error.h"
#include "lockstep/kernels/cuda/gemm/slice_plan.h"

namespace lockstep::predict {
namespace {

/// Exact for a whole number of customers: how long one takes at a station depends on how many are
/// there when one fewer goes round.
double whole_throughput(int customers, const std::vector<double>& demands, double delay) {
  std::vector<double> queue(demands.size(), 0.0);
  double rate = 0;
  for (int n = 1; n <= customers; ++n) {
    double round = delay;
    for (std::size_t i = 0; i < demands.size(); ++i) round += demands[i] * (1 + queue[i]);
    if (round == 0) return 0;
    rate = n / round;
    for (std::size_t i = 0; i < demands.size(); ++i) queue[i] = rate * demands[i] * (1 + queue[i]);
  }
  return rate;
}

double cycles_of(const std::vector<Access>& accesses, const Gpu& gpu) {
  double cycles = 0;
  for (const Access& access : accesses)
    cycles += std::max(access.requests * 32 / gpu.load_store_units, access.wavefronts);
  return cycles;
}

/// The cycles of a multiprocessor that a block takes for a Demand of each of its warps, by what
/// they wait for and by what runs beside.
struct Pipes {
  double issue, fma, l1, tensor;
  double beside, from_l2, to_l2, from_neighbours;

  double waited() const { return std::max({issue, fma, l1, tensor}); }
};

Pipes pipes_of(const Work& work, const Demand& demand, const Gpu& gpu) {
  const double waited = cycles_of(demand.accesses, gpu);
  const double rate = work.wgmma ? gpu.wgmma : gpu.mma;
  const double warps = work.warps;
  return {.issue = warps * demand.instructions / schedulers,
          .fma = warps * demand.fma * 32 / gpu.fma_lanes,
          .l1 = warps * waited,
          .tensor = demand.tensor == 0 ? 0 : warps * demand.tensor / rate,
          .beside = warps * (waited + cycles_of(demand.beside, gpu)),
          .from_l2 = warps * demand.from_l2 / from_l2_bytes,
          .to_l2 = warps * demand.to_l2 / to_l2_bytes,
          .from_neighbours = warps * demand.from_neighbours / kernels::cuda::H100::neighbour_bytes};
}

/// The cycles that a block takes of a multiprocessor that it shares with others, so that `resident`
/// of them are there.
double service(const Work& work, const Demand& demand, int resident, double delay, const Gpu& gpu) {
  const Pipes pipes = pipes_of(work, demand, gpu);
  // Per warp. A scheduler has its own slot and tensor core, and a share of L1.
  const double warps = std::max(1.0, resident * work.warps * work.at_work);
  const double active = std::min<double>(schedulers, warps);
  const double slots = std::max(pipes.issue, pipes.fma) * schedulers / work.warps;
  const double tensor = pipes.tensor * schedulers / work.warps;
  const double l1 = pipes.l1 * active / work.warps;
  // wgmma is waited for by name, long after it was asked for: it is no station.
  const std::vector<double> stations =
      work.wgmma ? std::vector{slots, l1} : std::vector{slots, l1, tensor};
  const double rate = throughput(warps / active, stations, delay) * active;
  const double turns = rate == 0 ? 0 : work.warps / rate;
  return std::max(
      {turns, pipes.tensor, pipes.beside, pipes.from_l2, pipes.to_l2, pipes.from_neighbours});
}

/// The time in which each of `resident` blocks of a multiprocessor is done.
struct Round {
  double cycles;
  double served;  ///< of them, in which it computes
};

Round round_of(const Work& work, int resident, const Gpu& gpu) {
  if (resident == 0) return {0, 0};
  const double operands = work.operand_waits * gpu.shared_latency;
  const double step = service(work, work.step, resident, operands, gpu);
  const double ends = service(work, work.ends, resident, work.meeting, gpu);
  const double sync = work.barriers == 0 ? 0 : (work.barriers + 1) * gpu.shared_latency;
  const double wait = work.ahead > 1 ? sync : sync + gpu.memory_latency;
  const double begin = work.persistent ? 0 : gpu.memory_latency;
  const double served = work.steps * step + ends, away = work.steps * wait + begin;
  // Warps that wait by themselves are the customers; each takes its part of the block.
  const int parts = work.warps_wait ? work.warps : 1;
  const double rate = throughput(resident * parts, {served / parts}, away);
  // A step's data come no sooner than the latency after its own begin, `ahead` steps before.
  const double late =
      work.ahead == 1 ? 0 : work.steps * (gpu.memory_latency + step) / work.ahead + ends;
  return {std::max(resident * parts / rate, late), resident * served};
}

double clock_of(double busy, const Gpu& gpu) {
  return gpu.boost_clock - busy * (gpu.boost_clock - gpu.base_clock);
}

/// The busiest of what a multiprocessor has. Multipliers that are within 5 % of it are named in its
/// place: they are what should be busy.
Limiter busiest(const Pipes& pipes) {
  constexpr double nearly = 1.05;
  using Pipe = std::pair<double, Limiter>;
  const std::array<Pipe, 7> all{{{pipes.fma * nearly, Limiter::fma},
                                 {pipes.tensor * nearly, Limiter::tensor},
                                 {pipes.issue, Limiter::issue},
                                 {pipes.beside, Limiter::l1},
                                 {pipes.from_l2, Limiter::l2},
                                 {pipes.to_l2, Limiter::l2},
                                 {pipes.from_neighbours, Limiter::neighbours}}};
  return std::ranges::max_element(all, {}, &Pipe::first)->second;
}

}  // namespace

std::string_view name_of(Limiter limiter) {
  switch (limiter) {
    case Limiter::launch: return "launch";
    case Limiter::waves: return "waves";
    case Limiter::latency: return "latency";
    case Limiter::issue: return "issue";
    case Limiter::fma: return "FMA";
    case Limiter::l1: return "L1";
    case Limiter::tensor: return "tensor";
    case Limiter::l2: return "L2";
    case Limiter::neighbours: return "neighbours";
    case Limiter::memory: break;
  }
  return "memory";
}

double throughput(double customers, const std::vector<double>& demands, double delay) {
  const int below = static_cast<int>(customers);
  const double low = whole_throughput(below, demands, delay);
  if (customers == below) return low;
  return low + (customers - below) * (whole_throughput(below + 1, demands, delay) - low);
}

int resident_blocks(const Work& work, const Gpu& gpu) {
  // Registers are dealt to warps by 256, shared memory has 1 KiB more for each block.
  const std::int64_t registers = (work.registers * 32 + 255) / 256 * 256 * work.warps;
  const int fit = static_cast<int>(
      std::min({gpu.registers / registers, gpu.shared_bytes / (work.shared_bytes + 1024),
                std::int64_t{gpu.threads / (work.warps * 32)}, std::int64_t{gpu.blocks}}));
  check<UsageError>(fit > 0, "predict: no block of {} fits a multiprocessor of {}", work.kernel,
                    gpu.name);
  return fit;
}

Prediction predict(const Work& work, const Gpu& gpu) {
  Prediction result;
  result.blocks = resident_blocks(work, gpu);
  result.occupancy = static_cast<double>(result.blocks * work.warps * 32) / gpu.threads;
  const double processors = work.processors ? work.processors : gpu.processors;
  const double room = processors * result.blocks, blocks = static_cast<double>(work.blocks);
  result.waves = blocks / room;

  const double full = std::floor(result.waves);
  const int rest = static_cast<int>(std::ceil((blocks - full * room) / processors - 1e-9));
  const Round whole = round_of(work, result.blocks, gpu), last = round_of(work, rest, gpu);
  const double rounds = full * whole.cycles + last.cycles;
  const double even =
      std::min(rounds, result.waves >= 1 ? result.waves * whole.cycles
                                         : last.cycles * blocks / (rest * processors));

  const Pipes step = pipes_of(work, work.step, gpu), ends = pipes_of(work, work.ends, gpu);
  const double multiplied = std::max(step.fma, step.tensor) * work.steps;
  const double each = blocks / gpu.processors;
  const double through_l2 = blocks * work.warps *
                            (work.steps * work.step.from_l2 + work.ends.from_l2 + work.ends.to_l2) /
                            gpu.l2_bytes;
  const double fill = 2.0 * gpu.memory_latency;
  const double cycles = std::max(rounds, through_l2) + fill;
  const double clock = clock_of(std::min(1.0, each * multiplied / cycles), gpu);
  const double bytes = work.memory_bytes / (gpu.memory_bytes * memory_share) + fill / clock;
  result.seconds = std::max(cycles / clock, bytes);
  result.lost_to_waves =
      std::max(0.0,
               result.seconds - std::max({(std::max(even, through_l2) + fill) / clock, bytes})) /
      result.seconds;

  const double served = full * whole.served + last.served;
  if (bytes >= cycles / clock)
    result.limiter = Limiter::memory;
  else if (through_l2 > rounds)
    result.limiter = Limiter::l2;
  else if (served < 0.5 * cycles)
    result.limiter = Limiter::latency;
  else if (result.lost_to_waves > 0.25)
    result.limiter = Limiter::waves;
  else
    result.limiter = busiest(step.waited() * work.steps > ends.waited() ? step : ends);
  return result;
}

double roof_seconds(const Operation& operation, const Gpu& gpu) {
  const double tensor = std::max(gpu.wgmma, gpu.mma);
  double per_cycle = 1;
  switch (operation.unit) {
    case Unit::none: break;
    case Unit::fma: per_cycle = 2.0 * gpu.fma_lanes; break;
    case Unit::tensor16: per_cycle = 2 * tensor; break;
    case Unit::tensor32: per_cycle = tensor; break;
  }
  return std::max(operation.flops / (per_cycle * gpu.processors * gpu.base_clock),
                  operation.fewest_bytes / gpu.memory_bytes);
}

Prediction predict(const Operation& operation, const Gpu& gpu) {
  Prediction result;
  double longest = 0, started = 0, lost = 0;
  for (const Work& work : operation.launches) {
    const Prediction one = predict(work, gpu);
    const double before = result.seconds;
    if (one.seconds > longest) {
      longest = one.seconds;
      result = one;
    }
    result.seconds = before + launch_seconds + one.seconds;
    started += launch_seconds;
    lost += one.lost_to_waves * one.seconds;
  }
  if (started > 0.5 * result.seconds) result.limiter = Limiter::launch;
  result.lost_to_waves = lost / result.seconds;
  result.share_of_roof = roof_seconds(operation, gpu) / result.seconds;
  return result;
}

}  // namespace lockstep::predict
