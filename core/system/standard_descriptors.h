#pragma once
/// The descriptors 0, 1 and 2 of a process that was started without some of them.

namespace lockstep {

/// Opens those that are closed on /dev/null. Otherwise a file or a socket would get their numbers,
/// and with them what the program prints. True if stdout was one of them. Not for several threads
/// at once.
bool open_standard_descriptors();

}  // namespace lockstep
