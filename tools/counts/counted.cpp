#include "lockstep/tools/counts/counted.h"

#include "lockstep/core/error.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/simt/simt.h"

namespace lockstep::counts {

double Counted::excess() const {
  std::uint64_t moved = 0;
  for (const Launch& launch : launches) moved += launch.read + launch.written;
  return static_cast<double>(moved) / static_cast<double>(fewest_read + fewest_written);
}

std::vector<Counted> count(const std::vector<Problem>& problems) {
  check<DeviceError>(simt::counters::available(),
                     "[count] kernels are counted in a build that watches their accesses: "
                     "LOCKSTEP_SANITIZE=races");
  // Accesses are not also compared; and whatever the environment asks for, the figures are these.
  simt::Config config;
  config.races = false;
  config.capability = 90;
  simt::configure(config);
  const Device device{Device::Kind::sim, 0};
  std::vector<Counted> all;
  for (const Problem& problem : problems) {
    const Work work = problem.prepare(device);
    const Stream stream = Stream::current(device);
    stream.synchronize();
    simt::counters::start();
    work.run();
    stream.synchronize();
    all.push_back({problem, work.fewest_read, work.fewest_written, simt::counters::stop()});
  }
  return all;
}

std::string short_name(const std::string& kernel) {
  std::string name = kernel;
  const std::string unnamed = "(anonymous namespace)::";
  for (std::size_t at; (at = name.find(unnamed)) != std::string::npos;)
    name.erase(at, unnamed.size());
  name.resize(std::min(name.find_first_of("<("), name.size()));
  return name.substr(name.find_last_of(": ") + 1);  // all of it if there is none
}

}  // namespace lockstep::counts
