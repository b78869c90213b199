#include "lockstep/dist/rendezvous/surroundings/nearest.h"

#include <algorithm>
#include <array>
#include <map>
#include <optional>
#include <span>

#include "lockstep/core/error.h"

namespace lockstep::dist {
namespace {

constexpr const char* started_variable = "LOCKSTEP_STARTED";

using NameList = std::span<const char* const>;

/// Of other launchers: when one is started anew, at least one of its variables differs. The first
/// two are there in any case; one of them alone is no launcher (MPI_Init without mpirun sets
/// PMIX_NAMESPACE).
constexpr std::array changed_by_torchrun{"TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
                                         "TORCHELASTIC_MAX_RESTARTS"};
constexpr std::array changed_by_mpirun{"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                       "PMIX_NAMESPACE"};
constexpr std::array changed_by_mvapich{"MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE"};
constexpr std::array changed_by_hydra{"PMI_RANK", "PMI_SIZE"};
constexpr std::array changed_by_srun{"SLURM_STEP_ID", "SLURM_PROCID"};
constexpr std::array<NameList, 5> changed_by{changed_by_torchrun, changed_by_mpirun,
                                             changed_by_mvapich, changed_by_hydra, changed_by_srun};

std::string printable(std::string_view value) {
  std::string text(value);
  std::ranges::replace_if(
      text, [](char c) { return c <= ' ' || c > '~'; }, '_');
  return text;
}

/// What a launcher of ours has noted, beside what is there now.
class Notes {
 public:
  explicit Notes(const Getenv& get) : get_(get) {
    const char* text = get(started_variable);
    for (std::string_view rest = text ? text : ""; !rest.empty();) {
      const std::string_view entry = rest.substr(0, rest.find(' '));
      rest.remove_prefix(std::min(rest.size(), entry.size() + 1));
      const std::size_t equals = std::min(entry.find('='), entry.size());
      noted_.emplace(entry.substr(0, equals), entry.substr(std::min(entry.size(), equals + 1)));
    }
  }

  bool exist() const { return !noted_.empty(); }
  std::optional<std::string> noted(std::string_view name) const {
    const auto found = noted_.find(std::string(name));
    return found == noted_.end() ? std::nullopt : std::optional(found->second);
  }
  std::optional<std::string> now(const char* name) const {
    const char* value = get_(name);
    return value ? std::optional(printable(value)) : std::nullopt;
  }
  bool is_new(NameList names) const {
    return std::ranges::any_of(
        names, [&](const char* name) { return now(name) && now(name) != noted(name); });
  }
  bool another_launcher() const {
    return exist() && std::ranges::any_of(changed_by, [&](NameList names) {
             return get_(names[0]) && get_(names[1]) && is_new(names);
           });
  }
  /// Whether a launcher further out than the nearest has set it.
  bool is_older(const char* name) const {
    if (std::string_view(name) == started_variable) return true;
    for (const NameList names : changed_by)
      if (std::ranges::find(names, std::string_view(name)) != names.end()) return !is_new(names);
    // torchrun has set RANK and the like anew, perhaps to the same values.
    return now(name) == noted(name) &&
           (!is_new(changed_by_torchrun) || std::string_view(name).starts_with("LOCKSTEP_"));
  }

 private:
  Getenv get_;
  std::map<std::string, std::string> noted_;
};

}  // namespace

Getenv nearest_launcher(const Getenv& get) {
  const Notes notes(get);
  if (!notes.another_launcher()) return get;
  return [get, notes](const char* name) { return notes.is_older(name) ? nullptr : get(name); };
}

void check_as_started(const Getenv& get) {
  const Notes notes(get);
  if (!notes.exist() || notes.another_launcher()) return;
  if (!get("RANK") && !get("WORLD_SIZE")) return;
  for (const char* name : {"RANK", "WORLD_SIZE"}) {
    const char* const now = get(name);
    check<UsageError>(
        now && notes.now(name) == notes.noted(name),
        "[environment] {}{}{}, but lockstep-run has started this process with {}={}: if it is no "
        "rank of that job, unset {}",
        name, now ? "=" : " is not set", now ? now : "", name, notes.noted(name).value_or(""),
        started_variable);
  }
}

std::string started_as(std::span<const std::pair<std::string, std::string>> set,
                       const Getenv& get) {
  std::string text;
  const auto add = [&](std::string_view name, std::string_view value) {
    text += fmt::format("{}{}={}", text.empty() ? "" : " ", name, printable(value));
  };
  for (const auto& [name, value] : set) add(name, value);
  for (const NameList names : changed_by)
    for (const char* name : names)
      if (const char* value = get(name)) add(name, value);
  return text;
}

bool belongs_to_launcher(std::string_view name) {
  constexpr std::array<std::string_view, 8> ours{
      "LOCKSTEP_JOB",        "LOCKSTEP_RENDEZVOUS", "LOCKSTEP_TOKEN_FD",    "LOCKSTEP_ERROR_FD",
      "LOCKSTEP_SURVIVE_FD", "LOCKSTEP_RESTART",    "LOCKSTEP_DESCRIPTORS", started_variable};
  return std::ranges::find(ours, name) != ours.end();
}

}  // namespace lockstep::dist
