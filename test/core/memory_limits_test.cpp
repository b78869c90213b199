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

TEST_CASE("memory limits: cgroups v1, as a machine of 2019 and one with both versions show them") {
  const std::string first =
      "11:cpuset:/docker/ab\n10:memory:/docker/ab\n9:cpu,cpuacct:/docker/ab\n"
      "1:name=systemd:/docker/ab\n";
  const std::string joint = "3:cpu,memory:/docker/ab\n2:memory_not:/elsewhere\n";
  for (const std::string& groups : {first, joint, first + "0::/system.slice/docker\n"}) {
    CAPTURE(groups);
    const System system;
    const auto put = [&](const std::string& file, const std::string& text) {
      system.put("sys/fs/cgroup/memory/" + file, text);
    };
    system.put("proc/meminfo", "MemAvailable:   7000 kB\n");
    system.put("proc/self/cgroup", groups);
    CHECK_FALSE(out_of_memory_kills(system.path()));
    put("memory.limit_in_bytes", "9223372036854771712\n");  // none
    put("memory.usage_in_bytes", "123456\n");
    CHECK(available_memory(system.path()) == 7000 * 1024);
    put("docker/memory.limit_in_bytes", "6000\n");
    put("docker/memory.usage_in_bytes", "4000\n");
    CHECK(available_memory(system.path()) == 2000);
    put("docker/ab/memory.limit_in_bytes", "4000\n");
    put("docker/ab/memory.usage_in_bytes", "3500\n");
    put("docker/ab/memory.stat",
        "cache 9\nactive_file 5\ninactive_file 6\ntotal_cache 9\n"
        "total_active_file 30\ntotal_inactive_file 700\n");
    CHECK(available_memory(system.path()) == 1230);
    put("docker/ab/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n");
    CHECK(out_of_memory_kills(system.path()) == 2);
  }
}

TEST_CASE("memory limits: too much is told with what there is, each time; a little is there") {
  for (int k = 0; k < 3; ++k) {
    CHECK(memory_shortage(std::uint64_t{1} << 60).value() > 0);
    CHECK_FALSE(memory_shortage(0));
    for (int part = 0; part < 300; ++part) CHECK_FALSE(memory_shortage(1 << 16));
  }
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
