#include <algorithm>
#include <optional>

#include "lockstep/core/hash.h"
#include "lockstep/dist/rendezvous/events/launcher_pipe.h"
#include "lockstep/dist/rendezvous/surroundings/socket_folder.h"
#include "lockstep/dist/rendezvous/survival/generation.h"
#include "lockstep/dist/world/fabrics.h"

namespace lockstep::dist {
namespace {

class ProcessFabric final : public Fabric {
 public:
  ProcessFabric(std::shared_ptr<Rendezvous> rendezvous, const std::vector<std::string>& node_names,
                std::string wanted, const FabricOptions& options)
      : rendezvous_(std::move(rendezvous)),
        nodes_(node_map(node_names)),
        wanted_(std::move(wanted)),
        options_(options),
        transport_(choose_transport()) {
    options_.communicator.nodes = nodes_;
  }

  ~ProcessFabric() override {
    if (of_job_) tell_launcher({RankEvent::Kind::world_ends});
  }

  int rank() const override { return rendezvous_->rank(); }
  int size() const override { return rendezvous_->size(); }
  std::string_view transport() const override { return transport_; }
  std::unique_ptr<Communicator> connect() override {
    return make_communicator(make_transport(), options_);
  }
  std::shared_ptr<Fabric> split(const std::vector<int>& members) override;
  void abort(std::string_view reason) noexcept override { rendezvous_->abort(reason); }

  /// The first fabric of a job opens the board for all groups. Collective.
  void open_wait_board() {
    if (transport_ == "threads") return;  // alone
    of_job_ = true;
    options_.communicator.board =
        transport_ == "shm" ? shm_wait_board(*rendezvous_) : tcp_wait_board(*rendezvous_);
    const double timeout = watchdog_wanted() ? rendezvous_->timeout().count() : 0;
    tell_launcher({.kind = RankEvent::Kind::world_begins, .seconds = timeout});
  }

 private:
  std::string_view choose_transport() const;
  std::unique_ptr<Transport> make_transport();
  RendezvousOptions group_options(const std::vector<int>& members);
  std::shared_ptr<Rendezvous> group_rendezvous(const std::vector<int>& members);

  std::shared_ptr<Rendezvous> rendezvous_;
  NodeMap nodes_;
  std::string wanted_;
  FabricOptions options_;
  std::string_view transport_;
  std::shared_ptr<Rendezvous> local_;  // among the ranks of this node, where nodes have several
  int splits_ = 0;
  bool of_job_ = false;  // of several ranks: not a group
};

std::string_view ProcessFabric::choose_transport() const {
  if (size() == 1) return "threads";
  if (nodes_.ranks.size() == 1) return wanted_ == "tcp" ? "tcp" : "shm";
  check<UsageError>(wanted_ != "shm",
                    "[world] transport shm needs all ranks on one machine, they are on {}",
                    nodes_.ranks.size());
  const bool alone = std::ranges::all_of(nodes_.ranks, [](const auto& r) { return r.size() == 1; });
  return wanted_ == "tcp" || alone ? "tcp" : "shm+tcp";
}

std::unique_ptr<Transport> ProcessFabric::make_transport() {
  if (transport_ == "threads") return std::move(threads_transports(1).front());
  if (transport_ == "shm") return shm_transport(rendezvous_);
  if (transport_ == "tcp") return tcp_transport(rendezvous_);
  if (!local_) local_ = group_rendezvous(nodes_.ranks[index(nodes_.node_of[index(rank())])]);
  auto local = local_->size() > 1 ? shm_transport(local_) : nullptr;
  return node_transport(tcp_transport(rendezvous_), std::move(local), nodes_);
}

/// Without the address. A rank without members is number 0 of 0.
RendezvousOptions ProcessFabric::group_options(const std::vector<int>& members) {
  RendezvousOptions options;
  options.of_job = false;
  options.watch = rendezvous_->options().watch;
  options.timeout = rendezvous_->timeout();
  options.credentials = rendezvous_->credentials();
  // Depends on all ancestors, in their order: groups of groups are different jobs.
  options.credentials.job =
      fnv1a(fmt::format("{:016x} split {} from rank {}", options.credentials.job, ++splits_,
                        members.empty() ? -1 : members.front()));
  options.credentials.rank = static_cast<int>(std::ranges::find(members, rank()) - members.begin());
  options.credentials.size = static_cast<int>(members.size());
  options.one_machine = std::ranges::all_of(
      members, [&](int r) { return nodes_.node_of[index(r)] == nodes_.node_of[index(rank())]; });
  options.own_address = rendezvous_->address();
  return options;
}

/// Collective over all ranks: the first member of each group listens and tells the others where.
std::shared_ptr<Rendezvous> ProcessFabric::group_rendezvous(const std::vector<int>& members) {
  RendezvousOptions options = group_options(members);
  const auto& [token, job, place, group_size] = options.credentials;
  Descriptor listener;
  std::optional<SocketFolder> folder;  // until all have met
  if (place == 0 && group_size > 1) {
    if (options.one_machine)
      options.address.path = folder.emplace().path() + "/group";
    else
      options.address.host = rendezvous_->address();
    listener = listen_on(options.address, options.one_machine);
    if (!options.one_machine) options.address.port = local_port(listener.get());
  }
  const std::string mine = listener ? options.address.text() : "";
  const std::vector<std::string> addresses = rendezvous_->all_gather("groups", mine);
  if (members.empty()) return nullptr;
  if (group_size > 1) options.address = Endpoint::parse(addresses[index(members[0])]);
  return join_rendezvous(options, std::move(listener));
}

std::shared_ptr<Fabric> ProcessFabric::split(const std::vector<int>& members) {
  std::shared_ptr<Rendezvous> rendezvous = group_rendezvous(members);
  if (!rendezvous) return nullptr;
  std::vector<std::string> names;  // of the nodes: their numbers here
  for (const int r : members) names.push_back(std::to_string(nodes_.node_of[index(r)]));
  FabricOptions options = options_;
  options.communicator.members = members_in_job(members, options.communicator.members);
  return std::make_shared<ProcessFabric>(std::move(rendezvous), names, wanted_, options);
}

// The names of all ranks' nodes. A rank that does not know who shares its machine is a node of its
// own, for the memory of two containers on one machine may be apart. Its local rank, by which it
// chooses a GPU, is its place among the ranks of that machine.
std::vector<std::string> meet_nodes(Rendezvous& rendezvous, LaunchInfo& launch,
                                    const std::string& node) {
  constexpr char known = '+', found_out = '-';
  std::vector<std::string> nodes =
      rendezvous.all_gather("nodes", (launch.local_known ? known : found_out) + node);
  std::vector<std::string> machines;
  for (std::size_t r = 0; r < nodes.size(); ++r) {
    machines.push_back(nodes[r].substr(1));
    nodes[r] = nodes[r][0] == known ? machines[r] : fmt::format("of rank {} alone", r);
  }
  if (launch.local_known) return nodes;
  const NodeMap map = node_map(machines);
  launch.local_rank = map.place_of[index(rendezvous.rank())];
  launch.local_size = static_cast<int>(std::ranges::count(machines, node));
  return nodes;
}

// An echo: it names nobody who is to blame.
void check_generation(const LaunchInfo& launch, std::string_view operation) {
  const int newest = newest_generation(launch.survive_descriptor).number;
  check<PeerError>(newest == launch.generation,
                   "[{}] a rank was lost or joins: generation {} of the job ends, {} begins",
                   operation, launch.generation, newest);
}

/// Of a job that survives: this rank says that it hangs itself, in the newest generation.
std::function<void()> teller_of_loss(const LaunchInfo& launch) {
  if (launch.survive_descriptor < 0) return {};
  return [descriptor = launch.survive_descriptor, number = launch.number] {
    try {
      tell_launcher(suspicion(newest_generation(descriptor).number, {{number}, Fault::hangs}));
    } catch (const std::exception&) {  // the launcher sees the end of this process all the same
    }
  };
}

}  // namespace

std::shared_ptr<Fabric> process_fabric(LaunchInfo& launch, const std::string& transport,
                                       const FabricOptions& options) {
  check<UsageError>(transport.empty() || transport == "shm" || transport == "tcp",
                    "[world] the transport between processes must be shm or tcp, got '{}'",
                    transport);
  check<UsageError>(
      transport != "shm" || launch.one_machine(),
      "[world] transport shm needs all ranks on one machine; {} of {} are on this one",
      launch.local_size, launch.size);
  RendezvousOptions meeting;
  FabricOptions watched = options;
  if (launch.size > 1) meeting = rendezvous_options(launch, options.communicator.timeout);
  if (launch.survive_descriptor >= 0) {
    meeting.watch = [launch](const std::vector<int>&) { check_generation(launch, "rendezvous"); };
    watched.communicator.watch = [launch] { check_generation(launch, "survive"); };
  }
  const bool memory = launch.one_machine() && meeting.address.is_unix();
  check<UsageError>(transport != "shm" || memory || launch.size == 1,
                    "[world] transport shm needs a rendezvous at unix:/PATH, got '{}'",
                    launch.rendezvous);
  const auto rendezvous = join_rendezvous(meeting);
  const std::string node = launch.node.empty()
                               ? fmt::format("of rank {}", launch.rank - launch.local_rank)
                               : launch.node;
  const std::vector<std::string> nodes = meet_nodes(*rendezvous, launch, node);
  // Memory cannot be shared through a rendezvous that is reached by TCP, even on one machine.
  const bool by_tcp = launch.size > 1 && !memory && node_map(nodes).ranks.size() == 1;
  const auto fabric =
      std::make_shared<ProcessFabric>(rendezvous, nodes, by_tcp ? "tcp" : transport, watched);
  fabric->open_wait_board();
  if (launch.size > 1 && watchdog_wanted()) rendezvous->watch(teller_of_loss(launch));
  return fabric;
}

}  // namespace lockstep::dist
