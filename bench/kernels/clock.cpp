#include "clock.h"

#include <algorithm>
#include <chrono>
#include <cmath>

#include "lockstep/core/gpu/stream.h"

namespace bench {

using namespace lockstep;

double time_calls(Device device, long calls, const std::function<void(long)>& run) {
  if (device.kind == Device::Kind::cpu) {
    const auto start = std::chrono::steady_clock::now();
    for (long i = 0; i < calls; ++i) run(i);
    const std::chrono::duration<double, std::micro> taken =
        std::chrono::steady_clock::now() - start;
    return taken.count() / static_cast<double>(calls);
  }
  const Event begin(device, true), end(device, true);
  const Stream stream = Stream::current(device);
  begin.record(stream);
  for (long i = 0; i < calls; ++i) run(i);
  end.record(stream);
  stream.synchronize();  // throws what went wrong
  return end.milliseconds_since(begin) * 1e3 / static_cast<double>(calls);
}

long calls_for(Device device, double seconds, const std::function<void(long)>& run) {
  long calls = 1;
  double us = time_calls(device, calls, run);
  if (us < 100) {  // too little for one call to tell
    calls = 20;
    us = time_calls(device, calls, run);
  }
  return std::clamp(std::lround(seconds * 1e6 / std::max(us, 1e-3)), 1L, 10000L);
}

}  // namespace bench
