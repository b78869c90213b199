// Where output goes that cannot be written, and what the limits of a shell (ulimit) do: one line
// and an exit code that is not 0, no hang, nothing half-written.

#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "cli/sample.h"
#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep::test;

namespace {

const std::string launcher = LOCKSTEP_BIN_DIR "/lockstep-run";

Ended in_bash(const std::string& command) { return run({"bash", "-c", command}); }

std::string command_text(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += "'" + word + "' ";
  return text;
}

}  // namespace

TEST_CASE("output: what --prefix cannot write ends the job with code 1 and one line") {
  for (const char* script : {"echo hi", "seq 100000", "yes", "echo hi; exec sleep 1000"}) {
    CAPTURE(script);
    const Ended full =
        in_bash(launcher + " -n 2 --grace 0 --prefix sh -c '" + script + "' > /dev/full");
    CHECK(full.code == 1);
    CHECK(full.err == "error: cannot write to stdout: No space left on device\n");
  }
  const Ended gone =
      in_bash(launcher + " -n 2 --grace 0 --prefix yes | head -1; exit ${PIPESTATUS[0]}");
  CHECK(gone.code == 1);
  CHECK(lines_of(gone.out).size() == 1);
  CHECK(gone.err == "error: cannot write to stdout: Broken pipe\n");
}

TEST_CASE("output: a rank's failure counts more than lost output; lost messages change no code") {
  const std::string prefixed = launcher + " -n 2 --prefix sh -c 'echo hi; echo hi >&2; exit 5'";
  const Ended failed = in_bash(prefixed + " > /dev/full");
  CHECK(failed.code == 5);
  CHECK(contains(failed.err, "failed with exit code 5"));
  CHECK(in_bash(prefixed + " 2> /dev/full").code == 5);
  CHECK(in_bash(prefixed + " 2>&-").code == 5);
  const std::string good = launcher + " -n 2 --prefix sh -c 'echo hi >&2'";
  CHECK(in_bash(good + " 2> /dev/full").code == 0);
  CHECK(in_bash(good + " 2>&-").code == 0);
}

TEST_CASE("limits: of descriptors and of the size of files end a launcher with one line") {
  for (const std::string limit : {"-n 6", "-n 8", "-n 12", "-f 0"}) {
    CAPTURE(limit);
    // A pipe for stderr: what the test reads is a file itself.
    const Ended ended = in_bash("(ulimit " + limit + "; exec " + launcher +
                                " -n 2 true) 2>&1 | cat; exit ${PIPESTATUS[0]}");
    CAPTURE(ended.out);
    CHECK(ended.code == 1);
    CHECK(lines_of(ended.out).size() == 1);
    CHECK(ended.out.starts_with("error: "));
  }
}

TEST_CASE("limits: a checkpoint that is too large is named, and nothing of it is left") {
  if (!test::on_cpu()) return;  // simulated GPUs of processes share files, too
  const TemporaryFolder folder;
  const std::string path = folder / "model";
  // Threads: shared memory is a file, too, and larger.
  const Ended ended =
      in_bash("ulimit -f 20; " +
              command_text(sample_command(
                  "train_mlp", {"--epochs", "1", "--transport", "threads", "--checkpoint", path})));
  CAPTURE(ended.err);
  CHECK(ended.code == 1);
  CHECK(contains(ended.err, "error: [save] cannot write '" + path + "': File too large"));
  CHECK(folder.empty());
  const Ended shared =
      in_bash("ulimit -f 1; " + command_text(sample_command("train_mlp", {"--epochs", "1"})));
  CAPTURE(shared.err);
  CHECK(shared.code == 1);
  CHECK(contains(shared.err, "of shared memory: File too large"));
}
