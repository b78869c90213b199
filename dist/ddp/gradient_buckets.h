#pragma once
/// The memory of the gradients: one copy, in buckets, and nothing else. Backward kernels write
/// straight into it, collectives reduce it in place, optimizers read it.
///
/// All buckets of a dtype and device are cut from one piece of memory, an *arena*, which comes from
/// the communicator, so that the transport reaches it. Gradients on a GPU lie there; to a
/// communicator of the host a bucket is copied when it is ready, and back when it has arrived.
///
///     arena of f32   | bucket 0: 2.weight 2.bias | bucket 1: 0.weight 0.bias | control |
///
/// Behind the last bucket lies the step metadata (dist/ddp/step_metadata.h): the last bucket's collective
/// takes it along.

#include <string>
#include <vector>

#include "lockstep/autograd/parameter.h"
#include "lockstep/dist/collectives/communicator.h"
#include "lockstep/dist/ddp/bucket_layout.h"

namespace lockstep::dist {

class GradientBuckets {
 public:
  struct Bucket {
    std::string name;         ///< "bucket 0"
    Tensor memory;            ///< (numel,): the gradients
    Tensor travelling;        ///< the communicator's: `memory` or its copy on the host; in the last
                              ///< bucket the step metadata follows
    std::size_t pending = 0;  ///< gradients still to become ready in this backward
    Work work{};
    std::vector<int> members{};  ///< indices of its parameters
  };

  /// Collective. Takes over the memory of the parameters' gradients; what they held is lost.
  /// `suffix` is appended to the buckets' names. The communicator must outlive this.
  GradientBuckets(const std::vector<Parameter>& parameters, Communicator& communicator,
                  BucketLayout layout, std::string suffix);
  /// Gives the gradients memory of their own again. No reducer may observe them.
  ~GradientBuckets();
  GradientBuckets(const GradientBuckets&) = delete;
  GradientBuckets& operator=(const GradientBuckets&) = delete;

  /// Cuts the memory anew. Gradients keep their contents and states; meanwhile there are two copies
  /// of them. No reducer may observe them.
  void lay_out(BucketLayout layout);

  const std::vector<Parameter>& parameters() const { return parameters_; }
  const std::vector<GradientSize>& sizes() const { return sizes_; }
  const BucketLayout& layout() const { return layout_; }
  const BucketPlan& plan() const { return plan_; }
  std::vector<Bucket>& all() { return buckets_; }
  const std::vector<Bucket>& all() const { return buckets_; }
  Bucket& of(std::size_t parameter) { return buckets_[bucket_of_[parameter]]; }

  /// On the host, of the last bucket's dtype: how many ranks use each parameter (parameters,), and
  /// the ranks' messages (ranks * metadata_elements,). Undefined without parameters. Where buckets
  /// travel between GPUs, they are copied behind the last one before it leaves, and back.
  const Tensor& used() const { return used_; }
  const Tensor& metadata() const { return metadata_; }

  void send_notes() const;
  void fetch_notes() const;  ///< waits for the GPU

  std::size_t bytes() const;  ///< of gradients, padding and step metadata

 private:
  struct Arena {
    Tensor memory, travelling;
  };
  Arena& arena_of(DType dtype, Device device);
  void make_arenas();
  void place(std::size_t bucket);

  std::vector<Parameter> parameters_;
  Communicator& communicator_;
  std::string suffix_;
  std::vector<GradientSize> sizes_;
  BucketLayout layout_;
  BucketPlan plan_;
  std::vector<Arena> arenas_;
  std::vector<Bucket> buckets_;
  std::vector<std::size_t> bucket_of_;
  Storage pinned_;                // what notes_on_host_ lies in, where buckets are on a GPU
  Tensor notes_, notes_on_host_;  // used_ and metadata_ in one; the same tensor on the host
  Tensor used_, metadata_;
};

/// What a plan wants to know of the parameters.
std::vector<GradientSize> sizes_of(const std::vector<Parameter>& parameters);

/// Copies a bucket's gradients on their way, or back; nothing if they travel where they lie.
void copy_to_host(const GradientBuckets::Bucket& bucket);
void copy_from_host(const GradientBuckets::Bucket& bucket);

}  // namespace lockstep::dist
