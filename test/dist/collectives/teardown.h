#pragma once
/// The teardown matrix: every way in which a rank's part in a world can end, in every state in
/// which that can happen. One body for all engines. Of three ranks, rank 1 ends, and what then
/// becomes of the others is looked at.
///
/// The body works in a group of all ranks, so that the group's communicator can go while the world
/// stays.

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <new>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "exercise.h"
#include "lockstep/dist/world/world.h"
#include "support/forked_ranks.h"

namespace lockstep::test {

enum class Way {
  abort,    ///< the communicator gives up
  destroy,  ///< the communicator goes, the world stays
  end,      ///< the world goes
  unwind,   ///< the world goes while an exception is on its way
};
enum class State {
  idle,       ///< nothing under way on any rank
  in_flight,  ///< a collective that the other ranks have not called
  peer_dead,  ///< the same, and rank 2 is gone
  aborted,    ///< rank 1 has given up before
};

struct Teardown {
  Way way;
  State state;

  std::string text() const {
    static const char* const ways[] = {"abort", "destroy", "end", "unwind"};
    static const char* const states[] = {"idle", "in flight", "peer dead", "already aborted"};
    return fmt::format("{}, {}", ways[static_cast<int>(way)], states[static_cast<int>(state)]);
  }
  /// The world that the group was cut from is of use afterwards.
  bool world_stays() const {
    return (way == Way::abort || way == Way::destroy) && state != State::peer_dead;
  }
};

inline std::vector<Teardown> teardown_matrix() {
  std::vector<Teardown> matrix;
  for (const Way way : {Way::abort, Way::destroy, Way::end, Way::unwind})
    for (const State state : {State::idle, State::in_flight, State::peer_dead, State::aborted})
      matrix.push_back({way, state});
  return matrix;
}

constexpr int teardown_ranks = 3;

/// How far the ranks are, also where they are processes, and told by nothing that is tested.
class Stage {
 public:
  Stage() {
    void* const memory =
        ::mmap(nullptr, sizeof(Counts), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    check<Error>(memory != MAP_FAILED, "no shared memory");
    counts_ = new (memory) Counts{};
  }
  Stage(const Stage&) = delete;
  Stage& operator=(const Stage&) = delete;
  ~Stage() { ::munmap(counts_, sizeof(Counts)); }

  void rank_is_ready() { ++counts_->ready; }
  void await_ranks() const {
    await([&] { return counts_->ready == teardown_ranks; });
  }
  void torn_down() { counts_->torn_down = true; }
  void await_teardown() const {
    await([&] { return counts_->torn_down.load(); });
  }

 private:
  struct Counts {
    std::atomic<int> ready{0};
    std::atomic<bool> torn_down{false};
  };
  template <class F>
  static void await(F reached) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (!reached()) {
      check<Error>(std::chrono::steady_clock::now() < end, "the others are nowhere");
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  }
  Counts* counts_;
};

/// Rank 1's part; it throws where it is to unwind.
inline void tear_down(const Teardown& teardown, const World& world, std::optional<World>& group,
                      const Tensor& data, Stage& stage) {
  dist::Communicator& communicator = group->communicator();
  if (teardown.state == State::in_flight || teardown.state == State::peer_dead)
    communicator.all_reduce(data, "in flight");
  if (teardown.state == State::aborted) communicator.abort("rank 1 had enough");
  switch (teardown.way) {
    case Way::abort: communicator.abort("rank 1 gave up"); break;
    case Way::destroy: group.reset(); break;
    case Way::end: return;
    case Way::unwind: fail<DataError>("a label out of range");
  }
  stage.torn_down();
  if (teardown.world_stays()) world.communicator().barrier("the world stays").wait();
}

/// What every rank runs in its world. `die` ends rank 2. The result is what the communicator of
/// another rank than 1 threw.
inline std::exception_ptr take_part(const Teardown& teardown, const World& world, Device device,
                                    Stage& stage, void (*die)()) {
  const Tensor data = Tensor::zeros({10}, DType::f32, device);
  std::optional<World> group = world.split(0);
  dist::testing::exercise<float>(group->communicator(), 10, device);
  stage.rank_is_ready();
  if (world.rank() == 1) {
    stage.await_ranks();
    tear_down(teardown, world, group, data, stage);
    return nullptr;
  }
  if (world.rank() == 2 && teardown.state == State::peer_dead) {
    stage.await_ranks();  // rank 1 may still be in the last barrier before its part
    die();
    return nullptr;
  }
  stage.await_teardown();
  std::exception_ptr error;
  if (teardown.state != State::idle) try {
      group->communicator()
          .all_reduce(data, "in flight")
          .finish();  // rank 1 may have done its part
      group->communicator().barrier("the end").wait();
    } catch (const CommError&) {
      error = std::current_exception();
    }
  if (teardown.world_stays()) world.communicator().barrier("the world stays").wait();
  return error;
}

/// Whether the ranks ended as they should, all within `limit` seconds.
inline void check_teardown(const Teardown& teardown, const std::vector<Outcome>& outcomes,
                           double limit) {
  for (std::size_t r = 0; r < outcomes.size(); ++r) {
    const Outcome& outcome = outcomes[r];
    INFO(teardown.text(), ", rank ", r, " after ", outcome.seconds, " s: ", outcome.kind, " ",
         outcome.message);
    CHECK(outcome.seconds < limit);
    if (r == 1) {
      CHECK(outcome.kind == (teardown.way == Way::unwind ? "other" : ""));
    } else if (r == 2 && teardown.state == State::peer_dead) {
      CHECK((outcome.signal == SIGKILL || outcome.well()));
    } else if (teardown.state == State::idle) {
      CHECK(outcome.well());
    } else {
      CHECK((outcome.kind == "peer" || outcome.kind == "comm"));
      const bool rank_2 = teardown.state == State::peer_dead && contains(outcome.message, "rank 2");
      CHECK((rank_2 || contains(outcome.message, "rank 1")));
      if (teardown.state == State::aborted) CHECK(contains(outcome.message, "rank 1 had enough"));
    }
  }
}

/// The whole matrix among processes that join a world with these options. Tensors lie on the device
/// of `device_of`.
inline void tear_down_processes(
    const JoinOptions& options, int ranks_per_node = dist::max_ranks, double limit = 5,
    const std::function<Device(const World&)>& device_of = [](const World&) { return Device{}; }) {
  for (const Teardown& teardown : teardown_matrix()) {
    const TemporaryFolder folder;
    const bool one_machine = ranks_per_node >= teardown_ranks;
    const std::string store = one_machine ? "unix:" + folder / "store" : free_address();
    Stage stage;
    const auto outcomes = run_processes(
        teardown_ranks,
        [&](int rank) {
          set_rank_environment(rank, teardown_ranks, store, ranks_per_node);
          // Ranks wait here, and make no call, for as long as an end may take: the timeout.
          ::setenv("LOCKSTEP_WATCHDOG", "0", 1);
          struct Last {
            Stage* stage;
            ~Last() {
              if (stage) stage->torn_down();
            }
          } last{rank == 1 ? &stage : nullptr};
          std::exception_ptr error;
          {
            const World world = World::join(options);
            error = take_part(teardown, world, device_of(world), stage, [] { ::raise(SIGKILL); });
          }
          if (error) std::rethrow_exception(error);  // only now: it should not end the world
        },
        4 * limit);
    check_teardown(teardown, outcomes, limit);
  }
}

}  // namespace lockstep::test
