// Where a kernel's complaint is heard: core/cuda/fault_sources.h.
#include <cmath>
#include <thread>

#include "kernels/support.h"
#include "lockstep/core/gpu/stream.h"
#include "lockstep/kernels/loss.h"

namespace fault_sources_cases {

using namespace lockstep;
using namespace lockstep::kernels;
using namespace lockstep::test;

TEST_CASE("a bad label on a GPU shows on every stream that has waited for its own") {
  const Tensor x = varied<float>({3, 4}), saved = nan<float>({3, 4});
  const Tensor labels = here(Tensor::of<std::int64_t>({3}, {0, 9, 1}));
  const char* const message = "[cross_entropy] label 9 of sample 1 is not one of the classes";
  Stream::current(test_device()).synchronize();
  const auto lose_on = [&](const Stream& stream, const Tensor& loss) {
    const StreamGuard guard(stream);
    cross_entropy(x, labels, loss, saved);
    const Event done(test_device());
    done.record(stream);
    return done;
  };
  const Stream first = Stream::create(test_device()), second = Stream::create(test_device());
  const Tensor loss = nan<float>({});
  SUBCASE("that reads the result") {
    Stream::current(test_device()).wait(lose_on(first, loss));
    CHECK_THROWS_WITH_AS(loss.item(), message, DataError);
    CHECK(std::isnan(loss.item()));  // complained of once
    first.synchronize();
  }
  SUBCASE("by way of another one") {
    second.wait(lose_on(first, loss));
    const Event passed(test_device());
    passed.record(second);
    Stream::current(test_device()).wait(passed);
    CHECK_THROWS_WITH_AS(loss.item(), message, DataError);
  }
  SUBCASE("and where the host waits for the event") {
    CHECK_THROWS_WITH_AS(lose_on(first, loss).synchronize(), message, DataError);
  }
  SUBCASE("also if the stream has ended") {
    const Event done = lose_on(Stream::create(test_device()), loss);
    Stream::current(test_device()).wait(done);
    CHECK_THROWS_WITH_AS(loss.item(), message, DataError);
  }
  SUBCASE("and if its thread has ended, and nobody has waited") {
    std::thread([&] { cross_entropy(x, labels, loss, saved); }).join();
    CHECK_THROWS_WITH_AS(loss.item(), message, DataError);
    CHECK(std::isnan(loss.item()));
  }
}

}  // namespace fault_sources_cases
