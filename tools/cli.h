#pragma once
/// What the programs share in reading their command lines and writing their summaries.

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/gpu.h"
#include "lockstep/kernels/matmul.h"

namespace lockstep::cli {

/// Accepts what is a number of type T to the last character. (CLI11 takes -1 for an unsigned number
/// and cuts off what is too large.)
template <class T = std::int64_t>
CLI::Validator whole_number() {
  return CLI::Validator(
      [](const std::string& text) {
        T value{};
        const char* end = text.data() + text.size();
        const auto result = std::from_chars(text.data(), end, value);
        return result.ec == std::errc() && result.ptr == end
                   ? std::string()
                   : fmt::format("'{}' is not a whole number{} in its range", text,
                                 std::is_unsigned_v<T> ? " of 0 or more" : "");
      },
      "");
}

/// "64,128,10" as sizes of layers: at least two, each in 1..2^24. Throws UsageError naming the
/// text.
inline std::vector<std::int64_t> widths(std::string_view option, const std::string& text) {
  constexpr std::int64_t largest = 1 << 24;
  std::vector<std::int64_t> result;
  for (std::size_t begin = 0; begin <= text.size();) {
    const std::size_t end = std::min(text.find(',', begin), text.size());
    std::int64_t width = 0;
    const auto [stop, error] = std::from_chars(text.data() + begin, text.data() + end, width);
    check<UsageError>(
        error == std::errc() && stop == text.data() + end && width > 0 && width <= largest,
        "{} {}: '{}' is not a size in 1..{}", option, text, text.substr(begin, end - begin),
        largest);
    result.push_back(width);
    begin = end + 1;
  }
  check<UsageError>(result.size() >= 2, "{} {}: at least two sizes are needed", option, text);
  return result;
}

/// False after --help, which it has printed. Throws UsageError, one line, for a command line that
/// the app does not take.
inline bool parse(CLI::App& app, int argc, const char* const* argv) {
  try {
    app.parse(argc, argv);
    return true;
  } catch (const CLI::Success& help) {
    app.exit(help);
    return false;
  } catch (const CLI::ParseError& error) {
    throw UsageError(error.what());
  }
}

/// --device and, for GPUs, who multiplies matrices.
struct DeviceOptions {
  std::string device, gemm = "auto";

  void add_to(CLI::App& app) {
    app.add_option("--device", device, "cpu, sim or cuda (cuda where a GPU is found, else cpu)")
        ->check(CLI::IsMember({"cpu", "sim", "cuda"}));
    app.add_option("--gemm", gemm, "Products on a GPU: handwritten, cublas or auto (auto)")
        ->check(CLI::IsMember({"handwritten", "cublas", "auto"}));
  }

  /// The device of the rank that is the `local_rank`-th of its machine; ranks beyond the number of
  /// GPUs share them. Throws UsageError for a device that this build or this machine does not have.
  Device choose(int local_rank) const {
    using kernels::GemmLibrary;
    if (gemm != "auto")
      kernels::set_gemm_library(gemm == "cublas" ? GemmLibrary::cublas : GemmLibrary::handwritten);
    const int count = gpu::count();
    if (device == "cpu" || (device.empty() && count == 0)) return {};
    const Device::Kind kind = gpu::kind().value_or(Device::Kind::cpu);
    check<UsageError>(device.empty() || device == Device::name_of(kind),
                      "--device {}: this build drives {}", device,
                      kind == Device::Kind::cpu ? "the cpu alone" : Device::name_of(kind));
    check<UsageError>(count > 0, "--device {}: no such device is found on this machine", device);
    return {kind, local_rank % count};
  }
};

/// Numbers are written so that they read back as the same bits.
inline void write_json(const std::string& path, const nlohmann::ordered_json& json) {
  std::ofstream file(path);
  file << json.dump(1) << '\n';
  file.close();
  check<DataError>(file.good(), "--json '{}': cannot be written", path);
}

}  // namespace lockstep::cli
