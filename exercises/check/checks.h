#pragma once
/// The checks of the exercises. Each draws cases, asks the answer, and returns what is wrong with
/// the first wrong answer, in one sentence: an empty one if all are right. Answers come as
/// functions, so that tests can give wrong ones.

#include <functional>
#include <string>

#include "lockstep/exercises/types.h"

namespace exercise {

/// What a check says of a hole that is not filled yet.
inline const std::string not_written = "not written yet";

std::string check_ring(const std::function<std::vector<RingStep>(int, int)>& ring);
std::string check_buckets(
    const std::function<std::vector<std::vector<int>>(const std::vector<long>&, long)>& buckets);
std::string check_ready(
    const std::function<std::vector<int>(const std::vector<std::vector<int>>&,
                                         const std::vector<int>&)>& launched_after);
std::string check_mean(const std::function<double(double, std::optional<double>)>& seed,
                       const std::function<double(const std::vector<double>&, bool)>& scale);
std::string check_batch_norm(
    const std::function<Statistics(const std::vector<Statistics>&)>& merge);
std::string check_tape(
    const std::function<std::vector<double>(const std::vector<Node>&)>& backward);

/// Says which case a check asks for next: for an answer that throws or does not end.
void ask(const std::string& about);

/// Prints what the check of the exercise `name` says, in a line, and returns the exit code: 0 if
/// the answer is right. An answer that throws is wrong; an answer that has not ended after 10 s
/// ends the process with 1. Either line names the case.
int tell(const char* name, const std::function<std::string()>& check);

}  // namespace exercise
