// The overlapped optimizer: every bit as without, and what it does not go together with.

#include "lockstep/nn/optim/overlap.h"

#include <doctest/doctest.h>

#include <functional>
#include <limits>

#include "support/small_models.h"
#include "support/worlds.h"

using namespace lockstep;
using namespace lockstep::dist;
using lockstep::test::check_all_well;
using lockstep::test::expect;
using lockstep::test::expect_error;
using lockstep::test::loss_of;
using lockstep::test::Net;

namespace {

DdpOptions small_buckets() {
  return {.bucket_cap_mb = 0.0001, .first_bucket_mb = 0.0001, .last_bucket_mb = 0.00001};
}

/// Two models side by side, of which a rank may leave one out.
struct Branches : nn::Module {
  Net first, second;
  Tensor forward(const Tensor& x) override { return first(x) + second(x); }
  void visit(nn::Visitor& p) override {
    p("first", first);
    p("second", second);
  }
};

std::unique_ptr<optim::Optimizer> make(const std::string& name, nn::Module& model) {
  if (name == "adam")
    return std::make_unique<optim::Adam>(model.parameters(), optim::Adam::Options{.lr = 0.01});
  if (name == "groups") {
    std::vector<Parameter> all = model.parameters(), half = {all[0], all[1]};
    all.erase(all.begin(), all.begin() + 2);
    return std::make_unique<optim::SGD>(std::vector<optim::Group<optim::SGD::Given>>{
        {half, {.lr = 0.1, .momentum = 0.5}}, {all, {.lr = 0.2, .momentum = 0.9}}});
  }
  return std::make_unique<optim::SGD>(
      model.parameters(), optim::SGD::Options{.lr = 0.1, .momentum = 0.9, .weight_decay = 0.01});
}

/// One rank's run, and the digest of what it ends with. A program is a number of steps of all
/// kinds: plain ones, branches that differ between ranks, windows.
std::string train(Communicator& c, const std::string& optimizer_name, bool early,
                  const DdpOptions& options = small_buckets()) {
  manual_seed(1);
  Branches model;
  const auto optimizer = make(optimizer_name, model);
  DistributedDataParallel ddp(model.parameters(), {}, c, options);
  std::optional<optim::Overlap> overlap;
  if (early) overlap.emplace(*optimizer, ddp);
  const int n = c.size(), me = c.rank();
  for (int step = 0; step < 8; ++step) {
    const std::int64_t begin = 10 * step + 2 * me;
    if (step % 4 == 3) {  // a window of two backwards, of weights nobody knows in total
      for (int part = 0; part < 2; ++part) {
        Tape tape;
        tape.backward(loss_of(model, begin + part, begin + 2 + part), Weight{1.0 + me},
                      {.sync = part == 1});
      }
    } else if (step % 4 == 2 && (me + step) % n == 0) {  // this rank does not use `second`
      Tape tape;
      tape.backward(loss_of(model.first, begin, begin + 2), Weight{2, 2.0 * n});
    } else {
      Tape tape;
      tape.backward(loss_of(model, begin, begin + 2), Weight{2, 2.0 * n});
    }
    optimizer->step();
    optimizer->zero_grad();
  }
  expect(test::replicas_agree(c, model.parameters()), "replicas differ");
  return parameter_digest(model.parameters());
}

}  // namespace

TEST_CASE("an overlapped optimizer gives the same bits: branches, windows, groups, Adam") {
  for (const int size : {1, 2, 3, 4})
    for (const char* optimizer : {"sgd", "adam", "groups"})
      for (const bool shared : {false, true})
        check_all_well(test::messages_simulated(
            {.seed = 6, .size = size, .shared_memory = shared}, [&](HostCommunicator& c) {
              expect(train(c, optimizer, true) == train(c, optimizer, false), "{}", optimizer);
            }));
}

TEST_CASE("an overlapped optimizer steps what a hook has compressed, all the same") {
  check_all_well(test::messages_simulated({.seed = 2, .size = 3}, [&](HostCommunicator& c) {
    const auto with_hook = [] {
      DdpOptions options = small_buckets();
      options.hook = power_sgd({.rank = 1});
      return options;
    };
    expect(train(c, "sgd", true, with_hook()) == train(c, "sgd", false, with_hook()), "power_sgd");
    expect(train(c, "sgd", true, with_hook()) != train(c, "sgd", true), "there is no hook");
  }));
}

TEST_CASE("steps are taken during backward, each parameter once") {
  check_all_well(test::messages_simulated({.seed = 2, .size = 2}, [&](HostCommunicator& c) {
    Net model;
    optim::SGD optimizer(model.parameters(), {.lr = 1});
    DistributedDataParallel ddp(model.parameters(), {}, c, small_buckets());
    const std::string start = parameter_digest(model.parameters());
    std::string early;
    {
      const optim::Overlap overlap(optimizer, ddp);
      Tape tape;
      tape.backward(loss_of(model, 0, 2));
      early = parameter_digest(model.parameters());
      expect(early != start, "backward has stepped on nothing");
      optimizer.step();
      expect(parameter_digest(model.parameters()) == early, "step() has stepped once more");
      optimizer.zero_grad();
    }
    Tape tape;  // no more than before
    tape.backward(loss_of(model, 0, 2));
    expect(parameter_digest(model.parameters()) == early, "after the end of the overlap");
    optimizer.step();
    expect(parameter_digest(model.parameters()) != early, "step() alone");
  }));
}

TEST_CASE("options that make no sense change nothing: corrected, the step is taken") {
  check_all_well(test::messages_simulated({.seed = 3, .size = 1}, [&](HostCommunicator& c) {
    Net model;
    optim::SGD optimizer(model.parameters(), {.lr = 1});
    DistributedDataParallel ddp(model.parameters(), {}, c, small_buckets());
    const auto backward = [&] {
      Tape tape;
      tape.backward(loss_of(model, 0, 2));
    };
    const auto refused = [](const std::function<void()>& call) {
      try {
        call();
      } catch (const UsageError&) {
        return true;
      }
      return false;
    };
    const std::string start = parameter_digest(model.parameters());
    backward();
    optimizer.groups()[0].options.lr = -1;
    expect(refused([&] { optimizer.step(); }), "a negative lr is taken");
    optimizer.groups()[0].options.lr = 1;
    optimizer.step();
    const std::string stepped = parameter_digest(model.parameters());
    expect(stepped != start, "the corrected step is not taken");
    optimizer.zero_grad();
    {
      const optim::Overlap overlap(optimizer, ddp);
      optimizer.groups()[0].options.lr = -1;
      expect(refused(backward), "a negative lr is taken during backward");
    }
    optimizer.groups()[0].options.lr = 1;
    expect(parameter_digest(model.parameters()) == stepped, "a refused step has changed something");
  }));
}

TEST_CASE("what needs all gradients before the step is refused by name") {
  check_all_well(test::messages_simulated({.size = 2}, [&](HostCommunicator& c) {
    for (const auto& [policy, name] :
         {std::pair{NonFinite::skip, "NonFinite::skip"}, {NonFinite::stop, "NonFinite::stop"}}) {
      Net model;
      optim::SGD optimizer(model.parameters(), {.lr = 0.1});
      DdpOptions options = small_buckets();
      options.nonfinite = policy;
      DistributedDataParallel ddp(model.parameters(), {}, c, options);
      expect_error<UsageError>(name, [&] { optim::Overlap overlap(optimizer, ddp); });
      expect_error<UsageError>("cannot be given up",
                               [&] { optim::Overlap overlap(optimizer, ddp); });
    }
    Net model;
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    DistributedDataParallel ddp(model.parameters(), {}, c, small_buckets());
    const optim::Overlap overlap(optimizer, ddp);
    const auto backward = [&] {
      Tape tape;
      tape.backward(loss_of(model, 0, 2));
    };
    backward();
    expect_error<StateError>("[clip_grad_norm] an optimizer may have stepped on 'first.weight'",
                             [&] { optim::clip_grad_norm(model.parameters(), 1); });
    expect_error<StateError>("[clip_grad_value] an optimizer may have stepped",
                             [&] { optim::clip_grad_value(model.parameters(), 1); });
    expect_error<StateError>("[zero_grad] backward has stepped", [&] { optimizer.zero_grad(); });
    const auto add = [&] {
      optimizer.add_param_group({Parameter(Tensor::zeros({1}), "late")}, {.lr = 0.1});
    };
    expect_error<StateError>("[add_param_group] backward has stepped", add);
    optimizer.groups()[0].options.lr = 0.2;
    expect_error<StateError>("the options have changed since backward", [&] { optimizer.step(); });
    optimizer.groups()[0].options.lr = 0.1;
    optimizer.step();
    optimizer.zero_grad();
    optimizer.groups()[0].options.lr = 0.2;
    backward();
    optimizer.step();  // but they may change from step to step
  }));
}

TEST_CASE("a second backward before the step is refused, on every rank") {
  const auto messages = test::messages_simulated({.size = 3}, [&](HostCommunicator& c) {
    Net model;
    optim::SGD optimizer(model.parameters(), {.lr = 0.1});
    DistributedDataParallel ddp(model.parameters(), {}, c, small_buckets());
    const optim::Overlap overlap(optimizer, ddp);
    for (int k = 0; k < 2; ++k) {
      Tape tape;
      tape.backward(loss_of(model, 0, 2));
    }
  });
  test::check_all_say(messages, {"an optimizer has stepped on it (optim::Overlap): zero_grad()"});
}

TEST_CASE("ranks without data change the divisor in the end, which is too late") {
  for (const bool joined : {false, true}) {
    const auto messages = test::messages_simulated({.size = 3}, [&](HostCommunicator& c) {
      Net model;
      optim::SGD optimizer(model.parameters(), {.lr = 0.1});
      DistributedDataParallel ddp(model.parameters(), {}, c, small_buckets());
      const optim::Overlap overlap(optimizer, ddp);
      if (!joined && c.rank() == 1) return ddp.synchronize();
      if (joined && c.rank() == 1) ddp.join();
      Tape tape;
      const double rows = joined && c.rank() == 1 ? 0 : 2;
      const Tensor loss = loss_of(model, 0, static_cast<std::int64_t>(rows));
      if (joined)
        tape.backward(loss, Weight{rows, 6});
      else
        tape.backward(loss);
    });
    test::check_all_say(messages, {"the optimizer has stepped on sums divided by",
                                   joined ? "but the ranks with data weigh 4 in all"
                                          : "but the ranks with data weigh 2 in all"});
  }
}

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
