#pragma once
/// Where the files of sockets lie.

#include <string>

namespace lockstep::dist {

/// $TMPDIR, else $XDG_RUNTIME_DIR where this user may write, else /tmp. A path that is not
/// absolute, or is too long for a socket's address, is skipped.
std::string socket_base();

/// Makes a new folder of mode 0700 there, for one socket. Throws Error if the system refuses.
std::string make_socket_folder();

/// Such a folder, which goes away with this object if the socket has gone before.
class SocketFolder {
 public:
  SocketFolder() : path_(make_socket_folder()) {}
  ~SocketFolder();
  SocketFolder(const SocketFolder&) = delete;
  SocketFolder& operator=(const SocketFolder&) = delete;

  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

}  // namespace lockstep::dist
