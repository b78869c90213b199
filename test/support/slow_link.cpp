// Preloaded into a rank (LD_PRELOAD), it delays every message that the rank sends by 3 ms: what a
// bad cable or a busy switch does.

#include <dlfcn.h>
#include <sys/socket.h>
#include <unistd.h>

namespace {
template <class Call>
Call* slowly(const char* name) {
  ::usleep(3000);
  return reinterpret_cast<Call*>(::dlsym(RTLD_NEXT, name));
}
}  // namespace

extern "C" ssize_t send(int socket, const void* bytes, size_t count, int flags) {
  return slowly<decltype(send)>("send")(socket, bytes, count, flags);
}
extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  return slowly<decltype(sendmsg)>("sendmsg")(socket, message, flags);
}
