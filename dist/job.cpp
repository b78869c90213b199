#include "lockstep/dist/job.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>

#include <array>
#include <cstdlib>
#include <string_view>

#include "lockstep/dist/guardian.h"

namespace lockstep::dist {
namespace {

template <std::size_t N>
std::array<unsigned char, N> random_bytes() {
  std::array<unsigned char, N> bytes;
  // Up to 256 bytes come whole (getrandom(2)).
  checked(static_cast<int>(getrandom(bytes.data(), N, 0)), "get random bytes");
  return bytes;
}

Descriptor make_token() {
  const auto secret = random_bytes<32>();
  Descriptor token(checked(memfd_create("lockstep-token", MFD_CLOEXEC), "make the job's token"));
  checked(static_cast<int>(write(token.get(), secret.data(), secret.size())), "write the token");
  return token;
}

std::string make_name() {
  std::string name;
  for (unsigned char byte : random_bytes<8>()) name += fmt::format("{:02x}", byte);
  return name;
}

// Nothing of ours listens there: a program that expects torchrun may. Free now, not reserved.
int find_free_port() {
  const Descriptor probe(checked(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), "make a socket"));
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  socklen_t length = sizeof address;
  checked(bind(probe.get(), generic, length), "find a free port on 127.0.0.1");
  checked(getsockname(probe.get(), generic, &length), "find a free port on 127.0.0.1");
  return ntohs(address.sin_port);
}

std::string make_folder() {
  constexpr std::string_view pattern = "/lockstep-XXXXXX", longest_file = "/store";
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

Job::Job()
    : token_(make_token()), port_(find_free_port()), name_(make_name()), folder_(make_folder()) {}

Job::~Job() { remove_job_folder(folder_.c_str(), socket().c_str()); }

Environment Job::environment(int rank, int ranks, int errors) const {
  const std::string mine = std::to_string(rank), all = std::to_string(ranks);
  Environment variables{{"RANK", mine},
                        {"LOCAL_RANK", mine},
                        {"WORLD_SIZE", all},
                        {"LOCAL_WORLD_SIZE", all},
                        {"GROUP_RANK", "0"},
                        {"MASTER_ADDR", "127.0.0.1"},
                        {"MASTER_PORT", std::to_string(port_)},
                        {"LOCKSTEP_JOB", name_},
                        {"LOCKSTEP_STORE", "unix:" + socket()},
                        {"LOCKSTEP_TOKEN_FD", std::to_string(token())},
                        {"LOCKSTEP_ERROR_FD", std::to_string(errors)}};
  if (!std::getenv("OMP_NUM_THREADS")) variables.emplace_back("OMP_NUM_THREADS", "1");
  return variables;
}

}  // namespace lockstep::dist
