#include "lockstep/dist/rendezvous/events/left_replicas.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "lockstep/dist/rendezvous/events/launcher_pipe.h"
#include "lockstep/dist/rendezvous/ranks.h"

namespace lockstep::dist {

void LeftReplicas::add(std::uint64_t model, int rank, std::uint64_t fingerprint, int replicas) {
  const std::lock_guard lock(mutex_);
  auto& fingerprints = models_[model];
  fingerprints[rank] = fingerprint;
  const auto alike = [&](const auto& other) { return other.second == fingerprint; };
  if (fingerprint > not_compared && fingerprints.size() == index(replicas) &&
      std::ranges::all_of(fingerprints, alike))
    models_.erase(model);
}

void LeftReplicas::add_error(std::exception_ptr error) {
  const std::lock_guard lock(mutex_);
  if (!error_) error_ = std::move(error);
}

std::exception_ptr LeftReplicas::error() const {
  const std::lock_guard lock(mutex_);
  return error_;
}

std::size_t LeftReplicas::models() const {
  const std::lock_guard lock(mutex_);
  return models_.size();
}

std::string LeftReplicas::difference() const {
  const std::lock_guard lock(mutex_);
  for (const auto& [model, fingerprints] : models_) {
    std::map<std::uint64_t, std::vector<int>> groups;
    for (const auto& [rank, fingerprint] : fingerprints)
      if (fingerprint != not_compared) groups[fingerprint].push_back(rank);
    if (groups.size() == 1 && groups.contains(not_ended) && groups.at(not_ended).size() > 1)
      return fmt::format(
          "{} did not end their DistributedDataParallel: nobody knows whether the replicas are "
          "equal (did they call std::exit, or never delete it?)",
          name_ranks(groups.at(not_ended)));
    if (groups.size() < 2) continue;
    if (const auto silent = groups.find(not_ended); silent != groups.end())
      return fmt::format(
          "{} did not end the DistributedDataParallel that other ranks have ended: nobody knows "
          "whether the replicas are equal (did it call std::exit, or never delete it?)",
          name_ranks(silent->second));
    const auto most =
        std::ranges::max_element(groups, {}, [](const auto& group) { return group.second.size(); });
    constexpr std::string_view rest =
        "parameters, or what optimizers keep, differ (DistributedDataParallel::check_replicas() "
        "says which; if they are meant to, end it before)";
    std::vector<int> others;
    for (const auto& [fingerprint, ranks] : groups)
      if (fingerprint != most->first) others.insert(others.end(), ranks.begin(), ranks.end());
    std::ranges::sort(others);
    if (most->second.size() > others.size())
      return fmt::format("{} ended with another replica than {}: {}", name_ranks(others),
                         name_ranks(most->second), rest);
    std::vector<std::string> all;  // no replica has most ranks on its side
    for (const auto& [rank, fingerprint] : fingerprints)
      if (fingerprint != not_compared && groups.at(fingerprint).front() == rank)
        all.push_back(name_ranks(groups.at(fingerprint)));
    return fmt::format("{} ended with different replicas: {}", fmt::join(all, " and "), rest);
  }
  return "";
}

void leave_replica(const ThreadRank& thread, std::uint64_t model, std::uint64_t fingerprint,
                   int replicas) noexcept {
  try {
    if (thread.left) return thread.left->add(model, thread.rank, fingerprint, replicas);
  } catch (...) {  // out of memory: the comparison is one rank short
    return;
  }
  tell_launcher({.kind = RankEvent::Kind::replica, .replica = {model, fingerprint}});
}

void leave_error(const ThreadRank& thread) noexcept {
  if (!thread.left) std::terminate();
  thread.left->add_error(std::current_exception());
}

}  // namespace lockstep::dist
