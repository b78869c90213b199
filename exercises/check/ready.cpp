#include "lockstep/exercises/check/checks.h"

#include LOCKSTEP_ANSWER

using namespace exercise;

int main() {
  return tell("ready", [] { return check_ready(launched_after); });
}
