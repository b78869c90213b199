#include "traps/flip_over_tcp.h"

#include <fstream>
#include <iterator>
#include <random>
#include <regex>

#include "dist/rendezvous/rendezvous_support.h"
#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/transport/transports.h"
#include "support/bad_cable.h"
#include "support/small_models.h"
#include "traps/replicas.h"

namespace lockstep::test {
namespace {

constexpr const char* old_checkpoint = "a good one";

struct Scenario {
  int size, from;  // the bad cable leads from this rank to the next one
  dist::Algorithm algorithm;
  int to() const { return (from + 1) % size; }
};

/// The sockets of all ranks with each other: rank r's with q is [r][q].
using Sockets = std::vector<std::vector<dist::Connection>>;
Sockets connect(const Scenario& scenario, BadCable& cable) {
  const std::size_t size = dist::index(scenario.size);
  Sockets sockets(size);
  for (auto& of_rank : sockets) of_rank.resize(size);
  for (std::size_t r = 0; r < size; ++r)
    for (std::size_t q = 0; q < r; ++q) {
      SocketPair pair = connected_pair();
      sockets[r][q] = {std::move(pair.one), {}, {}};
      sockets[q][r] = {std::move(pair.two), {}, {}};
    }
  const std::size_t from = dist::index(scenario.from), to = dist::index(scenario.to());
  sockets[from][to] = {cable.take_near(), {}, {}};
  sockets[to][from] = {cable.take_far(), {}, {}};
  return sockets;
}

void train(dist::Communicator& communicator, const std::string& checkpoint) {
  Net model;
  DistributedDataParallel ddp(model.parameters(), model.buffers(), communicator);
  optim::SGD optimizer(model.parameters(), usual);
  for (int step = 0; step < 4; ++step) {
    optimizer.zero_grad();
    Tape tape;
    const int begin = 10 * step + communicator.rank();
    tape.backward(loss_of(model, begin, begin + 1));
    optimizer.step();
  }
  if (checkpoint.empty()) return;
  ddp.save_on_rank0([&] { nn::save_safetensors(checkpoint, model.state_dict()); });
}

/// What each rank throws.
std::vector<std::string> train_over(const Scenario& scenario, BadCable& cable,
                                    const std::string& checkpoint) {
  Sockets sockets = connect(scenario, cable);
  const TemporaryFolder folder;
  const std::string address = "unix:" + folder / "rendezvous";
  return dist::testing::run_ranks(scenario.size, [&](int rank) {
    auto transport = dist::tcp_transport(
        dist::join_rendezvous(dist::testing::options_for(address, rank, scenario.size)),
        std::move(sockets[dist::index(rank)]));
    dist::HostCommunicator communicator(
        std::move(transport), {.algorithm = scenario.algorithm, .timeout = dist::Seconds(20)});
    train(communicator, checkpoint);
  });
}

std::size_t bytes_of_training(const Scenario& scenario) {
  BadCable cable(nowhere);
  for (const std::string& error : train_over(scenario, cable, ""))
    expect(error.empty(), "{}", error);
  return cable.passed();
}

}  // namespace

void flip_over_tcp(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<std::size_t>(random() % n); };
  const int size = 2 + static_cast<int>(below(3));
  const Scenario scenario{size, static_cast<int>(below(dist::index(size))),
                          below(2) == 0 ? dist::Algorithm::ring : dist::Algorithm::two_shot};
  const std::size_t at = below(bytes_of_training(scenario));
  const TemporaryFolder folder;
  const std::string checkpoint = folder / "model";
  std::ofstream(checkpoint) << old_checkpoint;
  BadCable cable(at, static_cast<int>(below(8)));
  const std::vector<std::string> errors = train_over(scenario, cable, checkpoint);
  const std::string where =
      fmt::format("ranks {} to {} of {}, byte {}", scenario.from, scenario.to(), size, at);
  for (const std::string& error : errors)
    expect(contains(error, "changed on the way"), "{}: '{}'", where, error);
  const std::string& receiver = errors[dist::index(scenario.to())];
  const std::regex call(fmt::format("\\[[a-z_]+\\] rank {}, #[0-9]+ '[^']+'.* from rank {}: .*",
                                    scenario.to(), scenario.from));
  expect(std::regex_search(receiver, call), "{}: the receiver says: {}", where, receiver);
  std::ifstream file(checkpoint);
  const std::string now{std::istreambuf_iterator<char>(file), {}};
  expect(now == old_checkpoint, "{}: the checkpoint is {} bytes", where, now.size());
}

}  // namespace lockstep::test
