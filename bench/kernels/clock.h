#pragma once
/// How long work takes, on the host or on a device.

#include <functional>

#include "lockstep/core/device.h"

namespace bench {

/// Microseconds per call of `calls` calls of run(0), run(1), ...; by two events round them on a
/// GPU's current stream, by the steady clock on the cpu.
double time_calls(lockstep::Device device, long calls, const std::function<void(long)>& run);

/// How many calls take about `seconds`: at least 1, at most 10000. Runs some.
long calls_for(lockstep::Device device, double seconds, const std::function<void(long)>& run);

}  // namespace bench
