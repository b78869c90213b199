// The checks of mean, batch_norm and tape.

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <array>
#include <cmath>
#include <csignal>
#include <cstring>
#include <random>

#include "lockstep/autograd/ops.h"
#include "lockstep/autograd/tape.h"
#include "lockstep/core/error.h"
#include "lockstep/exercises/check/checks.h"

namespace exercise {
namespace {

bool near(double a, double b, double scale = 1) {
  if (!std::isfinite(a) || !std::isfinite(b)) return a == b;
  return std::abs(a - b) <= 1e-9 * std::max({std::abs(a), std::abs(b), scale});
}

}  // namespace

std::string check_mean(const std::function<double(double, std::optional<double>)>& seed,
                       const std::function<double(const std::vector<double>&, bool)>& scale) {
  if (seed(1, {}) == -1 && scale({1}, false) == -1) return not_written;
  std::mt19937 random(3);
  for (const int world : {1, 2, 3, 4, 7})
    for (int drawn = 0; drawn < 40; ++drawn)
      for (const bool known : {true, false}) {
        std::vector<double> weights;
        double total = 0, wanted = 0, sum = 0;
        for (int r = 0; r < world; ++r) {
          weights.push_back(drawn == 0 ? 0 : static_cast<double>(random() % 5));
          total += weights.back();
        }
        const std::string what = fmt::format("world {}, weights {}, the total is {}", world,
                                             weights, known ? "known" : "not known");
        ask(what);
        for (int r = 0; r < world; ++r) {
          const double w = weights[static_cast<std::size_t>(r)];
          const double gradient = std::sin(r + 10 * drawn + 1);
          const double its = seed(w, known ? std::optional(total) : std::nullopt);
          if (w == 0 && its != 0)
            return fmt::format("{}: rank {} has no rows, and seeds {} instead of 0", what, r, its);
          sum += its * gradient;
          wanted += total > 0 ? w * gradient / total : 0;
        }
        const double factor = scale(weights, known);
        if (known && total > 0 && factor != 1)
          return fmt::format("{}: nothing may be left to do, the scale is {}", what, factor);
        if (total == 0 && factor != 0)
          return fmt::format("{}: there is no mean, the scale is {} instead of 0", what, factor);
        if (!near(sum * factor, wanted))
          return fmt::format("{}: the mean is {}, yours gives {}", what, wanted, sum * factor);
      }
  return "";
}

std::string check_batch_norm(
    const std::function<Statistics(const std::vector<Statistics>&)>& merge) {
  if (merge({}).count < 0) return not_written;
  std::mt19937 random(4);
  for (const double mean : {0.0, 1e6})
    for (const int world : {1, 2, 3, 4, 7})
      for (int drawn = 0; drawn < 20; ++drawn) {
        std::vector<Statistics> ranks;
        std::vector<double> all;
        for (int r = 0; r < world; ++r) {
          std::vector<double> rows(drawn == 0 ? 0 : random() % 4);
          for (double& x : rows) x = mean + static_cast<double>(random() % 1000) / 100;
          Statistics own{static_cast<double>(rows.size()), 0, 0};
          for (const double x : rows) own.mean += x / own.count;
          for (const double x : rows) own.m2 += (x - own.mean) * (x - own.mean);
          ranks.push_back(own);
          all.insert(all.end(), rows.begin(), rows.end());
        }
        Statistics right{static_cast<double>(all.size()), 0, 0};
        for (const double x : all) right.mean += x / right.count;
        for (const double x : all) right.m2 += (x - right.mean) * (x - right.mean);
        std::vector<double> counts;
        for (const Statistics& rank : ranks) counts.push_back(rank.count);
        const std::string what =
            fmt::format("world {}, rows {} with values near {}", world, counts, mean);
        ask(what);
        const Statistics found = merge(ranks);
        const auto differs = [&](const char* name, double it, double yours) {
          return fmt::format("{}: the {} is {}, yours gives {}", what, name, it, yours);
        };
        if (!(found.count == right.count)) return differs("count", right.count, found.count);
        if (!near(right.mean, found.mean)) return differs("mean", right.mean, found.mean);
        if (!(std::abs(right.m2 - found.m2) <= 1e-6 * std::max(1.0, right.m2)))
          return differs("M2", right.m2, found.m2);
      }
  return "";
}

namespace {

/// d(loss) / d(node i), the other way round: from the node forward to the loss.
double forward_derivative(const std::vector<Node>& nodes, std::size_t i) {
  std::vector<double> d(nodes.size(), 0.0);
  d[i] = 1;
  for (std::size_t k = i + 1; k < nodes.size(); ++k) {
    const Node& node = nodes[k];
    if (node.kind == Node::Kind::input) continue;
    const auto a = static_cast<std::size_t>(node.a), b = static_cast<std::size_t>(node.b);
    const bool product = node.kind == Node::Kind::multiply;
    d[k] = product ? d[a] * nodes[b].value + nodes[a].value * d[b] : d[a] + d[b];
  }
  return d.back();
}

struct Graph {
  std::vector<Node> nodes;
  std::string text;
};

template <class Random>
Graph drawn_graph(Random& random) {
  Graph graph;
  std::vector<std::string> text;
  const std::size_t inputs = 1 + random() % 3, size = inputs + 1 + random() % 6;
  for (std::size_t i = 0; i < size; ++i) {
    Node node{.value = 1 + static_cast<double>(random() % 5)};
    if (i >= inputs) {
      const std::size_t a = random() % i, b = random() % i;
      const double x = graph.nodes[a].value, y = graph.nodes[b].value;
      const bool sum = random() % 2 == 0;
      node = {sum ? Node::Kind::add : Node::Kind::multiply, static_cast<int>(a),
              static_cast<int>(b), sum ? x + y : x * y};
      text.push_back(fmt::format("{} {} {}", a, sum ? '+' : '*', b));
    } else {
      text.push_back(fmt::format("{}", node.value));
    }
    graph.nodes.push_back(node);
  }
  graph.text = fmt::format("nodes {}", text);
  return graph;
}

/// The gradients of the inputs by the library's own tape.
std::vector<double> library_gradients(const std::vector<Node>& nodes) {
  using namespace lockstep;
  Tape tape;
  std::vector<Tensor> values;
  std::vector<double> gradients;
  for (const Node& node : nodes)
    if (node.kind == Node::Kind::input) {
      values.push_back(tape.watch(Tensor::full({1}, node.value, DType::f64)));
    } else {
      const auto a = static_cast<std::size_t>(node.a), b = static_cast<std::size_t>(node.b);
      values.push_back(node.kind == Node::Kind::add ? values[a] + values[b]
                                                    : values[a] * values[b]);
    }
  tape.backward(values.back());
  for (std::size_t i = 0; i < nodes.size() && nodes[i].kind == Node::Kind::input; ++i) {
    const Tensor gradient = tape.gradient(values[i]);
    gradients.push_back(gradient.defined() ? gradient.item() : 0);
  }
  return gradients;
}

}  // namespace

std::string check_tape(
    const std::function<std::vector<double>(const std::vector<Node>&)>& backward) {
  if (backward({Node{}}).empty()) return not_written;
  std::mt19937 random(5);
  for (int drawn = 0; drawn < 200; ++drawn) {
    const Graph graph = drawn_graph(random);
    ask(graph.text);
    const std::vector<double> found = backward(graph.nodes);
    const std::vector<double> of_inputs = library_gradients(graph.nodes);
    if (found.size() != graph.nodes.size())
      return fmt::format("{}: {} gradients for {} nodes", graph.text, found.size(),
                         graph.nodes.size());
    for (std::size_t i = 0; i < found.size(); ++i) {
      const double right = i < of_inputs.size() ? of_inputs[i] : forward_derivative(graph.nodes, i);
      if (!near(found[i], right))
        return fmt::format("{}: node {} has gradient {}, yours gives {}", graph.text, i, right,
                           found[i]);
    }
  }
  return "";
}

namespace {

// "tape" and "nodes [1, ...]: ", where a signal's handler can read them at any time.
const char* exercise_name = "";
std::array<char, 512> asked{};

extern "C" void give_up(int) {
  for (const char* text : {exercise_name, ": ", static_cast<const char*>(asked.data()),
                           "no end after 10 s: a loop without one?\n"})
    (void)!::write(STDOUT_FILENO, text, std::strlen(text));
  ::_exit(1);
}

}  // namespace

void ask(const std::string& about) {
  fmt::format_to_n(asked.data(), asked.size() - 1, "{}: {}", about, '\0');
}

int tell(const char* name, const std::function<std::string()>& check) {
  exercise_name = name;
  asked[0] = 0;
  std::signal(SIGALRM, give_up);
  ::alarm(10);
  std::string problem;
  try {
    problem = check();
  } catch (...) {
    problem = fmt::format("{}it throws: {}", asked.data(), lockstep::current_message());
  }
  ::alarm(0);
  if (problem == not_written) problem += fmt::format(": fill the hole in exercises/{}.h", name);
  fmt::print("{}: {}\n", name, problem.empty() ? "right" : problem);
  return problem.empty() ? 0 : 1;
}

}  // namespace exercise
