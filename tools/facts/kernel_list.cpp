#include "lockstep/tools/facts/kernel_list.h"

#include "lockstep/core/error.h"
#include "lockstep/tools/facts/text.h"
#include "lockstep/tools/split.h"

namespace lockstep::facts {

std::vector<ListedKernel> parse_list(std::string_view text) {
  std::vector<ListedKernel> list;
  for (const std::string_view line : lines_of(text)) {
    if (trimmed(line).empty() || line.starts_with('#')) continue;
    std::vector<std::string> fields;
    for (const std::string_view field : cli::split(line, '|')) fields.emplace_back(trimmed(field));
    const bool hopper = fields.size() == 5 && fields[4] == "hopper";
    check<DataError>(fields.size() == 4 || hopper,
                     "[kernel facts] not name | source | test file | test case [| hopper]: {}",
                     line);
    list.push_back({fields[0], fields[1], fields[2], fields[3], hopper});
  }
  return list;
}

std::vector<ListedKernel> read_list(const std::filesystem::path& root) {
  return parse_list(read_file(root / "test/facts/kernels.txt"));
}

}  // namespace lockstep::facts
