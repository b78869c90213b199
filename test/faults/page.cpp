// docs/reliability.md: a row for each fault and moment, under the heading of each start.

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>

#include "faults/cell.h"

namespace lockstep::test {
namespace {

constexpr const char* head =
    R"(<!-- Written by `./lockstep drill reliability --runs 1`: do not edit. -->

# What happens when a rank fails

A fault at every moment of a job, by every rank, under every way to start ranks. The table was
written by the drill that made the faults: `./lockstep drill reliability --runs 1`. It fails if
anything is not as promised. `./lockstep drill faults` runs cells of it that a seed chooses.

Each row sums up six runs of a small training on three ranks: the *victim* V is rank 0, 1 or 2, and
there are two transports (shm and tcp; on two nodes shm+tcp and tcp). The timeout is 2 s
(`JoinOptions::timeout`; it is 60 s by default). A job that failed ended with a code other than 0 in
every run, and one that succeeded with 0. What the columns say:

- **survivors say**: the errors that the other ranks throw, in short. Nothing: a launcher that has
  seen the end of V ended them first, or they had no error.
- **ended**: when all processes had ended. *At once*: before the timeout could matter. *Timeout*:
  within the timeout, a second, and the time that a launcher gives the others (1 s, and `--grace`).
- **named**: how many survivors that threw named V, and nobody else; then how many launchers did.
- **left**: what is left after the end, and other limits. The old or the new checkpoint was there
  and whole after every run. What a killed rank 0 leaves of an unfinished one, the next save
  removes. The socket of a rank 0 that was killed while it listened stays, 0 bytes in a folder of
  the user; our launcher removes it.

Moments: *before joining* is before `World::join`; *joining* is inside of it; *in a collective* is
in backward while a bucket travels; *between steps* is after an optimizer step; *saving* is inside
of `ddp.save_on_rank0`, on rank 0 between the last byte and the new name; *at the end* is after the
World has ended, before the process does.

Known limits:

- A rank that hangs after its World has ended is waited for by its launcher: it may have work to do.
  Before that end, one that nobody waits for is ended once it has looped, or was stopped, for the
  timeout and 2 s after others have ended theirs.
- Where nobody ends ranks (torchrun's agent does, the drill does not), a rank that hangs stays.
- If rank 0 is stopped, or loops, while it saves, the others learn it after the timeout. If it waits
  for something that never comes, they wait for an hour: it may be a slow disk.
- While ranks join, a pause of the whole job counts towards the timeout; later it does not.
- A rank that comes to join after the others have given up does not learn why. It says that rank 0
  is not there.
- `mpirun` names the rank whose end it sees first, and not a rank that hangs or leaves with code 0.
  The lines of the ranks above its own name V.
)";

struct Row {
  int runs = 0, ended = 0, survivors = 0, survivors_right = 0, launchers = 0, launchers_right = 0;
  double slowest = 0;
  std::vector<std::string> say, left;

  void add(const Seen& seen, const Verdict& verdict) {
    ++runs;
    ended += seen.ended;
    survivors += verdict.survivors;
    survivors_right += verdict.survivors_right;
    launchers += verdict.launcher_right.has_value();
    launchers_right += verdict.launcher_right.value_or(false);
    slowest = std::max(slowest, seen.seconds);
    merge(say, verdict.survivors_say);
    merge(left, verdict.limits);
  }
  void add(const Row& other) {
    runs += other.runs;
    ended += other.ended;
    survivors += other.survivors;
    survivors_right += other.survivors_right;
    launchers += other.launchers;
    launchers_right += other.launchers_right;
  }
  static void merge(std::vector<std::string>& all, const std::vector<std::string>& more) {
    for (const std::string& text : more)
      if (std::ranges::count(all, text) == 0) all.push_back(text);
    std::ranges::sort(all);
  }
};

std::string share(int right, int of) { return of == 0 ? "-" : fmt::format("{} of {}", right, of); }

std::string text_of(const Row& row) {
  const std::string when = row.ended < row.runs    ? "it waits"
                           : row.slowest < timeout ? "at once"
                                                   : "timeout";
  const auto list = [](const std::vector<std::string>& words) {
    return words.empty() ? "-" : fmt::to_string(fmt::join(words, "; "));
  };
  return fmt::format(" {} | {} | {}, {} | {} |\n", list(row.say), when,
                     share(row.survivors_right, row.survivors),
                     share(row.launchers_right, row.launchers), list(row.left));
}

}  // namespace

std::string row_head(const Fault& fault, const std::string& moment) {
  return fmt::format("| {} | {} |", fault.text, moment);
}

std::string reliability_page(const std::vector<Seen>& seen, const std::vector<Verdict>& verdicts) {
  const std::vector<Cell> cells = all_cells();
  std::string score =
      "\n## The score\n\n| started by | runs | all ended in time | survivors that named V | "
      "launchers that named V |\n|---|---|---|---|---|\n";
  std::string tables;
  const std::size_t per_row = starts[0].transports.size() * static_cast<std::size_t>(ranks);
  std::size_t next = 0;
  for (const Start& start : starts) {
    tables += fmt::format(
        "\n## {}\n\n| fault | moment | survivors say | ended | named | left |\n"
        "|---|---|---|---|---|---|\n",
        start.text);
    Row sum;
    for (const Fault& fault : faults)
      for (const std::string& moment : moments) {
        Row row;
        for (std::size_t k = 0; k < per_row; ++k, ++next) row.add(seen[next], verdicts[next]);
        tables += row_head(fault, moment) + text_of(row);
        sum.add(row);
      }
    score += fmt::format("| {} | {} | {} | {} | {} |\n", start.text, sum.runs, sum.ended,
                         share(sum.survivors_right, sum.survivors),
                         share(sum.launchers_right, sum.launchers));
  }
  return head + score + tables;
}

}  // namespace lockstep::test
