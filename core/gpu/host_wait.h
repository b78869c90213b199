#pragma once
/// What a thread does while it waits on the host for a stream (item, to_vector, copies to the cpu,
/// Stream::synchronize). The stream may wait for other ranks: who knows them looks after them
/// meanwhile, and throws if one does not come. Else the thread would wait for ever.

#include <functional>
#include <memory>

namespace lockstep::gpu {

/// Returns when `done` says that the stream has come so far, or throws.
using HostWait = std::function<void(const std::function<bool()>& done)>;

/// From now on the calling thread waits by `wait`, as long as that lives; by the last one that it
/// was given. Not while it records a step. Without a GPU it does nothing.
void wait_by(const std::shared_ptr<HostWait>& wait);

}  // namespace lockstep::gpu
