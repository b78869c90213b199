// `./lockstep bench functions`: the functions that programs call, one by one, beside PyTorch's.
//
// The rows are the expressions of test/vocabulary/expressions.inc, whose values and gradients the
// tests compare with PyTorch's; here on larger operands, in f32, one thread on either side. A row
// is timed when both values are equal. Then 9 rounds in turns, each of as many calls as take
// about 10 ms; the median of the rounds is the figure. Sorted by the ratio, the worst first.

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "figures.h"
#include "kernels/clock.h"
#include "lockstep/launch/report.h"
#include "lockstep/lockstep.h"
#include "lockstep/tools/cli.h"
#include "peer.h"

namespace bench {
namespace {

using namespace lockstep;
using nlohmann::ordered_json;

struct Options {
  std::string only, python, json;
  std::int64_t rows = 1024, columns = 1024;
  bool quick = false, list = false;
};

std::optional<Options> parse(int argc, const char* const* argv) {
  Options o;
  cli::App app("Times functions of tensors beside PyTorch's, one thread each",
               "lockstep bench functions");
  app.add_option("--only", o.only, "Only expressions of PyTorch's that contain this text");
  app.add_option("--rows", o.rows, "Rows of the operands");
  app.add_option("--columns", o.columns, "Columns of the operands");
  app.add_flag("--quick", o.quick, "Short rounds, to try it out");
  app.add_flag("--list", o.list, "Print the expressions and do nothing");
  app.add_option("--python", o.python, "A Python with torch ($LOCKSTEP_PYTHON, python3)");
  app.add_option("--json", o.json, "Write a machine-readable summary");
  if (!app.parse(argc, argv)) return {};
  cli::check_writable("--json", o.json);
  check<UsageError>(o.rows >= 4 && o.columns >= 4, "--rows {} --columns {}: at least 4 each",
                    o.rows, o.columns);
  return o;
}

/// As peers/pytorch_functions.py draws it.
double draw(std::int64_t seed, std::int64_t e) {
  return static_cast<double>((seed * 7919 + e * 104729 + 12345) % 10007) / 10007;
}

template <class T, class F>
Tensor drawn(std::int64_t seed, const Shape& shape, F value) {
  const Tensor result = Tensor::empty(shape, dtype_of<T>());
  for (std::int64_t e = 0; e < result.numel(); ++e)
    result.data<T>()[e] = static_cast<T>(value(draw(seed, e)));
  return result;
}

struct Operands {
  Operands(std::int64_t r, std::int64_t c) {
    const std::pair<const char*, Shape> shapes[] = {
        {"x", {r, c}}, {"y", {r, c}}, {"p", {r, c}}, {"q", {r, c}},    {"v", {c}},       {"u", {c}},
        {"w", {c, 4}}, {"k", {4, c}}, {"b", {4}},    {"t", {2, r, c}}, {"s", {2, c, r}}, {"z", {}}};
    std::int64_t seed = 0;
    for (const auto& [name, shape] : shapes) {
      const bool positive = *name == 'p' || *name == 'q';
      const double low = positive ? 0.3 : -2, width = positive ? 1.2 : 4;
      tensors[name] = drawn<float>(seed++, shape, [=](double d) { return low + width * d; });
    }
    const auto below = [](std::int64_t end) {
      return [=](double d) { return d * static_cast<double>(end); };
    };
    const auto small = [](double d) { return std::trunc(d * 15) - 7; };
    tensors["l"] = drawn<std::int64_t>(20, {r}, below(c));
    tensors["i"] = drawn<std::int64_t>(21, {4}, below(r));
    tensors["j"] = drawn<std::int64_t>(22, {r, 2}, below(c));
    tensors["n"] = drawn<std::int64_t>(30, {r, c}, small);
    tensors["d"] =
        drawn<std::int64_t>(31, {r, c}, [&](double d) { return small(d) == 0 ? 3 : small(d); });
    tensors["m"] = drawn<std::uint8_t>(40, {r, c}, [](double d) { return d < 0.5; });
  }
  const Tensor& operator[](const char* name) const { return tensors.at(name); }

  std::map<std::string, Tensor> tensors{};
};

struct Function {
  std::string text;  // PyTorch's
  std::function<Tensor(const Operands&)> ours;
};

std::vector<Function> functions(const std::string& only) {
  std::vector<Function> table;
#define SAME(text, ...)                                                                   \
  table.push_back({text, [](const Operands& o) -> Tensor {                                \
                     [[maybe_unused]] const Tensor &x = o["x"], &y = o["y"], &p = o["p"], \
                                                   &q = o["q"], &v = o["v"], &u = o["u"], \
                                                   &w = o["w"], &k = o["k"], &b = o["b"], \
                                                   &t = o["t"], &s = o["s"], &z = o["z"], \
                                                   &l = o["l"], &i = o["i"], &j = o["j"], \
                                                   &n = o["n"], &d = o["d"], &m = o["m"]; \
                     return __VA_ARGS__;                                                  \
                   }});
#define MEAN SAME
#include "lockstep/test/vocabulary/expressions.inc"
  // What needs more elements than the tests want.
  SAME("F.one_hot(l, x.shape[1])", one_hot(l, x.size(1)))
  SAME("x.gather(1, n + 7)", gather(x, 1, n + 7))
  SAME("x[l]", index_select(x, 0, l))
  SAME("F.embedding(l, x)", embedding(x, l))
  SAME("F.batch_norm(x, None, None, v, u, training=True)", batch_norm(x, v, u, 1e-5))
  SAME("(torch.manual_seed(3), torch.rand(1 << 20))[1]", (manual_seed(3), Tensor::rand({1 << 20})))
  SAME("(torch.manual_seed(3), torch.randn(1 << 20))[1]",
       (manual_seed(3), Tensor::randn({1 << 20})))
  SAME("(torch.manual_seed(3), torch.randint(-2, 7, (1 << 20,)))[1]",
       (manual_seed(3), Tensor::randint(-2, 7, {1 << 20})))
  SAME("(torch.manual_seed(3), torch.randperm(1 << 20))[1]",
       (manual_seed(3), Tensor::randperm(1 << 20)))
#undef MEAN
#undef SAME
  const auto contains = [](const Function& f, const std::string& text) {
    return f.text.find(text) != std::string::npos;
  };
  std::erase_if(table, [&](const Function& f) {  // there are more labels than 9; f64 is not f32
    return !contains(f, only) || f.text == "F.one_hot(l, 9)" || contains(f, "float64");
  });
  check<UsageError>(!table.empty(), "--only {}: no expression contains that (see --list)", only);
  return table;
}

struct Row {
  std::string text;
  Figures ours, theirs;
  double ratio() const { return ours.median() / theirs.median(); }
};

/// Why the values differ, or nothing.
std::string difference(Peer& peer, const Function& function, const Tensor& value) {
  const std::filesystem::path file =
      std::filesystem::temp_directory_path() / fmt::format("lockstep-functions-{}", ::getpid());
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(value.raw()), static_cast<long>(value.bytes()));
  const std::string answer =
      peer.ask(fmt::format("case {} {} {}", value.dtype(), file.string(), function.text), "case");
  std::filesystem::remove(file);
  return answer == "equal" ? "" : answer;
}

Row timed(Peer& peer, const Function& function, const Operands& operands, bool quick) {
  const int rounds = quick ? 1 : 9;
  const double seconds = quick ? 1e-4 : 0.01;
  const auto run = [&](long) { static_cast<void>(function.ours(operands)); };
  const long calls = calls_for({}, seconds, run);
  const long peer_calls = std::clamp(std::lround(seconds * 1e6 / peer.round(2)), 1L, 10000L);
  Row row{function.text, {"Lockstep", {}}, {peer.name(), {}}};
  for (int round = 0; round < rounds; ++round) {
    row.ours.rounds.push_back(time_calls({}, calls, run));
    row.theirs.rounds.push_back(peer.round(peer_calls));
  }
  return row;
}

/// Three digits, or all those before the point.
std::string short_number(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

int run(int argc, char** argv) {
  const std::optional<Options> parsed = parse(argc, argv);
  if (!parsed) return 0;
  const Options& o = *parsed;
  const std::vector<Function> table = functions(o.only);
  if (o.list) {
    for (const Function& function : table) fmt::print("{}\n", function.text);
    return 0;
  }
  const std::string python = find_python(o.python);
  check<UsageError>(!python.empty(), "'{}' cannot import torch",
                    o.python.empty() ? "python3" : o.python);
  Peer peer({python, LOCKSTEP_PEER_SCRIPTS "/pytorch_functions.py", std::to_string(o.rows),
             std::to_string(o.columns)});
  const Operands operands(o.rows, o.columns);
  std::vector<Row> rows;
  int failures = 0;
  for (const Function& function : table) {
    const std::string why = difference(peer, function, function.ours(operands));
    if (why.empty()) {
      rows.push_back(timed(peer, function, operands, o.quick));
    } else {
      fmt::print(stderr, "{}: {}\n", function.text, why);
      ++failures;
    }
  }
  std::ranges::sort(rows, std::greater<>(), &Row::ratio);
  fmt::print("cpu, one thread | {} | x ({}, {}) f32\n\n", peer.name(), o.rows, o.columns);
  fmt::print("| PyTorch's expression | Lockstep us | PyTorch us | ratio |\n|---|---:|---:|---:|\n");
  ordered_json json{{"peer", peer.name()}, {"rows", o.rows}, {"columns", o.columns}};
  for (const Row& row : rows) {
    std::string text = row.text;  // a bar would end the cell
    for (std::size_t at = 0; (at = text.find('|', at)) != std::string::npos; at += 2)
      text.insert(at, "\\");
    fmt::print("| `{}` | {} | {} | {:.2f} |\n", text, short_number(row.ours.median()),
               short_number(row.theirs.median()), row.ratio());
    json["functions"].push_back({{"function", row.text},
                                 {"ratio", row.ratio()},
                                 {"contenders", {row.ours.json(), row.theirs.json()}}});
  }
  if (!o.json.empty()) cli::write_json(o.json, json);
  std::fflush(stdout);
  check<Error>(failures == 0, "{} of {} expressions differ", failures, table.size());
  return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return bench::run(argc, argv); });
}
