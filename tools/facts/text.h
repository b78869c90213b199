#pragma once
/// Reading and cutting text, as the facts about kernels are found.

#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace lockstep::facts {

/// Throws DataError if it cannot be read.
std::string read_file(const std::filesystem::path& path);

/// Without their line ends. They point into `text`.
std::vector<std::string_view> lines_of(std::string_view text);
std::vector<std::string_view> lines_of(std::string&& text) = delete;

/// What is between the first `begin` and the first `end` after it, if both are there.
std::optional<std::string_view> between(std::string_view text, std::string_view begin,
                                        std::string_view end);

/// Without spaces and tabs at either end.
std::string_view trimmed(std::string_view text);

}  // namespace lockstep::facts
