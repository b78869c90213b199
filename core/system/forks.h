#pragma once
/// Whether this process is a child (by fork()) of one that used the library.

namespace lockstep {

/// 0 in the process that was started, and one more in each child of a process. Thread-safe.
int forks() noexcept;

}  // namespace lockstep
