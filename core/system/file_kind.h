#pragma once
/// What lies at a path, for code that opens it: opening a pipe waits for its other end, perhaps for
/// ever, and a device may take anything.
///
/// Nothing here throws. Thread-safety: any thread may call any of these; what lies there may change
/// meanwhile.

#include <optional>
#include <string>
#include <string_view>

namespace lockstep {

/// `none`: nothing, or what cannot be looked at. `device`: of characters (a terminal, /dev/null).
/// `disk`: a block device.
enum class FileKind { none, file, folder, pipe, socket, device, disk };

/// Links are followed.
FileKind kind_of_file(const std::string& path);
/// "a folder", "a pipe", ...
std::string_view name_of(FileKind kind);

/// Why `path` cannot be opened and read as a regular file: "No such file or directory", "it is a
/// pipe, not a regular file". Empty if it can. Does not block.
std::string why_unreadable(const std::string& path);

/// Where the link `path` leads, also if nothing is there yet; `path` itself if it is no link.
/// Nothing for a link that leads back to itself.
std::optional<std::string> follow_links(const std::string& path);

}  // namespace lockstep
