#include "lockstep/tools/facts/build.h"

#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <regex>
#include <set>
#include <tuple>

#include "lockstep/core/error.h"
#include "lockstep/dist/rendezvous/ranks.h"
#include "lockstep/tools/facts/text.h"

namespace lockstep::facts {
namespace {

/// The number that ends just before `unit` in the line; 0 if the line does not have that unit.
int number_before(std::string_view line, std::string_view unit) {
  const auto end = line.find(unit);
  if (end == std::string_view::npos) return 0;
  const std::string_view before = line.substr(0, end);
  const auto value =
      dist::parse_number<int>(before.substr(before.find_last_not_of("0123456789") + 1));
  check<DataError>(value.has_value(), "[kernel facts] no number before '{}' in '{}'", unit, line);
  return *value;
}

/// Whether the instruction loads 16 bytes of global memory: "ld.global.nc.v4.f32 {...". PTX says
/// nothing of the kind of memory where the compiler does not know it.
bool is_load_16(std::string_view line) {
  if (line.starts_with("cp.async.c")) return line.find("], 16") != std::string_view::npos;
  if (!line.starts_with("ld.")) return false;
  const std::string opcode(line.substr(0, line.find_first_of(" \t")));
  static const std::regex elsewhere("\\.(shared|local|param|const)");
  static const std::regex of_16_bytes("\\.(v2\\.[a-z]+64|v4\\.[a-z]+32)$");
  return !std::regex_search(opcode, elsewhere) && std::regex_search(opcode, of_16_bytes);
}

void look_at(std::string_view line, Instructions& found) {
  const auto has = [&](std::string_view text) { return line.find(text) != std::string_view::npos; };
  found.loads_16 |= is_load_16(line);
  found.mma |= has("mma.sync.");
  found.wgmma |= has("wgmma.mma_async.");
  found.tma |= has("cp.async.bulk.tensor.");
}

}  // namespace

std::vector<Resources> parse_report(std::string_view text) {
  std::vector<Resources> result;
  for (const std::string_view line : lines_of(text)) {
    if (const auto found = between(line, "Compiling entry function '", "' for '")) {
      Resources& kernel = result.emplace_back();
      kernel.symbol = *found;
      kernel.architecture = between(line, "' for '", "'").value_or("");
    } else if (!result.empty()) {
      // The report of a function that could not be inlined follows that of the kernel.
      Resources& kernel = result.back();
      kernel.spills += number_before(line, " bytes spill stores");
      kernel.spills += number_before(line, " bytes spill loads");
      kernel.stack = std::max(kernel.stack, number_before(line, " bytes stack frame"));
      kernel.registers = std::max(kernel.registers, number_before(line, " registers"));
      kernel.shared = std::max(kernel.shared, number_before(line, " bytes smem"));
    }
  }
  return result;
}

Ptx parse_ptx(std::string_view text) {
  Ptx result;
  Instructions* entry = nullptr;
  std::ptrdiff_t depth = 0;  // of braces: assembly in the sources has blocks of its own
  for (std::string_view line : lines_of(text)) {
    if (const auto release = between(line, "// Cuda compilation tools, release ", ", V")) {
      result.compiler = line.substr(line.find(", V") + 3);
    } else if (line.starts_with(".target ")) {
      result.architecture = line.substr(8, line.find(',') - 8);
    } else if (const auto name = between(line, ".entry ", "(")) {
      entry = &result.entries[std::string(*name)];
      depth = 0;
    } else if (entry) {
      depth += std::ranges::count(line, '{') - std::ranges::count(line, '}');
      if (depth == 0 && line == "}") entry = nullptr;
      if (!entry) continue;
      line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
      if (line.starts_with('@')) {  // if this register is true: instruction
        line.remove_prefix(std::min(line.find_first_of(" \t"), line.size()));
        line.remove_prefix(std::min(line.find_first_not_of(" \t"), line.size()));
      }
      look_at(line, *entry);
    }
  }
  return result;
}

std::string short_name(const std::string& symbol) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> demangled(
      abi::__cxa_demangle(symbol.c_str(), nullptr, nullptr, &status), std::free);
  if (status != 0) return symbol;
  static const std::regex left_out(
      "^void |\\(anonymous namespace\\)::|lockstep::(kernels::(cuda::)?|gpu::)?| (?=>)");
  const std::string name = std::regex_replace(demangled.get(), left_out, "");
  int depth = 0;
  for (std::size_t i = 0; i < name.size(); ++i) {
    if (name[i] == '(' && depth == 0) return name.substr(0, i);
    depth += (name[i] == '<') - (name[i] == '>');
  }
  return name;
}

Build read_build(const std::filesystem::path& folder, const std::filesystem::path& root) {
  Build build;
  std::set<std::string> compilers, architectures;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_directory() || entry.path().extension() != ".facts") continue;
    const std::string first_line = read_file(entry.path() / "source.txt");
    const std::filesystem::path source = first_line.substr(0, first_line.find('\n'));
    const std::string relative = source.lexically_relative(root).string();
    const bool of_library = std::ranges::any_of(
        kernel_folders, [&](std::string_view name) { return relative.starts_with(name); });
    if (!of_library || !std::filesystem::exists(source)) continue;

    std::map<std::string, Ptx> by_architecture;
    for (const auto& file : std::filesystem::directory_iterator(entry.path())) {
      if (file.path().extension() != ".ptx") continue;
      Ptx ptx = parse_ptx(read_file(file.path()));
      compilers.insert(ptx.compiler);
      architectures.insert(ptx.architecture);
      by_architecture[ptx.architecture] = std::move(ptx);
    }
    for (Resources& resources : parse_report(read_file(entry.path() / "ptxas.txt"))) {
      const auto& entries = by_architecture[resources.architecture].entries;
      const auto found = entries.find(resources.symbol);
      check<DataError>(found != entries.end() && resources.registers > 0,
                       "[kernel facts] {}: PTX or registers of {} for {} are missing", relative,
                       resources.symbol, resources.architecture);
      Kernel kernel{std::move(resources), relative, {}, found->second};
      kernel.name = short_name(kernel.symbol);
      build.kernels.push_back(std::move(kernel));
    }
  }
  check<DataError>(compilers.size() == 1, "[kernel facts] {} holds the facts of {} compilers: {}",
                   folder.string(), compilers.size(),
                   compilers.empty() ? "build the library first" : "build it anew");
  build.compiler = *compilers.begin();
  build.architectures.assign(architectures.begin(), architectures.end());
  std::ranges::sort(build.kernels, {},
                    [](const Kernel& k) { return std::tie(k.source, k.name, k.architecture); });
  return build;
}

}  // namespace lockstep::facts
