#include "lockstep/launch/report.h"

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstring>

#include "lockstep/core/error.h"
#include "lockstep/core/system/standard_descriptors.h"
#include "lockstep/dist/rendezvous/events/failure_record.h"

namespace lockstep {
namespace {

// The reason of an earlier failure is not known any more: errno is that of a later call.
void check_stdout() {
  const bool failed_before = std::ferror(stdout) != 0;
  const int reason = std::fflush(stdout) == 0 ? 0 : errno;
  check<Error>(reason == 0, "cannot write to stdout: {}", std::strerror(reason));
  check<Error>(!failed_before, "cannot write to stdout: a part of the output is lost");
}

}  // namespace

int run_main(const std::function<int()>& body) {
  const bool no_stdout = open_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);
  try {
    int code = 0;
    bool reported = false;  // by the program itself; counts only if stdout could be written
    try {
      code = body();
    } catch (const AlreadyReported& failure) {
      code = failure.code;
      reported = true;
    }
    check_stdout();
    check<Error>(!no_stdout || code != 0, "cannot write to stdout: it is closed");
    if (reported) dist::report_failure({});
    return code;
  } catch (...) {
    const dist::Failure failure = dist::current_failure();
    std::fflush(stdout);  // what was printed before the error comes before it
    dist::report_failure(failure.record);
    return failure.exit_code;
  }
}

}  // namespace lockstep
