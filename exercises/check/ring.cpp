#include "lockstep/exercises/check/checks.h"

#include LOCKSTEP_ANSWER

using namespace exercise;

int main() {
  return tell("ring", [] { return check_ring(ring); });
}
