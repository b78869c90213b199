#include "lockstep/simt/watch/source_line.h"

#include <link.h>
#include <unistd.h>

#include <array>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string_view>
#include <system_error>
#include <vector>

namespace simt::detail::watch {
namespace {

/// The lines that a command prints.
std::string output_of(const std::string& command) {
  std::FILE* const pipe = popen(command.c_str(), "r");
  if (!pipe) return {};
  std::string output;
  std::array<char, 512> buffer;
  while (std::fgets(buffer.data(), buffer.size(), pipe)) output += buffer.data();
  pclose(pipe);
  return output;
}

std::uintptr_t load_address() {
  std::uintptr_t address = 0;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        *static_cast<std::uintptr_t*>(found) = info->dlpi_addr;
        return 1;  // the first is the program
      },
      &address);
  return address;
}

/// Of the call that returns to `address`, from where the program is loaded.
std::string offset_of(const void* address) {
  std::array<char, 32> offset;
  const std::uintptr_t call = reinterpret_cast<std::uintptr_t>(address) - load_address() - 1;
  std::snprintf(offset.data(), offset.size(), "0x%zx", static_cast<std::size_t>(call));
  return offset.data();
}

/// "FILE:LINE" without symbolic links in FILE.
std::string resolved(std::string_view line) {
  const std::size_t colon = line.rfind(':');
  std::error_code ignored;
  return std::filesystem::weakly_canonical(line.substr(0, colon), ignored).string() +
         std::string(line.substr(colon));
}

}  // namespace

namespace {

/// Of each call its line, and the lines into which its function was inlined, the innermost first.
/// Those of the simulator's headers are left out, unless there are no others.
std::vector<std::vector<std::string>> lines_of(const std::vector<const void*>& addresses) {
  if (addresses.empty()) return {};  // addr2line would read them from the terminal
  std::array<char, 4096> program{};
  const bool known = readlink("/proc/self/exe", program.data(), program.size() - 1) > 0;
  std::string offsets;
  for (const void* address : addresses) offsets += " " + offset_of(address);
  // With -a, each begins with a line of its own: its address.
  const std::string command =
      std::string("addr2line -a -i -e '") + program.data() + "'" + offsets + " 2>/dev/null";
  const std::string output = known ? output_of(command) : std::string();
  std::vector<std::vector<std::string>> all;
  std::vector<std::string> innermost;
  for (std::string_view left = output; !left.empty();) {
    const std::size_t end = left.find('\n');
    const std::string_view whole = left.substr(0, end);
    const std::string_view line = whole.substr(0, whole.find(" ("));  // " (discriminator 2)"
    left.remove_prefix(end == left.npos ? left.size() : end + 1);
    if (line.starts_with("0x")) {
      all.emplace_back();
      innermost.emplace_back();
    } else if (!all.empty() && !line.starts_with("??")) {
      if (innermost.back().empty()) innermost.back() = line;
      if (line.find("/simt/include/") == line.npos && line.find("/include/c++/") == line.npos)
        all.back().push_back(resolved(line));
    }
  }
  all.resize(addresses.size());
  innermost.resize(addresses.size());
  for (std::size_t i = 0; i < all.size(); ++i)
    if (all[i].empty())
      all[i].push_back(innermost[i].empty() ? "the instruction at " + offset_of(addresses[i])
                                            : resolved(innermost[i]));
  return all;
}

}  // namespace

std::vector<std::string> source_lines(const std::vector<const void*>& addresses) {
  std::vector<std::string> result;
  for (const auto& lines : lines_of(addresses)) result.push_back(lines.front());
  return result;
}

std::string source_line(const void* address) { return source_lines({address}).front(); }

std::string kernel_line(const void* address) {
  const std::vector<std::string> lines = lines_of({address}).front();
  for (const std::string& line : lines)
    if (line.find(".cu:") != line.npos)
      return &line == &lines.front() ? line : lines.front() + ", for " + line;
  return lines.front();
}

}  // namespace simt::detail::watch
