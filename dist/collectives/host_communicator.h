#pragma once
/// The communicator for tensors in host memory, over any transport: an Executor carries out the
/// plan of the call at the front of the queue.
///
/// Determinism: "ring" gives the same bits for the same calls (level *run*). "hierarchical" gives
/// them also for any cut of the elements into calls. All others give each other's bits, for any cut
/// and any transport (level *layout*). f16 and bf16 are added up in f32 and rounded once; an
/// algorithm that passes sums on would round at every hop, so they take two-shot instead.
///
/// Memory: a tensor of allocate(), or a slice of one, is reduced in place where the transport has
/// shared memory, without any copy; it must then lie at the same place of the same allocation on
/// every rank. Any other tensor travels through the streams.

#include <functional>
#include <map>
#include <memory>

#include "lockstep/dist/collectives/choice.h"
#include "lockstep/dist/collectives/executor.h"
#include "lockstep/dist/collectives/queued_communicator.h"

namespace lockstep::dist {

struct CommunicatorOptions {
  Algorithm algorithm =
      Algorithm::automatic;               ///< what all-reduces ask for (dist/collectives/choice.h)
  Seconds timeout{60};                    ///< without any byte moving
  NodeMap nodes = {};                     ///< empty: all ranks on one machine
  std::shared_ptr<WaitBoard> board = {};  ///< of this rank; null: a timeout names whom it awaits
  std::vector<int> members = {};  ///< the ranks in the board's numbers; empty: the same numbers
  /// Called before each collective is queued; throws if the job goes on without this world.
  std::function<void()> watch = {};
};

/// The regions that all ranks have allocated alike and that this rank still uses. The n-th
/// allocation has the number n on every rank. A region ends here with the last storage over it.
/// Other ranks may go on to use it: their tensors keep the memory that they address, of all ranks.
class Regions {
 public:
  /// A storage over this rank's part. It keeps the region.
  Storage add(SharedRegion region, int rank, Device device = {});
  /// Where `buffer` lies, if it lies in one.
  RegionPlace place_of(const Tensor& buffer) const;
  /// For a place of a tensor that still lives. Not invalidated by add().
  const SharedRegion& at(const RegionPlace& place) const { return known_.at(place.region).region; }
  /// How many there are at most: regions that have ended since the last add() count.
  std::size_t size() const { return known_.size(); }

 private:
  struct Known {
    SharedRegion region;  // without its keeper
    std::byte* own;
    std::weak_ptr<void> used;
  };
  std::map<std::int32_t, Known> known_;
  std::int32_t next_ = 0;
};

class HostCommunicator final : public QueuedCommunicator {
 public:
  explicit HostCommunicator(std::unique_ptr<Transport> transport, CommunicatorOptions options = {});

  int rank() const override { return transport_->rank(); }
  int size() const override { return transport_->size(); }
  Tensor allocate(std::int64_t numel, DType dtype, Device device = {}) override;
  std::string_view algorithm(std::size_t bytes, DType dtype = DType::f32) const override {
    return name_of(chosen(Operation::all_reduce, bytes, dtype, transport_->has_shared_memory()));
  }
  void add_in_tree_order() override {
    if (choice_.requested == Algorithm::automatic) choice_.requested = Algorithm::two_shot;
    Communicator::add_in_tree_order();
  }
  std::shared_ptr<void> begin_work() override;
  bool hears_of_work() const override;
  std::string choices() const override {
    return describe_choices(choice_, transport_->has_shared_memory());
  }
  Seconds now() const override { return transport_->now(); }
  std::uint64_t bytes_moved() const override { return executor_.bytes_moved(); }

  /// See Communicator. DeviceError for tensors that are not on the host.
  Work enqueue(const CollectiveCall& call, std::string_view name) override;
  /// Compares the headers of a call whose data travel elsewhere, between GPUs. The Work is done
  /// when all ranks have called it, as far as this rank can tell. `place`: of the buffer there.
  Work validate_call(const CollectiveCall& call, std::string_view name, RegionPlace place) {
    return append(call, name, Algorithm::device, place);
  }

  const Choice& choice() const { return choice_; }
  Transport& transport() const { return *transport_; }

 private:
  Algorithm chosen(Operation operation, std::size_t bytes, DType dtype, bool in_region) const;
  Algorithm chosen_as_before(const CollectiveCall& call, bool in_region);
  Seconds roughly_now() const override { return transport_->roughly_now(); }
  void begin(Call& call) override;
  Progress carry_on(Call& call) override;
  void relax(unsigned round, bool late) override;
  bool spins(unsigned round) const override { return transport_->spins(round); }
  static WaitWatch make_watch(const Transport& transport, const CommunicatorOptions& options);
  void tell_wait();  // whom this rank waits for, to all
  void look_again_or_time_out(Seconds limit) override;
  void tell_failure(std::string_view reason, bool) noexcept override { transport_->abort(reason); }

  std::unique_ptr<Transport> transport_;
  NodeMap nodes_;
  Choice choice_;
  std::function<void()> watch_world_;
  Executor executor_;
  Regions regions_;

  struct Chosen {
    Operation operation = Operation::barrier;
    std::size_t bytes = 0;
    DType dtype = DType::f32;
    bool in_region = false;
    Algorithm requested = Algorithm::device;  // which no caller can ask for
    bool operator==(const Chosen&) const = default;
  };
  Chosen last_choice_;  // calls repeat, and the model takes as long as a small call
  Algorithm last_chosen_ = Algorithm::automatic;
};

}  // namespace lockstep::dist
