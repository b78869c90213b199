#include "lockstep/exercises/check/checks.h"

#include LOCKSTEP_ANSWER

using namespace exercise;

int main() {
  return tell("buckets", [] { return check_buckets(buckets); });
}
