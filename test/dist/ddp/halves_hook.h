#pragma once

#include <string>

#include "lockstep/dist/ddp/hooks/communication_hook.h"

namespace lockstep::test {

/// Sums as without a hook, but the second half of a bucket only after backward, by a collective
/// that waits.
struct HalvesHook final : dist::CommunicationHook {
  std::string name() const override { return "halves"; }
  dist::Work reduce(const dist::BucketView& bucket, dist::Communicator& world) override {
    return world.all_reduce(bucket.memory.slice(0, middle(bucket)), bucket.name);
  }
  void complete(const dist::BucketView& bucket, dist::Communicator& world) override {
    const Tensor rest = bucket.memory.slice(middle(bucket), bucket.memory.numel());
    world.all_reduce(rest, std::string(bucket.name) + ", second half").wait();
  }

 private:
  static std::int64_t middle(const dist::BucketView& bucket) { return bucket.memory.numel() / 2; }
};

}  // namespace lockstep::test
