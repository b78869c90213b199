#include "lockstep/dist/rendezvous/surroundings/socket_folder.h"

#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>

#include "lockstep/dist/rendezvous/socket.h"

namespace lockstep::dist {

std::string socket_base() {
  constexpr std::string_view longest = "/lockstep-4294967295/lockstep-run-0123456789abcdef";
  const auto fits = [&](const char* folder) {
    return folder && *folder == '/' &&
           std::string_view(folder).size() + longest.size() < sizeof(sockaddr_un::sun_path);
  };
  if (const char* chosen = std::getenv("TMPDIR"); fits(chosen)) return chosen;
  const char* of_user = std::getenv("XDG_RUNTIME_DIR");
  return fits(of_user) && ::access(of_user, W_OK) == 0 ? of_user : "/tmp";
}

std::string make_socket_folder() {
  std::string folder = socket_base() + "/lockstep-XXXXXX";
  checked(::mkdtemp(folder.data()) ? 0 : -1, "make the folder " + folder);
  return folder;
}

SocketFolder::~SocketFolder() { ::rmdir(path_.c_str()); }

}  // namespace lockstep::dist
