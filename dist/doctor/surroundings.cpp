// What the system says of its GPUs. NVML is not linked: nvidia-smi and /proc tell the same.

#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string_view>

#include "lockstep/core/text/number.h"
#include "lockstep/dist/doctor/bytes.h"
#include "lockstep/dist/doctor/gpu.h"

namespace lockstep::doctor {
namespace {

/// What the command prints, without its errors; what it printed so far if it fails. Nothing if
/// timeout(1), which it starts with, had to end it, or could not within 14 seconds: a process that
/// waits within the driver cannot be killed.
std::optional<std::string> output_of(const char* command) {
  using Clock = std::chrono::steady_clock;
  std::string text;
  std::FILE* const pipe = ::popen(command, "re");
  if (!pipe) return text;
  const auto deadline = Clock::now() + std::chrono::seconds(14);
  while (true) {
    pollfd file{.fd = ::fileno(pipe), .events = POLLIN, .revents = 0};
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now());
    if (left.count() <= 0) return {};  // pclose would wait for it
    if (::poll(&file, 1, static_cast<int>(left.count())) <= 0) continue;
    char buffer[512];
    const ssize_t got = ::read(file.fd, buffer, sizeof buffer);
    if (got > 0) text.append(buffer, static_cast<std::size_t>(got));
    if (got == 0 || (got < 0 && errno != EINTR)) break;
  }
  const int status = ::pclose(pipe);
  const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  if (code == 124 || code == 128 + SIGKILL) return {};
  return text;
}

std::string file_text(const std::string& path) {
  std::ifstream file(path);
  return {std::istreambuf_iterator<char>(file), {}};
}

/// The word after "Module" of "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun ...",
/// which is "... Open Kernel Module for x86_64  580.65.06 ..." elsewhere: the first with digits and
/// dots alone.
std::string kernel_driver(const std::string& text) {
  std::istringstream words = classic_stream(text.substr(0, text.find('\n')));
  for (std::string word; words >> word;)
    if (word.find('.') != std::string::npos &&
        word.find_first_not_of("0123456789.") == std::string::npos)
      return word;
  return "";
}

/// The daemon's file with its number is there while it runs. From within a container a process of
/// another one cannot be seen.
Surroundings::Daemon mps_in(const std::string& folder) {
  using enum Surroundings::Daemon;
  const std::string text = file_text(folder + "/nvidia-cuda-mps-control.pid");
  const auto pid = parse_number<pid_t>(text.substr(0, text.find_first_not_of("0123456789")));
  if (!pid || *pid <= 0) return absent;
  return ::kill(*pid, 0) == 0 || errno == EPERM ? running : unknown;
}

std::string_view trimmed(std::string_view text) {
  const std::size_t begin = text.find_first_not_of(" \r");
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(" \r") + 1 - begin);
}

}  // namespace

void read_nvidia_smi(const std::string& text, Surroundings& around) {
  std::istringstream lines = classic_stream(text);
  int strictest = -1;
  for (std::string line; std::getline(lines, line);) {
    const std::size_t comma = line.find(',');
    if (comma == std::string::npos) continue;
    const std::string_view persistence = trimmed(std::string_view(line).substr(0, comma));
    const std::string_view mode = trimmed(std::string_view(line).substr(comma + 1));
    if (persistence == "Enabled" || persistence == "Disabled")
      around.persistence = around.persistence.value_or(true) && persistence == "Enabled";
    const int strictness = mode == "Default"               ? 0
                           : mode.starts_with("Exclusive") ? 1
                           : mode == "Prohibited"          ? 2
                                                           : -1;
    if (strictness <= strictest) continue;
    strictest = strictness;
    around.compute_mode = mode;
  }
}

Surroundings look_around(const dist::Getenv& get) {
  const auto variable = [&](const char* name) -> std::optional<std::string> {
    const char* const value = get(name);
    if (!value || !*value) return {};
    return value;
  };
  Surroundings around;
  around.driver = kernel_driver(file_text("/proc/driver/nvidia/version"));
  const auto said = output_of(
      "timeout -k 2 10 nvidia-smi --query-gpu=persistence_mode,compute_mode --format=csv,noheader "
      "2>/dev/null");
  around.silent = !said;
  if (said) read_nvidia_smi(*said, around);
  const auto folder = variable("CUDA_MPS_PIPE_DIRECTORY");
  around.mps_named = folder.has_value();
  around.mps_folder = folder.value_or("/tmp/nvidia-mps");
  around.mps = mps_in(around.mps_folder);
  around.shared_memory = free_bytes("/dev/shm");
  around.visible = variable("CUDA_VISIBLE_DEVICES");
  around.connections = variable("CUDA_DEVICE_MAX_CONNECTIONS");
  around.loading = variable("CUDA_MODULE_LOADING");
  return around;
}

}  // namespace lockstep::doctor
