#include "lockstep/simt/runtime/runtime.h"

#include <pthread.h>

#include <charconv>
#include <cstdlib>
#include <stdexcept>
#include <string_view>

#include "lockstep/simt/races/races.h"
#include "lockstep/simt/runtime/call.h"
#include "lockstep/simt/runtime/capture.h"

namespace simt {
namespace {

/// `key` in text "key:SEED", and the seed.
bool seeded(std::string_view text, std::string_view key, std::uint64_t& seed) {
  if (!text.starts_with(key)) return false;
  text.remove_prefix(key.size());
  if (text.empty() || text.front() != ':') return false;
  text.remove_prefix(1);
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), seed);
  return error == std::errc{} && end == text.data() + text.size();
}

/// "9.0", as 90.
bool version(std::string_view text, int& value) {
  if (text.size() != 3 || text[1] != '.' || text[0] < '1' || text[0] > '9' || text[2] < '0' ||
      text[2] > '9')
    return false;
  value = (text[0] - '0') * 10 + (text[2] - '0');
  return true;
}

/// Throws if the variable is set and `parse` does not take its value.
template <class Parse>
void read(const char* variable, const char* choices, Parse parse) {
  const char* value = std::getenv(variable);
  if (!value || parse(std::string_view(value))) return;
  throw std::invalid_argument(std::string(variable) + " is '" + value + "': it must be " + choices);
}

template <class T>
bool number(std::string_view text, T& value, T least = 1) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc{} && end == text.data() + text.size() && value >= least;
}

void validate(const Config& config) {
  if (config.devices < 1 || config.devices > 1024)
    throw std::invalid_argument("[simt] " + std::to_string(config.devices) +
                                " devices: at least 1, at most 1024");
  if (config.connections < 1 || config.connections > 32)
    throw std::invalid_argument("[simt] " + std::to_string(config.connections) +
                                " connections: at least 1, at most 32");
}

}  // namespace

Config config_from_environment() {
  Config config;
  read("LOCKSTEP_SIM_ORDER", "ascending, descending or random:SEED", [&](std::string_view text) {
    config.order = text == "descending" ? Order::descending : Order::ascending;
    if (text == "ascending" || text == "descending") return true;
    config.order = Order::random;
    return seeded(text, "random", config.order_seed);
  });
  read("LOCKSTEP_SIM_STREAMS", "eager or late:SEED", [&](std::string_view text) {
    if (text == "eager") return true;
    config.streams = Streams::late;
    return seeded(text, "late", config.stream_seed);
  });
  read("LOCKSTEP_SIM_DEVICES", "a number from 1 to 1024", [&](std::string_view text) {
    return number(text, config.devices) && config.devices <= 1024;
  });
  read("LOCKSTEP_SIM_MEMORY", "a number of bytes",
       [&](std::string_view text) { return number(text, config.device_bytes); });
  read("LOCKSTEP_SIM_PEER_ACCESS", "yes, no or lost", [&](std::string_view text) {
    config.peer_access = text != "no";
    config.peer_access_lost = text == "lost";
    return text == "yes" || text == "no" || text == "lost";
  });
  read("LOCKSTEP_SIM_CAUTIOUS", "yes or no", [&](std::string_view text) {
    config.cautious = text == "yes";
    return text == "yes" || text == "no";
  });
  read("LOCKSTEP_SIM_RACES", "yes, in a build with LOCKSTEP_RACES, or no",
       [&](std::string_view text) {
         config.races = text == "yes";
         return text == "no" || (text == "yes" && detail::races::watched());
       });
  read("LOCKSTEP_SIM_PATIENCE", "a number of milliseconds", [&](std::string_view text) {
    int milliseconds = 0;
    if (!number(text, milliseconds)) return false;
    config.patience = std::chrono::milliseconds(milliseconds);
    return true;
  });
  read("CUDA_DEVICE_MAX_CONNECTIONS", "a number from 1 to 32", [&](std::string_view text) {
    return text.empty() || (number(text, config.connections) && config.connections <= 32);
  });
  read("CUDA_MODULE_LOADING", "DEFAULT, LAZY or EAGER", [&](std::string_view text) {
    config.lazy_loading = text != "EAGER";
    return text.empty() || text == "DEFAULT" || text == "LAZY" || text == "EAGER";
  });
  read("LOCKSTEP_SIM_NCCL_FAIL", "RANK:CALL, as 1:3", [&](std::string_view text) {
    const std::size_t colon = text.find(':');
    return colon != text.npos && number(text.substr(0, colon), config.nccl_fail_rank, 0) &&
           number(text.substr(colon + 1), config.nccl_fail_call);
  });
  read("LOCKSTEP_SIM_CAPABILITY", "a compute capability, as 8.0 or 9.0",
       [&](std::string_view text) { return version(text, config.capability); });
  return config;
}

Config config() {
  detail::Runtime& runtime = detail::Runtime::get();
  const std::lock_guard lock(runtime.mutex);
  return runtime.config;
}

std::map<std::string, std::size_t> living() {
  detail::Runtime& runtime = detail::Runtime::get();
  const std::lock_guard lock(runtime.mutex);
  std::map<std::string, std::size_t> all{
      {"events", runtime.events.size()},
      {"graphs", runtime.graphs.size()},
      {"executable graphs", runtime.graph_execs.size()},
      {"memory of other processes", 0},
  };
  for (const auto& memory : runtime.opened)
    all["memory of other processes"] += static_cast<std::size_t>(memory.times);
  for (const auto& stream : runtime.streams) all["streams"] += stream->destroyed ? 0 : 1;
  for (const auto& [address, memory] : runtime.allocations)
    ++all[memory->kind == detail::Allocation::Kind::device ? "device memory"
                                                           : "memory of the host"];
  for (const auto& count : runtime.count_living) count(all);
  return all;
}

void configure(const Config& wanted) {
  validate(wanted);
  detail::Runtime& runtime = detail::Runtime::get();
  const std::lock_guard lock(runtime.mutex);
  runtime.wait_for_all();
  runtime.apply(wanted);
}

void reset() {
  detail::Runtime& runtime = detail::Runtime::get();
  const std::lock_guard lock(runtime.mutex);
  runtime.drop_queues();
  for (int index = 0; index < runtime.config.devices; ++index) runtime.device(index).fault.clear();
  detail::this_thread.last_error = cudaSuccess;
}

namespace detail {

Runtime& Runtime::get() {
  static auto& one = *new Runtime;  // never destroyed: static objects of users free memory late
  return one;
}

Runtime::Runtime() {
  Config wanted;
  try {
    wanted = config_from_environment();
  } catch (const std::invalid_argument& error) {
    unusable = error.what();
  }
  apply(wanted);
  // A child has the parent's pages and none of its threads and device mappings.
  pthread_atfork(nullptr, nullptr, [] {
    if (get().used && !get().config.allow_fork)
      get().unusable = "this process was forked from one that had used CUDA: it cannot use CUDA";
  });
  std::atexit([] { get().unloading = true; });
}

void Runtime::apply(const Config& wanted) {
  config = wanted;
  races::watch(wanted.races);
  delays_ = Random(wanted.stream_seed);
  while (devices_.size() < static_cast<std::size_t>(wanted.devices)) {
    devices_.push_back(std::make_unique<Device>());
    devices_.back()->null_stream =
        make_stream(static_cast<int>(devices_.size()) - 1, cudaStreamDefault);
  }
  for (const auto& one : devices_) {
    one->launches = 0;
    for (auto& kernel : one->kernels) kernel.second.loaded = false;
  }
  for (const auto& stream : streams) deal_connection(*stream);
}

Device& Runtime::device(int index) {
  require(0 <= index && index < config.devices, cudaErrorInvalidDevice);
  return *devices_[index];
}

void Runtime::break_device(int index, std::string report) {
  reports.push_back(std::move(report));
  device(index).fault = reports.back();
}

int Runtime::current_device() { return this_thread.device; }

void Runtime::unlocked(const std::function<void()>& function) {
  mutex.unlock();
  this_thread.in_host_function = true;
  function();
  this_thread.in_host_function = false;
  mutex.lock();
}

}  // namespace detail
}  // namespace simt
