#pragma once
/// The network interfaces of this machine: by which address can other machines scope it?

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::dist {

struct Interface {
  std::string name;     ///< "eth0"
  std::string address;  ///< "10.0.0.1", "fd00::1"
};

/// Those that are up: an entry for each address, IPv4 first. Without link-local addresses, which
/// mean nothing on another machine.
std::vector<Interface> interfaces();
std::string describe(const std::vector<Interface>& list);  ///< "lo 127.0.0.1, eth0 10.0.0.1"

/// The address that `wanted`, the name of an interface or one of its addresses, stands for. Throws
/// UsageError, listing what there is, if it is neither.
std::string interface_address(std::string_view wanted, const std::vector<Interface>& list);
std::string interface_address(std::string_view wanted);  ///< on this machine

/// True for "127.0.0.1" and its like, "::1" and "localhost": they mean this machine on every
/// machine.
bool is_loopback(std::string_view host);

/// Can all ranks be reached at these addresses, by rank, seen from rank `own`? Not if some are
/// loopback addresses and others are not: then there are several machines. Throws CommError on the
/// ranks whose own address is the wrong one, listing their interfaces, and PeerError on the others.
void check_reachable(const std::vector<std::string>& addresses, int own);

}  // namespace lockstep::dist
