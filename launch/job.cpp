#include "lockstep/launch/job.h"

#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/un.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>
namespace lockstep::launch {

using dist::checked;

namespace {

dist::Descriptor memory_file(const char* name) {
  return dist::Descriptor(checked(memfd_create(name, MFD_CLOEXEC), "make a file in memory"));
}

dist::Descriptor in_memory(const dist::Token& secret) {
  dist::Descriptor token = memory_file("lockstep-token");
  checked(static_cast<int>(write(token.get(), secret.data(), secret.size())), "write the token");
  return token;
}

std::string make_folder() {
  constexpr std::string_view pattern = "/lockstep-XXXXXX", longest_file = "/rendezvous";
  const char* chosen = std::getenv("TMPDIR");
  std::string folder = chosen && *chosen == '/' ? chosen : "/tmp";
  // The path of a Unix socket must fit into its address.
  if (folder.size() + pattern.size() + longest_file.size() >= sizeof(sockaddr_un::sun_path))
    folder = "/tmp";
  folder += pattern;
  checked(mkdtemp(folder.data()) ? 0 : -1, "make the folder " + folder);
  return folder;
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

Job::Job(const JobPlan& plan) : plan_(plan), token_(in_memory(plan.token)), folder_(make_folder()) {
  if (plan.respawn) generations_ = memory_file("lockstep-generations");
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

Environment Job::environment(int place, int errors) const {
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
  return variables;
}

}  // namespace lockstep::launch
