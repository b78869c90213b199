#include "lockstep/dist/rendezvous/interfaces.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>

#include <algorithm>
#include <array>
#include <memory>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

std::vector<Interface> interfaces() {
  ifaddrs* found = nullptr;
  if (::getifaddrs(&found) != 0) return {};
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(found, &freeifaddrs);
  std::vector<Interface> result;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* entry = found; entry; entry = entry->ifa_next) {
      if (!entry->ifa_addr || entry->ifa_addr->sa_family != family) continue;
      if (!(entry->ifa_flags & IFF_UP)) continue;
      if (family == AF_INET6 &&
          IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<sockaddr_in6*>(entry->ifa_addr)->sin6_addr))
        continue;
      const socklen_t size = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
      std::array<char, NI_MAXHOST> text{};
      if (::getnameinfo(entry->ifa_addr, size, text.data(), text.size(), nullptr, 0,
                        NI_NUMERICHOST) == 0)
        result.push_back({entry->ifa_name, text.data()});
    }
  }
  return result;
}

std::string describe(const std::vector<Interface>& list) {
  std::string text;
  for (const auto& [name, address] : list)
    text += fmt::format("{}{} {}", text.empty() ? "" : ", ", name, address);
  return text.empty() ? "none" : text;
}

std::string interface_address(std::string_view wanted, const std::vector<Interface>& list) {
  for (const auto& [name, address] : list)
    if (name == wanted || address == wanted) return address;
  fail<UsageError>("[interface] '{}' is no interface of this machine; there are: {}", wanted,
                   describe(list));
}

std::string interface_address(std::string_view wanted) {
  return interface_address(wanted, interfaces());
}

bool is_loopback(std::string_view host) {
  const std::string text(host);
  in_addr four{};
  if (::inet_pton(AF_INET, text.c_str(), &four) == 1) return (ntohl(four.s_addr) >> 24) == 127;
  in6_addr six{};
  if (::inet_pton(AF_INET6, text.c_str(), &six) == 1) return IN6_IS_ADDR_LOOPBACK(&six);
  return text == "localhost";
}

void check_reachable(const std::vector<std::string>& addresses, int own) {
  const auto far = std::ranges::find_if_not(addresses, is_loopback);
  const auto loop = std::ranges::find_if(addresses, is_loopback);
  if (far == addresses.end() || loop == addresses.end()) return;
  const bool mine = is_loopback(addresses[index(own)]);
  const auto culprit = mine ? own : loop - addresses.begin();
  const std::string reason = fmt::format(
      "[interface] rank {} would be reached at {}, a loopback address, but rank {} at {} is on "
      "another machine",
      culprit, addresses[index(culprit)], far - addresses.begin(), *far);
  check<PeerError>(mine, "{}", reason);
  fail<CommError>(
      "{}; {} is what its connection with rank 0, or LOCKSTEP_INTERFACE, led to. Set "
      "LOCKSTEP_INTERFACE (lockstep-run: --interface) to one of: {}",
      reason, addresses[index(own)], describe(interfaces()));
}

}  // namespace lockstep::dist
