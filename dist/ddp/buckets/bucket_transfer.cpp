#include "lockstep/dist/ddp/buckets/bucket_transfer.h"

namespace lockstep::dist {
namespace {

using Bucket = GradientBuckets::Bucket;

class AllReduce final : public BucketTransfer {
 public:
  explicit AllReduce(Communicator& communicator) : communicator_(communicator) {}
  Work send(const Bucket& bucket, bool) override {
    copy_to_host(bucket);
    return communicator_.all_reduce(bucket.wire, bucket.name);
  }
  void receive(Bucket& bucket) override {
    bucket.work.wait();
    copy_from_host(bucket);
  }

 private:
  Communicator& communicator_;
};

class Hooked final : public BucketTransfer {
 public:
  Hooked(Communicator& communicator, std::shared_ptr<CommunicationHook> hook)
      : communicator_(communicator), hook_(std::move(hook)) {}
  void prepare(const GradientBuckets& buckets) override {
    std::vector<BucketView> views;
    for (const Bucket& bucket : buckets.all()) views.push_back(bucket.view());
    hook_->prepare(views, communicator_);
  }
  Work send(const Bucket& bucket, bool last) override {
    Work work = hook_->reduce(bucket.view(), communicator_);
    if (!last) return work;
    const Tensor trailer = bucket.wire.slice(bucket.memory.numel(), bucket.wire.numel());
    return communicator_.all_reduce(trailer, "metadata of " + bucket.name);
  }
  void receive(Bucket& bucket) override {
    bucket.work.finish();  // the hook may read on the host
    hook_->complete(bucket.view(), communicator_);
  }

 private:
  Communicator& communicator_;
  std::shared_ptr<CommunicationHook> hook_;
};

}  // namespace

std::unique_ptr<BucketTransfer> all_reduce_transfer(Communicator& communicator) {
  return std::make_unique<AllReduce>(communicator);
}
std::unique_ptr<BucketTransfer> hook_transfer(Communicator& communicator,
                                              std::shared_ptr<CommunicationHook> hook) {
  return std::make_unique<Hooked>(communicator, std::move(hook));
}

}  // namespace lockstep::dist
