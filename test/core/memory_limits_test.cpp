#include "lockstep/core/system/memory_limits.h"

#include <doctest/doctest.h>

#include <fstream>
#include <string>

#include "support/temporary_folder.h"

using namespace lockstep;

namespace {

/// A small /proc and /sys.
struct System : test::TemporaryFolder {
  void put(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((path() / name).parent_path());
    std::ofstream(path() / name) << text;
  }
  void put_group(const std::string& name, const std::string& most, const std::string& now) const {
    put("sys/fs/cgroup/" + name + "/memory.max", most + "\n");
    put("sys/fs/cgroup/" + name + "/memory.current", now + "\n");
  }
};

}  // namespace

TEST_CASE("memory limits: the least of the machine's and of all cgroups' above the process") {
  const System system;
  CHECK_FALSE(available_memory(system.path()));
  system.put("proc/meminfo", "MemTotal:  9000 kB\nMemFree: 10 kB\nMemAvailable:   7000 kB\n");
  CHECK(available_memory(system.path()) == 7000 * 1024);
  system.put("proc/self/cgroup", "4:memory:/elsewhere\n0::/job/step\n");
  CHECK(available_memory(system.path()) == 7000 * 1024);
  system.put_group("job/step", "max", "5");
  system.put_group("elsewhere", "6", "5");
  CHECK(available_memory(system.path()) == 7000 * 1024);
  system.put_group("job", "5000", "3000");
  CHECK(available_memory(system.path()) == 2000);
  system.put_group("job/step", "4000", "3500");
  CHECK(available_memory(system.path()) == 500);
  system.put("sys/fs/cgroup/job/step/memory.stat",
             "anon 1\nfile 9\ninactive_file 700\nactive_file 30\nunevictable 0\n");
  CHECK(available_memory(system.path()) == 1230);
  system.put_group("", "1000", "900");  // in a container the process's cgroup is the root
  CHECK(available_memory(system.path()) == 100);
  system.put_group("", "1000", "1100");
  CHECK(available_memory(system.path()) == 0);
  system.put("proc/meminfo", "");
  system.put("proc/self/cgroup", "0::/\n");
  system.put_group("", "1000", "400");
  CHECK(available_memory(system.path()) == 600);
}

TEST_CASE("memory limits: this machine's") { CHECK(available_memory().value() > 0); }

TEST_CASE("memory limits: what the kernel has killed") {
  const System system;
  CHECK_FALSE(out_of_memory_kills(system.path()));
  system.put("proc/self/cgroup", "0::/job\n");
  CHECK_FALSE(out_of_memory_kills(system.path()));
  system.put("sys/fs/cgroup/job/memory.events", "low 0\nhigh 1\nmax 2\noom 7\noom_kill 3\n");
  CHECK(out_of_memory_kills(system.path()) == 3);
}
