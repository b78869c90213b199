// ReplicaCheck::find_difference: ranks that keep different tensors. And handles that were moved
// from.

#include <doctest/doctest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/dist/ddp/ddp.h"
#include "lockstep/dist/ddp/guards/replica_check.h"
#include "support/worlds.h"

using namespace lockstep;

namespace {

/// Keeps tensors of these names of every parameter, all with the same value.
class Keeper final : public Stepper {
 public:
  explicit Keeper(std::vector<std::string> names) : names_(std::move(names)) {}
  std::vector<StateTensor> state_of(const Parameter&) const override {
    std::vector<StateTensor> all;
    for (const std::string& name : names_)
      all.push_back({name, Tensor::full({2}, static_cast<double>(name.size()))});
    return all;
  }

 private:
  std::vector<std::string> names_;
};

using Names = std::vector<std::string>;

/// What find_difference says on every rank; `kept` is by rank.
std::string difference_of(const std::vector<Names>& kept) {
  std::vector<std::string> said(kept.size());
  run_threads(static_cast<int>(kept.size()), {}, [&](World& world) {
    const auto r = static_cast<std::size_t>(world.rank());
    const auto keeper = std::make_shared<Keeper>(kept[r]);
    dist::ReplicaCheck check({Parameter(Tensor::zeros({2}), "w")}, world.communicator(), true,
                             false);
    check.note(keeper);
    said[r] = check.find_difference();
    check.error_told();
  });
  for (const std::string& text : said) CHECK(text == said[0]);
  return said[0];
}

}  // namespace

TEST_CASE("replica check: a tensor that a rank lacks is named, not those that come after it") {
  const Names all{"alpha", "beta", "gamma", "delta"};
  const std::string head = "one keeps what another does not: ";
  for (const int size : {2, 3, 4, 7})
    for (std::size_t lost = 0; lost < all.size(); ++lost) {
      std::vector<Names> kept(static_cast<std::size_t>(size), all);
      kept[1].erase(kept[1].begin() + static_cast<std::ptrdiff_t>(lost));
      const std::string text = difference_of(kept);
      CAPTURE(text);
      CHECK(text.starts_with(head + all[lost] + " of 'w': "));
      CHECK(text.find("missing on rank 1") != text.npos);
      CHECK((text.find("rank 1 is in the minority") != text.npos) == (size > 2));
      for (const std::string& other : all)
        if (other != all[lost]) CHECK(text.find(other) == text.npos);
    }
}

TEST_CASE("replica check: a tensor that one rank has alone, several, and the same one twice") {
  CHECK(difference_of({{"a", "b"}, {"a", "b", "x"}, {"a", "b"}}) ==
        "one keeps what another does not: x of 'w': kept on rank 1, missing on ranks 0, 2: "
        "rank 1 is in the minority");
  CHECK(difference_of({{"b", "c"}, {"a", "b", "c"}, {"a", "b"}}) ==
        "one keeps what another does not: a of 'w': missing on rank 0, kept on ranks 1, 2: "
        "rank 0 is in the minority; 1 more");
  CHECK(
      difference_of({{"a", "a"}, {"a"}}).find("a of 'w' (2): kept on rank 0, missing on rank 1") !=
      std::string::npos);
}

TEST_CASE("replica check: the order in which optimizers came is no difference") {
  CHECK(difference_of({{"momentum", "mean"}, {"mean", "momentum"}}) == "");
  CHECK(difference_of({{"a", "b", "c"}, {"c", "a", "b"}, {"b", "c", "a"}}) == "");
}

TEST_CASE("handles that were moved from say so") {
  using dist::DistributedDataParallel;
  run_threads(1, {}, [](World& joined) {
    World world = joined;
    const World kept = std::move(world);
    const auto message_of_world = [&](const auto& use) {
      CHECK_THROWS_WITH_AS(use(), "[world] this World was moved from: it has no ranks", StateError);
    };
    message_of_world([&] { (void)world.rank(); });                // NOLINT: moved from
    message_of_world([&] { (void)world.size(); });                // NOLINT
    message_of_world([&] { (void)world.local_rank(); });          // NOLINT
    message_of_world([&] { (void)world.local_size(); });          // NOLINT
    message_of_world([&] { (void)world.communicator(); });        // NOLINT
    message_of_world([&] { (void)world.layer_communicator(); });  // NOLINT
    message_of_world([&] { (void)world.transport(); });           // NOLINT
    message_of_world([&] { (void)world.split(0); });              // NOLINT
    message_of_world([&] { (void)world.new_group({0}); });        // NOLINT
    message_of_world([&] { (void)Shard(world); });                // NOLINT
    world.abort("nobody hears it");                               // NOLINT: noexcept
    CHECK(kept.size() == 1);

    DistributedDataParallel ddp({Parameter(Tensor::zeros({2}), "w")}, {}, kept);
    DistributedDataParallel owner = std::move(ddp);
    const auto message_of_ddp = [&](const auto& use) {
      CHECK_THROWS_WITH_AS(use(),
                           "[DistributedDataParallel] this one was moved from: use the other one",
                           StateError);
    };
    message_of_ddp([&] { (void)ddp.no_sync(); });        // NOLINT: moved from
    message_of_ddp([&] { ddp.synchronize(); });          // NOLINT
    message_of_ddp([&] { ddp.zero_grad(); });            // NOLINT
    message_of_ddp([&] { (void)ddp.join(); });           // NOLINT
    message_of_ddp([&] { ddp.average_parameters(); });   // NOLINT
    message_of_ddp([&] { ddp.check_replicas(); });       // NOLINT
    message_of_ddp([&] { ddp.save_on_rank0([] {}); });   // NOLINT
    message_of_ddp([&] { ddp.settle(); });               // NOLINT
    message_of_ddp([&] { (void)ddp.last_step(); });      // NOLINT
    message_of_ddp([&] { (void)ddp.statistics(); });     // NOLINT
    message_of_ddp([&] { (void)ddp.buckets(); });        // NOLINT
    message_of_ddp([&] { (void)ddp.bucket_layout(); });  // NOLINT
    CHECK_NOTHROW(owner.check_replicas());
  });
}
