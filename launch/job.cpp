#include "lockstep/launch/job.h"

#include <fmt/format.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
#include <utility>

#include "lockstep/dist/rendezvous/surroundings/inherited.h"
#include "lockstep/dist/rendezvous/surroundings/nearest.h"
#include "lockstep/dist/rendezvous/surroundings/socket_folder.h"

namespace lockstep::launch {

using dist::checked;

namespace {

dist::Descriptor memory_file(const char* name) {
  return dist::Descriptor(checked(memfd_create(name, MFD_CLOEXEC), "make a file in memory"));
}

dist::Descriptor in_memory(const dist::Token& secret) {
  dist::Descriptor token = memory_file("lockstep-token");
  checked(static_cast<int>(write(token.get(), secret.data(), secret.size())), "write the token");
  return dist::moved_up(std::move(token));
}

}  // namespace

std::string name_from(const dist::Token& token) {
  const auto* bytes = reinterpret_cast<const unsigned char*>(token.data());
  return fmt::format("{:02x}", fmt::join(bytes, bytes + 8, ""));
}

JobPlan local_job(int ranks) {
  JobPlan plan;
  plan.ranks = plan.world = ranks;
  plan.name = name_from(dist::random_token());
  plan.token = dist::random_token();
  plan.node_of.assign(dist::index(ranks), 0);
  plan.master_port = dist::local_port(dist::reserve_port("127.0.0.1").get());
  return plan;
}

Job::Job(const JobPlan& plan)
    : plan_(plan), token_(in_memory(plan.token)), folder_(dist::make_socket_folder()) {
  if (plan.respawn) generations_ = dist::moved_up(memory_file("lockstep-generations"));
}

Job::~Job() { remove_job_folder(folder_.c_str(), socket().c_str()); }

// A socket of the last generation may be left from a rank that died while others joined it.
void Job::publish(std::string_view generation) {
  unlink(socket().c_str());
  checked(static_cast<int>(write(generations_.get(), generation.data(), generation.size())),
          "tell the ranks who is left");
}

std::vector<int> Job::inherited() const {
  if (!generations_) return {token()};
  return {token(), generations_.get()};
}

Environment Job::environment(int place, int errors, int restart) const {
  const int rank = plan_.number(place);
  Environment variables{
      {"RANK", std::to_string(rank)},
      {"LOCAL_RANK", std::to_string(place)},
      {"WORLD_SIZE", std::to_string(std::max(plan_.world, rank + 1))},
      {"LOCAL_WORLD_SIZE", std::to_string(std::max(plan_.ranks, place + 1))},
      {"GROUP_RANK", std::to_string(plan_.node)},
      {"GROUP_WORLD_SIZE", std::to_string(plan_.nodes)},
      {"MASTER_ADDR", plan_.master_address},
      {"MASTER_PORT", std::to_string(plan_.master_port)},
      {"LOCKSTEP_JOB", plan_.name},
      {"LOCKSTEP_RENDEZVOUS", plan_.rendezvous.empty() ? "unix:" + socket() : plan_.rendezvous},
      {"LOCKSTEP_TOKEN_FD", std::to_string(token())},
      {"LOCKSTEP_ERROR_FD", std::to_string(errors)}};
  if (generations_)
    variables.emplace_back("LOCKSTEP_SURVIVE_FD", std::to_string(generations_.get()));
  if (!plan_.interface.empty()) variables.emplace_back("LOCKSTEP_INTERFACE", plan_.interface);
  if (!std::getenv("OMP_NUM_THREADS")) variables.emplace_back("OMP_NUM_THREADS", "1");
  variables.emplace_back("LOCKSTEP_RESTART", std::to_string(restart));
  std::vector<int> left_open = inherited();
  left_open.push_back(errors);
  variables.emplace_back("LOCKSTEP_DESCRIPTORS", dist::identities_of(left_open));
  variables.emplace_back("LOCKSTEP_STARTED", dist::started_as(variables, &std::getenv));
  return variables;
}

}  // namespace lockstep::launch
