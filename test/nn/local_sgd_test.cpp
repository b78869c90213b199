// Steps on this rank's own gradients, and the average that makes the replicas equal again.

#include <doctest/doctest.h>

#include "lockstep/lockstep.h"
#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;
using lockstep::test::check_all_well;
using lockstep::test::loss_of;
using lockstep::test::Net;

TEST_CASE("local SGD: averaging after every step is plain data parallelism without momentum") {
  for (const int size : {1, 2, 3, 4})
    check_all_well(test::messages_simulated({.seed = 5, .size = size}, [&](HostCommunicator& c) {
      manual_seed(3);
      Net local, plain;
      plain.load_state_dict(local.state_dict());
      optim::SGD local_sgd(local.parameters(), {.lr = 0.1}),
          plain_sgd(plain.parameters(), {.lr = 0.1});
      DistributedDataParallel a(local.parameters(), {}, c), b(plain.parameters(), {}, c);
      for (int step = 0; step < 5; ++step) {
        const std::int64_t begin = 10 * step + 2 * c.rank();
        {
          Tape tape;
          tape.backward(loss_of(local, begin, begin + 2), {}, {.sync = false});
        }
        local_sgd.step(optim::local);
        local_sgd.zero_grad();
        a.average_parameters();
        {
          Tape tape;
          tape.backward(loss_of(plain, begin, begin + 2));
        }
        plain_sgd.step();
        plain_sgd.zero_grad();
        test::expect_same_values(local, plain, 1e-14);
      }
    }));
}
