#include "measure.h"

#include <cstring>

#include "clock.h"
#include "lockstep/core/gpu/stream.h"
#include "peers.h"
#include "products.h"
#include "sizes.h"
#include "verify.h"

namespace bench {
namespace {

using namespace lockstep;

std::size_t bytes_of(const Case& work) {
  std::size_t bytes = 0;
  for (const Tensor& input : work.inputs) bytes += input.bytes();
  for (const Output& output : work.outputs) bytes += output.tensor.bytes();
  return bytes;
}

std::size_t cases_for(std::size_t bytes, const Method& method) {
  return std::clamp<std::size_t>((method.rotated_bytes + bytes - 1) / bytes, 1, 64);
}

/// One who takes part: the same function for each case, whose turn comes round.
struct Entrant {
  Figures figures;
  std::vector<std::function<void()>> runs;  // one per case
  long calls = 0;                           // per round

  void run(long i) const { runs[static_cast<std::size_t>(i) % runs.size()](); }
  double round(Device device, long n) const {
    return time_calls(device, n, [this](long i) { run(i); });
  }
  void warm_up(const Method& method) {
    round(method.device, static_cast<long>(runs.size()));
    calls = calls_for(method.device, method.round_seconds, [this](long i) { run(i); });
  }
  void add_round(const Method& method) { figures.rounds.push_back(round(method.device, calls)); }
};

std::vector<Contender> contenders(const Row& row, const Case& work) {
  std::vector<Contender> result{{"Lockstep", work.run}};
  for (const Contender& peer : work.peers) result.push_back(peer);
  for (Contender& peer : peers_of(row.name, work)) result.push_back(std::move(peer));
  return result;
}

/// PyTorch has operations of its own tensors; none for some of the rows.
bool pytorch_takes_part(const Row& row, const Size& size, std::size_t cases, Peer* peer) {
  if (peer == nullptr) return false;
  return peer->ask(fmt::format("case {} {} {}", row.name, cases, size.text()), "case") == "ready";
}

long pytorch_calls(Peer& peer, std::size_t cases, const Method& method) {
  peer.round(static_cast<long>(cases));
  const double us = std::max(peer.round(3), 1e-3);
  return std::clamp(std::lround(method.round_seconds * 1e6 / us), 1L, 10000L);
}

}  // namespace

Measurement measure(const Row& row, const Size& size, const Method& method) {
  Source source(method.device);
  std::vector<Case> cases{row.prepare(size, source)};
  for (const Contender& contender : contenders(row, cases[0])) verify(cases[0], contender);
  const std::size_t count = cases_for(bytes_of(cases[0]), method);
  while (cases.size() < count) cases.push_back(row.prepare(size, source));

  std::vector<Entrant> entrants;
  for (const Contender& contender : contenders(row, cases[0]))
    entrants.push_back({{contender.name, {}}, {}});
  for (const Case& work : cases) {
    const std::vector<Contender> all = contenders(row, work);
    for (std::size_t k = 0; k < all.size(); ++k) entrants[k].runs.push_back(all[k].run);
  }
  for (Entrant& entrant : entrants) entrant.warm_up(method);
  const bool with_pytorch = pytorch_takes_part(row, size, count, method.pytorch);
  const long torch_calls = with_pytorch ? pytorch_calls(*method.pytorch, count, method) : 0;
  Figures torch{with_pytorch ? method.pytorch->name() : "", {}};

  for (int i = 0; i < method.rounds; ++i) {
    for (Entrant& entrant : entrants) entrant.add_round(method);
    if (with_pytorch) torch.rounds.push_back(method.pytorch->round(torch_calls));
  }
  Measurement result{entrants[0].figures, {}, count};
  for (std::size_t k = 1; k < entrants.size(); ++k) result.peers.push_back(entrants[k].figures);
  if (with_pytorch) result.peers.push_back(torch);
  return result;
}

double copy_bytes_per_second(const Method& method, Scale scale) {
  const std::int64_t elements = flat(scale).back().dims[0];
  Source source(method.device);
  const Tensor from = source.normal({elements}), to = source.empty({elements});
  Entrant copy{{"copy", {}}, {}};
  if (method.device.kind == Device::Kind::cpu)
    copy.runs.push_back([=] { std::memcpy(to.raw(), from.raw(), from.bytes()); });
  else
    copy.runs.push_back([=] { to.copy_from(from); });
  copy.warm_up(method);
  for (int i = 0; i < method.rounds; ++i) copy.add_round(method);
  return 2 * static_cast<double>(from.bytes()) / (copy.figures.min() * 1e-6);
}

std::optional<double> product_flops(const std::string& precision, const Method& method,
                                    Scale scale) {
  const Size size = squares(scale).back();
  const bool tf32 = precision == "tf32";
  DType dtype = DType::f32;
  for (const DType other : {DType::f64, DType::f16, DType::bf16})
    if (name_of(other) == precision) dtype = other;
  Source source(method.device);
  std::optional<double> best;
  for (Contender& library : product_peers(product_of(size, source, dtype, tf32))) {
    Entrant entrant{{library.name, {}}, {library.run}};
    entrant.warm_up(method);
    for (int i = 0; i < method.rounds; ++i) entrant.add_round(method);
    best = std::max(best.value_or(0), 2 * size.numel() / (entrant.figures.min() * 1e-6));
  }
  return best;
}

double work_of(const Row& row, const Size& size) {
  return row.precision.empty() ? row.bytes * size.numel() : 2 * size.numel();
}

}  // namespace bench
