#include "lockstep/exercises/check/checks.h"

#include LOCKSTEP_ANSWER

using namespace exercise;

int main() {
  return tell("mean", [] { return check_mean(seed, scale); });
}
