#pragma once
/// What the programs share in reading their command lines and writing their summaries.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tools/app.h"
#include "lockstep/tools/device_options.h"
#include "lockstep/tools/precision.h"

namespace lockstep::cli {

/// "64,128,10" as sizes of layers: at least two, each in 1..2^24. Throws UsageError naming the
/// text.
std::vector<std::int64_t> widths(std::string_view option, const std::string& text);

void add_options(App& app, DeviceOptions& options);
void add_options(App& app, Precision& precision);

/// Throws UsageError, in the name of the option, if the file cannot be written here: better before
/// the work than after it. An empty path is none.
void check_writable(std::string_view option, const std::string& path);

/// Numbers are written so that they read back as the same bits. A file is written whole or not at
/// all (core/system/atomic_file.h). /dev/stdout and /dev/stderr are not files of that name: the
/// text goes where stdout and stderr lead, and replaces nothing there.
void write_json(const std::string& path, const nlohmann::ordered_json& json);

}  // namespace lockstep::cli
