// Calls one after another: what is kept of a call (its plan, scratch memory) must not reach into
// one that is unlike it in anything.

#include <doctest/doctest.h>

#include <functional>
#include <vector>

#include "dist/collectives/exercise.h"
#include "lockstep/dist/transport/transports.h"

using namespace lockstep;
using namespace lockstep::dist;
using namespace lockstep::dist::testing;

namespace {

using Call = std::function<void(Communicator&)>;

template <class T>
void append_calls(std::vector<Call>& calls, std::int64_t count) {
  for (const int root : {0, 1, 2})
    calls.push_back([=](Communicator& c) { exercise_broadcast<T>(c, count, root % c.size()); });
  calls.push_back(
      [=](Communicator& c) { exercise_all_reduce<T>(c, Tensor::empty({count}, dtype_of<T>())); });
  calls.push_back([=](Communicator& c) { exercise_reduce_scatter<T>(c, count); });
  calls.push_back([=](Communicator& c) { exercise_all_gather<T>(c, count); });
}

}  // namespace

TEST_CASE("every call after every other: nothing is left of the one before") {
  std::vector<Call> calls = {[](Communicator& c) { c.barrier("between").wait(); }};
  for (const std::int64_t count : {9, 10}) {
    append_calls<float>(calls, count);
    append_calls<std::int64_t>(calls, count);
  }
  for (const Algorithm algorithm : {Algorithm::automatic, Algorithm::ring, Algorithm::halving})
    for (const int world : {2, 3, 4, 7}) {
      CAPTURE(world);
      const auto errors =
          on_threads(threads_transports(world), [&](int, std::unique_ptr<Transport> transport) {
            HostCommunicator communicator(std::move(transport), {.algorithm = algorithm});
            for (const Call& first : calls)
              for (const Call& second : calls) first(communicator), second(communicator);
          });
      for (const std::exception_ptr& error : errors) CHECK(message_of(error) == "");
    }
}
