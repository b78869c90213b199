#pragma once
/// What the tests of the traps share: a small model with data, worlds whose ranks' errors are told,
/// and comparisons that may be made on any thread.
///
/// A trap is something that users of distributed data parallelism fall into: docs/ddp.md lists them
/// by number. Each test does what such a user did.

#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "lockstep/dist/collectives/host_communicator.h"
#include "lockstep/dist/simulated/simulated_world.h"
#include "lockstep/lockstep.h"

namespace lockstep::test {

using dist::Communicator;
using dist::DistributedDataParallel;

/// Instead of doctest's macros, which are not made for several threads.
template <class... Args>
void expect(bool condition, fmt::format_string<Args...> format, Args&&... args) {
  check<Error>(condition, format, std::forward<Args>(args)...);
}

/// On any thread: this rank throws an E whose message contains `part`.
template <class E, class F>
void expect_error(const std::string& part, F&& body) {
  std::string message = "(nothing was thrown)";
  try {
    body();
  } catch (const E& error) {
    message = error.what();
    if (message.find(part) != std::string::npos) return;
  }
  fail<Error>("expected '{}', got: {}", part, message);
}

/// What each rank throws, on threads. Empty for one that ends well.
inline std::vector<std::string> messages_on_threads(int size,
                                                    const std::function<void(World&)>& body,
                                                    const JoinOptions& options = {}) {
  std::vector<std::string> messages(dist::index(size));
  run_threads(size, options, [&](World& world) {
    try {
      body(world);
    } catch (const Error& error) {
      messages[dist::index(world.rank())] = error.what();
    }
  });
  return messages;
}

using SimulatedRank = std::function<void(dist::HostCommunicator&)>;

/// The same in a simulated world, where time is virtual.
inline std::vector<std::string> messages_simulated(const dist::SimOptions& options,
                                                   const SimulatedRank& body) {
  std::vector<std::string> messages(dist::index(options.size));
  const auto run_rank = [&](int rank, std::unique_ptr<dist::Transport> transport) {
    dist::HostCommunicator communicator(std::move(transport),
                                        {.algorithm = dist::Algorithm::two_shot});
    try {
      body(communicator);
    } catch (const Error& error) {
      messages[dist::index(rank)] = error.what();
    }
  };
  const dist::SimReport report = dist::simulate(options, run_rank);
  for (const std::exception_ptr& error : report.errors)
    if (error) std::rethrow_exception(error);
  return messages;
}

/// Every rank's message contains all the texts.
inline void check_all_say(const std::vector<std::string>& messages,
                          const std::vector<std::string>& texts) {
  for (std::size_t rank = 0; rank < messages.size(); ++rank)
    for (const std::string& text : texts) {
      INFO("rank ", rank, " says: ", messages[rank]);
      INFO("and should say: ", text);
      CHECK(messages[rank].find(text) != std::string::npos);
    }
}

inline void check_all_well(const std::vector<std::string>& messages) {
  for (const std::string& message : messages) CHECK(message == "");
}

inline Parameter scalar(const std::string& name, double value = 0) {
  return Parameter(Tensor::scalar(value, DType::f64), name);
}

/// The one element of a parameter's gradient; NaN if it has none.
inline double gradient_of(const Parameter& parameter) {
  return parameter.gradient().defined() ? parameter.gradient().item() : std::nan("");
}

/// A model with 26 parameters in f64.
struct Net : nn::Module {
  nn::Linear first{3, 4, true, DType::f64}, second{4, 2, true, DType::f64};
  Tensor forward(const Tensor& x) override { return second(tanh(first(x))); }
  void visit(nn::Visitor& p) override {
    p("first", first);
    p("second", second);
  }
};

/// Rows [begin, end) of a fixed table of `columns` columns, no two of them alike.
inline Tensor rows(std::int64_t begin, std::int64_t end, std::int64_t columns = 3) {
  const Tensor table = Tensor::empty({end - begin, columns}, DType::f64);
  for (std::int64_t i = 0; i < table.numel(); ++i)
    table.data<double>()[i] = std::sin(1.3 * static_cast<double>(begin * columns + i + 1));
  return table;
}

/// The mean loss of a model over rows [begin, end).
inline Tensor loss_of(nn::Module& model, std::int64_t begin, std::int64_t end) {
  return nn::mse(model(rows(begin, end)), rows(begin, end, 2));
}

inline double distance(const Tensor& a, const Tensor& b) {
  double worst = 0;
  for (std::int64_t i = 0; i < a.numel(); ++i)
    worst = std::fmax(worst, std::abs(a.data<double>()[i] - b.data<double>()[i]));
  return worst;
}

/// Both models' parameters have the same gradients, or both have none.
inline void expect_same_gradients(nn::Module& model, nn::Module& expected) {
  const auto mine = model.parameters(), right = expected.parameters();
  for (std::size_t k = 0; k < right.size(); ++k) {
    const Tensor a = mine[k].gradient(), b = right[k].gradient();
    expect(a.defined() == b.defined(), "'{}': {} and should {}", mine[k].name(), a.defined(),
           b.defined());
    if (a.defined())
      expect(distance(a, b) < 1e-14, "'{}' is off by {}", mine[k].name(), distance(a, b));
  }
}

inline void expect_same_values(nn::Module& model, nn::Module& expected, double tolerance) {
  const auto mine = model.state_dict(), right = expected.state_dict();
  for (const auto& [name, value] : right)
    if (value.dtype() == DType::f64)
      expect(distance(mine.at(name), value) < tolerance, "'{}' is off by {}", name,
             distance(mine.at(name), value));
}

/// Bit for bit. Collective.
inline bool replicas_agree(Communicator& communicator, const std::vector<Parameter>& parameters) {
  const auto digests = dist::gather_text(communicator, dist::parameter_digest(parameters));
  return std::ranges::count(digests, digests[0]) == communicator.size();
}

}  // namespace lockstep::test
