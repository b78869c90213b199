#pragma once
/// The memory of the gradients, in buckets. There is one copy: backward kernels write straight into
/// it, collectives reduce it in place, optimizers read it.
///
/// All buckets of a dtype and device are cut from one piece of memory, an *arena*. It comes from
/// the communicator, so that the transport reaches it. Behind the last bucket lies the *trailer*: a
/// count per parameter of how many ranks used it, and every rank's metadata (step_metadata.h). It
/// travels with the last bucket (with a communication hook, in a separate collective).
///
///     arena of f32   | bucket 0: 2.w 2.b 4.w 4.b | bucket 1: 0.w 0.b | used | metadata |
///
/// A GPU parameter's gradient lies on its GPU. If the communicator only reaches host memory, a
/// bucket that is ready is copied to the host, and back when it has arrived.
///
/// Ownership: the buckets own the gradients' memory from construction to destruction.
/// Thread-safety: as Parameter.

#include <string>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/dist/collectives/communicator.h"
#include "lockstep/dist/ddp/buckets/bucket_layout.h"
#include "lockstep/dist/ddp/hooks/communication_hook.h"

namespace lockstep::dist {

class GradientBuckets {
 public:
  struct Bucket {
    int index = 0;
    std::string name;          ///< "bucket 0"
    Tensor memory;             ///< (numel,): the gradients
    Tensor wire;               ///< what the communicator sums: `memory` or its copy on the host; in
                               ///< the last bucket the trailer follows
    std::int64_t pending = 0;  ///< gradients still to become ready in this backward
    Work work{};
    std::vector<int> members{};           ///< indices of its parameters, in registration order
    std::vector<Parameter> parameters{};  ///< the same parameters

    BucketView view() const { return {index, name, memory, parameters}; }
  };

  /// Collective: every rank must call it. Takes over the memory of the parameters' gradients; what
  /// they held is lost. `suffix` is appended to the buckets' names. The communicator must outlive
  /// this.
  GradientBuckets(const std::vector<Parameter>& parameters, Communicator& communicator,
                  BucketLayout layout, std::string suffix);
  /// Gives each gradient separate memory again. No reducer may observe them.
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Cuts the memory anew. Gradients keep their contents and states; meanwhile there are two copies
  /// of them. No reducer may observe them.
  void lay_out(BucketLayout layout);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<GradientSize>& sizes() const { return sizes_; }
  const BucketLayout& layout() const { return layout_; }
  const BucketPlaces& places() const { return places_; }
  std::vector<Bucket>& all() { return buckets_; }
  const std::vector<Bucket>& all() const { return buckets_; }
  Bucket& of(std::size_t parameter) { return buckets_[bucket_of_[parameter]]; }

  /// The trailer on the host, of the last bucket's dtype: (parameters,) and (ranks *
  /// metadata_elements,). Undefined without parameters.
  const Tensor& used() const { return used_; }
  const Tensor& metadata() const { return metadata_; }
  /// Nothing on the host. Where the last bucket travels between GPUs: copies the trailer from the
  /// host to its place after the bucket, and back.
  void send_trailer() const;
  void fetch_trailer() const;  ///< waits for the GPU

  std::size_t bytes() const;    ///< of gradients, padding and trailer
  std::size_t largest() const;  ///< bytes of the largest bucket

 private:
  struct Arena {
    Tensor memory, wire;
  };
  Arena& arena_of(DType dtype, Device device);
  void make_arenas();
  void place(int number, const BucketPlaces::Bucket& planned);
  void place_trailer(Bucket& bucket, const Tensor& wire);
  std::int64_t trailer_elements() const;

  std::vector<Parameter> parameters_;
  Communicator& communicator_;
  std::string suffix_;
  std::vector<GradientSize> sizes_;
  BucketLayout layout_;
  BucketPlaces places_;
  std::vector<Arena> arenas_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;
  Storage pinned_;
  Tensor trailer_;          // what travels
  Tensor trailer_on_host_;  // the same memory, or its copy in `pinned_`
  Tensor used_, metadata_;  // its two parts
};

std::vector<GradientSize> sizes_of(const std::vector<Parameter>& parameters);

/// Collective, where no gradient is wanted any more: every parameter := its mean over the ranks. It
/// travels in the place of its gradient.
void average_values(GradientBuckets& buckets, Communicator& communicator);

/// `wire` := `memory`, or the reverse. They do nothing if both are the same memory.
void copy_to_host(const GradientBuckets::Bucket& bucket);
void copy_from_host(const GradientBuckets::Bucket& bucket);

}  // namespace lockstep::dist
