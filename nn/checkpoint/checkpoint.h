#pragma once
/// The state of a training run in one file, to go on from it as if nothing had happened:
///
///   nn::Checkpoint checkpoint(ddp);                  // without DDP: nn::Checkpoint checkpoint;
///   std::int64_t epoch = 0, position = 0;
///   checkpoint.add("model", model);
///   checkpoint.add("optimizer", optimizer);
///   checkpoint.add("epoch", epoch);
///   checkpoint.add("position", position);
///   if (resume) checkpoint.load("run.safetensors");
///   for (; epoch < epochs; ++epoch, position = 0)
///     for (const data::Batch& batch :
///          data::Loader(train, {.batch = 32, .begin = position}, world, epoch)) {
///       ...                                          // forward, backward, step
///       position = batch.position;
///       if (++steps % 100 == 0) checkpoint.save("run.safetensors");
///     }
///
/// The file is a safetensors file (safetensors.h). The tensors of a part have the name of the part
/// and '/' before their names, "model/0.weight"; those of a part per rank have the rank before
/// them, too: "rank 1/random/mt19937". A manifest (manifest.h) holds the program's numbers, the
/// number of ranks, the layout of the buckets, and the SHA-256 of each tensor, which load() checks.
///
/// One part per rank is always there: the random generators of the calling thread
/// (default_generator, default_philox). On another number of ranks, a generator that is the same on
/// all of them goes on (random_state.h; so it is with lanes, and the run reaches the same bits);
/// others stay as they are, and a note on stderr says so. What the DDP's communication hook keeps
/// is not there.
///
/// A file is written whole or not at all: beside the old one, with its new name only at the end
/// (core/system/atomic_file.h). Rank 0 writes it. For that time it has the tensors per rank of all
/// ranks; they travel one rank after another, and pass through memory of all ranks. All ranks read
/// the file: they must see the folder then. Where a name is a link, older files lie beside what it
/// leads to. A name belongs to one Checkpoint at a time.
///
/// With SaveOptions::async, save() takes a snapshot on rank 0 and returns; a thread writes it. The
/// memory of the snapshot, as much as the file has, is kept for the next one.
///
/// A checkpoint is taken between two steps. A gradient on which an optimizer is still to step is in
/// no file: save(), load(), share() and mark() throw StateError, which names the parameter, between
/// backward and step, and so in an accumulation window. What else belongs to a step comes before
/// save(), too: Schedule::step(), Ema::update(), and GradScaler::update(), which is checked.
///
/// Under DDP, save(), wait() and load() are collective; an error of one rank is thrown on all. The
/// objects that were added must outlive the last call, and stay where they are: a model that was
/// moved from throws StateError. Thread-safety: as the DDP's.

#include <concepts>
#include <cstdint>
#include <functional>
#include <future>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/system/progress.h"
#include "lockstep/dist/ddp/ddp.h"
#include "lockstep/nn/checkpoint/manifest.h"
#include "lockstep/nn/checkpoint/safetensors.h"
#include "lockstep/nn/module.h"
#include "lockstep/nn/state_dict.h"

namespace lockstep::nn {

/// A model, an optimizer, or an object of another class with these functions.
template <class T>
concept Stateful = requires(T& object, const StateDict& state) {
  { object.state_dict() } -> std::convertible_to<StateDict>;
  object.load_state_dict(state);
};

/// Of Checkpoint::save.
struct SaveOptions {
  /// How many checkpoints this save keeps: with 3, the checkpoint before becomes "PATH.1", and the
  /// one before that "PATH.2". Files with higher numbers are left alone.
  int keep = 1;
  /// Return before the file is written. An error is then thrown on all ranks: by the next save(),
  /// when it has written its own file, by load() or wait(). Call wait() at the end of the program.
  bool async = false;
  /// How long the others wait for rank 0. Empty: as long as it is at work, however slow the disk is
  /// (dist::on_rank0).
  std::optional<dist::Seconds> timeout{};
};

class Checkpoint {
 public:
  Checkpoint();  ///< of a run without DDP, on one rank
  explicit Checkpoint(dist::DistributedDataParallel& ddp);
  /// Ends the file that is being written. An error that was not thrown before (wait()) becomes one
  /// line on stderr.
  ~Checkpoint();
  Checkpoint(const Checkpoint&) = delete;
  Checkpoint& operator=(const Checkpoint&) = delete;

  /// What all ranks have alike: of several ranks, save() and share() throw StateError for a model
  /// or an optimizer with a parameter that is each rank's own (keep_local()). Throws UsageError for
  /// a name that is empty, has a '/', begins with "rank ", or was added before.
  template <Stateful T>
  void add(const std::string& name, T& object) {
    add_part(name, false, object);
  }
  /// A part per rank, which may differ between ranks. Loaded if as many ranks load as have saved;
  /// otherwise each rank's part stays as it is, and a note on stderr says so.
  template <Stateful T>
  void add_per_rank(const std::string& name, T& object) {
    add_part(name, true, object);
  }
  /// A number of the program, the same on all ranks.
  void add(const std::string& name, std::int64_t& number);

  /// Compares the replicas (DistributedDataParallel::check_replicas), then writes the file. Throws
  /// DataError with the path and the reason; an older file is then whole, and under its name.
  void save(const std::string& path, SaveOptions options = {});

  /// Waits until the file of the last asynchronous save() is complete. Throws what writing it has
  /// thrown.
  void wait();
  /// Whether wait() would return, or throw, at once on rank 0, which writes. Not collective.
  bool is_written() const;

  /// Reads and checks the whole file, then loads its parts. Throws DataError for a file that is no
  /// checkpoint, or damaged, and StateError if its parts and numbers are not those that were added;
  /// then nothing has been loaded. A part may refuse its own, by its load_state_dict: the others
  /// have then been loaded.
  void load(const std::string& path);

  /// Collective over `world`, of which this Checkpoint has no DDP: gives all ranks the parts and
  /// numbers of the first rank whose `progress` is the highest, and its random generators. It comes
  /// before a DistributedDataParallel is made, which takes rank 0's parameters
  /// (dist/world/survive.h). A CommError leaves everything as it was. Parts of add_per_rank are
  /// taken over too: add none that must differ.
  ///
  /// What a forward pass changes (random generators, the buffers of modules) is given as it was at
  /// the last mark() or share(): a step that was begun and is repeated begins as the first time.
  /// Call mark() when a step is taken. Not collective. In the body of survive() a collective throws
  /// StateError if an optimizer has stepped and mark() was not called.
  ///
  /// `progress` counts the steps, and is one of the numbers that were added. StateError if it has
  /// risen by less than the calls of mark() since share().
  void share(const World& world, std::int64_t progress);
  void mark();

  /// What the file says of itself: DdpOptions::bucket_layout, for example, is needed before there
  /// is a DDP. Not collective. Throws DataError.
  static Manifest manifest(const std::string& path);

 private:
  struct Part {
    std::string name;
    bool per_rank;
    std::function<StateDict()> save;
    std::function<void(const StateDict&)> load;
    /// Of all ranks' states, where another number of ranks has saved; gives the names of those that
    /// it does not load. Null: nothing is loaded then.
    std::function<std::vector<std::string>(const std::vector<StateDict>&)> load_other_world = {};
    /// Of a model or an optimizer.
    std::function<std::vector<Parameter>()> parameters = {};
    /// The tensors that a forward pass changes, and their copies by mark().
    std::function<StateDict()> changed_by_forward = {};
    StateDict marked = {};
    std::size_t had = 0;  // parameters, when it was added
  };
  struct Number {
    std::string name;
    std::int64_t* value;
  };
  template <class T>
  void add_part(const std::string& name, bool per_rank, T& object) {
    check_name(name);
    parts_.push_back({name, per_rank, [&object] { return object.state_dict(); },
                      [&object](const StateDict& state) { object.load_state_dict(state); }});
    if constexpr (std::derived_from<T, Module>)
      parts_.back().parameters = [&object] { return object.parameters(); };
    else if constexpr (requires {
                         { object.all() } -> std::convertible_to<std::vector<Parameter>>;
                       })
      parts_.back().parameters = [&object] { return object.all(); };
    if constexpr (std::derived_from<T, Module>)
      parts_.back().changed_by_forward = [&object] {
        StateDict buffers;
        for (const Buffer& buffer : object.buffers()) buffers.emplace(buffer.name, buffer.value);
        return buffers;
      };
    if (const auto& all = parts_.back().parameters) parts_.back().had = all().size();
  }
  void check_name(const std::string& name) const;
  void check_between_steps(std::string_view operation) const;
  void check_alike(std::string_view operation, int ranks) const;
  int rank() const { return ddp_ ? ddp_->communicator().rank() : 0; }
  int world() const { return ddp_ ? ddp_->communicator().size() : 1; }
  void on_every_rank(const std::function<void()>& task) const;
  void on_rank0(const std::function<void()>& task, std::optional<dist::Seconds> timeout) const;
  std::string prefix(const Part& part, int rank) const;
  bool is_of_other_world(const Part& part, const Manifest& manifest) const {
    return part.per_rank && manifest.world != world();
  }
  void for_each_part(const std::function<void(std::size_t)>& task) const;
  StateDict own_tensors() const;
  std::set<std::string> names_here() const;
  std::vector<StateDict> read_states(const Part& part, const std::string& path,
                                     const SafetensorsFile& file, const Manifest& manifest) const;
  void collect(StateDict& own) const;
  Manifest new_manifest() const;
  void take_snapshot(const StateDict& tensors);
  void write_aside(std::function<void()> write);
  void check_parts(const std::string& path, const SafetensorsHeader& header,
                   const Manifest& manifest, const std::set<std::string>& here) const;

  /// May end before this; null: there is none.
  struct Ddp {
    dist::DistributedDataParallel* it = nullptr;
    Lifetime::Ref life{};
    explicit operator bool() const { return it != nullptr; }
    dist::DistributedDataParallel* operator->() const {
      check<StateError>(!life.expired(),
                        "[checkpoint] its DistributedDataParallel has ended: make a Checkpoint "
                        "for each");
      return it;
    }
  };
  Ddp ddp_;
  std::vector<Part> parts_;
  std::vector<Number> numbers_;
  std::weak_ptr<dist::Survival> survival_;  // of the world of the last share()
  std::optional<std::int64_t> shared_progress_;
  std::int64_t marks_ = 0;  // since share()
  bool pending_ = false;    // an asynchronous save() without a wait() yet
  std::optional<dist::Seconds> pending_timeout_;
  StateDict snapshot_;                         // rank 0's, for its thread
  std::future<void> writing_;                  // rank 0's
  std::shared_ptr<const Progress> of_writer_;  // rank 0's: that thread's
};

}  // namespace lockstep::nn
