#include "lockstep/tools/facts/document.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <set>

namespace lockstep::facts {
namespace {

constexpr const char* introduction = R"(# Kernels

What the compiler made of every kernel, and which test runs it. `./lockstep facts` writes this file
from a build for GPUs, which needs nvcc but no GPU. The test `facts_build` compares the file with
the build. It also fails if a kernel spills registers, or lacks the instructions that its comments
claim.

{}

- **Registers** are per thread. A multiprocessor has 65,536: 64 per thread leave room for 1024
  threads, 128 for 512.
- **Spills** are bytes of registers that did not fit. They are stored to local memory and loaded
  again. **Stack** is all local memory of a thread.
- **Shared** is the static shared memory of a block. Launches ask for dynamic shared memory.
- `a / b` are the numbers of the architectures in the order above; `-` means that the kernel is not
  made for one.
- A row is an instantiation of a template. A template with more than {} of them has one row, with
  their number and the smallest and largest of each value.
- **Instructions** are those of the PTX: `16 B` is loads of 16 bytes, `mma` and `wgmma` are tensor
  cores, `TMA` is the copy engine. `3 of 4` means that 3 of 4 instantiations have them.
)";

using Group = std::vector<const Kernel*>;

/// "32", or "22-56".
std::string range(const Group& group, int Kernel::*member) {
  const auto [least, most] =
      std::ranges::minmax(group, {}, [&](const Kernel* kernel) { return kernel->*member; });
  return least->*member == most->*member ? fmt::to_string(least->*member)
                                         : fmt::format("{}-{}", least->*member, most->*member);
}

/// The range of each architecture: "22-56 / 24-58"; once if all are the same.
std::string per_architecture(const std::vector<std::string>& architectures, const Group& group,
                             int Kernel::*member) {
  std::vector<std::string> parts;
  for (const std::string& architecture : architectures) {
    Group own;
    for (const Kernel* kernel : group)
      if (kernel->architecture == architecture) own.push_back(kernel);
    parts.push_back(own.empty() ? "-" : range(own, member));
  }
  const bool all_same = std::ranges::all_of(parts, [&](const auto& p) { return p == parts[0]; });
  return all_same ? parts[0] : fmt::format("{}", fmt::join(parts, " / "));
}

std::string instructions(const Group& group) {
  std::vector<std::string> parts;
  const auto add = [&](const char* label, bool Instructions::*member) {
    std::set<std::string> with, all;
    for (const Kernel* kernel : group) {
      all.insert(kernel->name);
      if (kernel->instructions.*member) with.insert(kernel->name);
    }
    if (with.empty()) return;
    parts.push_back(with == all ? label
                                : fmt::format("{} ({} of {})", label, with.size(), all.size()));
  };
  add("16 B", &Instructions::loads_16);
  add("mma", &Instructions::mma);
  add("wgmma", &Instructions::wgmma);
  add("TMA", &Instructions::tma);
  return fmt::format("{}", fmt::join(parts, ", "));
}

std::string row(const std::vector<std::string>& architectures, const std::string& name,
                const Group& group) {
  const auto numbers = [&](int Kernel::*member) {
    return per_architecture(architectures, group, member);
  };
  return fmt::format("| {} | {} | {} | {} | {} | {} |\n", name, numbers(&Kernel::registers),
                     numbers(&Kernel::spills), numbers(&Kernel::stack), numbers(&Kernel::shared),
                     instructions(group));
}

std::string table(const Build& build, const std::string& source) {
  std::map<std::string, std::map<std::string, Group>> kernels;  // by base, by name
  for (const Kernel& kernel : build.kernels)
    if (kernel.source == source) kernels[kernel.base()][kernel.name].push_back(&kernel);

  std::string text = fmt::format(
      "\n## {}\n\n| kernel | registers | spills | stack | shared | instructions |\n"
      "|---|---|---|---|---|---|\n",
      source);
  for (const auto& [base, instantiations] : kernels) {
    if (instantiations.size() > few_instantiations) {
      Group all;
      for (const auto& [name, group] : instantiations)
        all.insert(all.end(), group.begin(), group.end());
      text +=
          row(build.architectures, fmt::format("`{}`, {} times", base, instantiations.size()), all);
    } else {
      for (const auto& [name, group] : instantiations)
        text += row(build.architectures, fmt::format("`{}`", name), group);
    }
  }
  return text;
}

}  // namespace

std::string made_by(const Build& build) {
  return fmt::format("nvcc {}, for {}.", build.compiler, fmt::join(build.architectures, " / "));
}

std::string document(const Build& build, const std::vector<ListedKernel>& list) {
  std::string text = fmt::format(introduction, made_by(build), few_instantiations);
  std::set<std::string> sources;
  for (const Kernel& kernel : build.kernels) sources.insert(kernel.source);
  for (const std::string& source : sources) text += table(build, source);

  text += "\n## Tests\n\n| kernel | defined in | tested by |\n|---|---|---|\n";
  for (const ListedKernel& kernel : list)
    text += fmt::format("| `{}` | {} | {}: {} |\n", kernel.name, kernel.source, kernel.test_file,
                        kernel.test_case);
  return text;
}

}  // namespace lockstep::facts
