// `./lockstep bench kernels`: every kernel at several sizes, with other libraries in the same run.
//
// Method: random data. A kernel, and every peer in this process, is first verified against a naive
// f64 computation (verify.h); a row that fails is an error. Then warm-up, and rounds in turns, ours
// and the peers', each of as many calls as take about 20 ms on a GPU (by events) and 50 ms on a
// processor's core; calls take turns among sets of tensors, 256 MiB together (but at most 64 sets),
// so that inputs come from memory, not from a cache. The median of the rounds is the figure, their
// minimum and maximum its spread. Bytes are the fewest that the operation can move (case.h).
// Ceilings are measured first: a copy of memory, and the best library's large product. "Predicted"
// are the microseconds that docs/predictions.md would say of a product on this GPU.

#include <fmt/format.h>

#include <map>
#include <memory>
#include <nlohmann/json.hpp>

#include "lockstep/launch/report.h"
#include "lockstep/tools/cli.h"
#include "measure.h"
#include "verify.h"

namespace bench {
namespace {

using namespace lockstep;
using nlohmann::ordered_json;

struct Options {
  cli::DeviceOptions device;
  std::string only, peer, python, json;
  bool quick = false, list = false;
};

std::optional<Options> parse(int argc, const char* const* argv) {
  Options o;
  cli::App app("Times every kernel, beside other libraries", "lockstep bench kernels");
  cli::add_options(app, o.device);
  app.add_option("--only", o.only,
                 "Only rows whose name contains this text, or one of several: sum,adam");
  app.add_flag("--quick", o.quick, "Small sizes and short rounds, to try it out");
  app.add_flag("--list", o.list, "Print the rows and do nothing");
  cli::Option peer = app.add_option("--peer", o.peer, "pytorch: also time its operations, in turns")
                         .check(cli::one_of({"pytorch"}));
  app.add_option("--python", o.python, "A Python with torch ($LOCKSTEP_PYTHON, python3)")
      .needs(peer);
  app.add_option("--json", o.json, "Write a machine-readable summary");
  if (!app.parse(argc, argv)) return {};
  cli::check_writable("--json", o.json);
  return o;
}

/// Rows with one of the comma-separated words in their names.
std::vector<Row> chosen_rows(Scale scale, const std::string& only) {
  std::vector<Row> result;
  for (Row& row : all_rows(scale)) {
    bool wanted = only.empty();
    for (std::size_t begin = 0; !wanted && begin < only.size();) {
      const std::size_t end = std::min(only.find(',', begin), only.size());
      wanted = row.name.find(only.substr(begin, end - begin)) != std::string::npos;
      begin = end + 1;
    }
    if (wanted) result.push_back(std::move(row));
  }
  check<UsageError>(!result.empty(), "--only {}: no row has such a name (see --list)", only);
  return result;
}

/// Per second: bytes copied, and operations of the best library's products by precision.
struct Ceilings {
  double copy;
  std::map<std::string, std::optional<double>> product;

  std::optional<double> of(const Row& row) const {
    return row.precision.empty() ? copy : product.at(row.precision);
  }
};

Ceilings measure_ceilings(const std::vector<Row>& rows, const Method& method, Scale scale) {
  Ceilings result{copy_bytes_per_second(method, scale), {}};
  for (const Row& row : rows)
    if (!row.precision.empty() && !result.product.contains(row.precision))
      result.product[row.precision] = product_flops(row.precision, method, scale);
  return result;
}

/// Three digits, or all those before the point.
std::string short_number(double value) {
  return fmt::format("{:.{}f}", value, value < 10 ? 2 : value < 100 ? 1 : 0);
}

/// "127 GB/s", "1.20 TFLOP/s".
std::string rate_text(const Row& row, double per_second) {
  const bool tera = per_second >= 1e12;
  return fmt::format("{} {}{}", short_number(per_second * (tera ? 1e-12 : 1e-9)), tera ? 'T' : 'G',
                     row.precision.empty() ? "B/s" : "FLOP/s");
}

// A Markdown table, so that it can be read here and put into a document.
void print_heading() {
  fmt::print("| {:<22} | {:>18} | {:>9} | {:>9} | {:>19} | {:>12} | {:>7} | {} |\n", "kernel",
             "size", "us", "predicted", "min..max", "rate", "ceiling", "others take");
  fmt::print("|{:-<24}|{:->19}:|{:->10}:|{:->10}:|{:->20}:|{:->13}:|{:->8}:|{:-<13}|\n", "", "", "",
             "", "", "", "", "");
}

/// On the GPU that is timed, if there is a prediction for it.
std::optional<double> predicted_on(const Device& device, const Row& row, const Size& size) {
  if (device.kind == Device::Kind::cpu || !row.predicted) return {};
  return row.predicted(size, gpu::describe(device.index));
}

void print_row(const Row& row, const Size& size, const Measurement& m,
               std::optional<double> ceiling, std::optional<double> predicted) {
  const double rate = work_of(row, size) / (m.ours.median() * 1e-6);
  std::string others;
  for (const Figures& peer : m.peers)
    others += fmt::format("{}{} {} us ({:.2f}x)", others.empty() ? "" : ", ",
                          peer.name.substr(0, peer.name.find(' ')),  // without its version
                          short_number(peer.median()), peer.median() / m.ours.median());
  fmt::print(
      "| {:<22} | {:>18} | {:>9} | {:>9} | {:>19} | {:>12} | {:>7} | {} |\n", row.name, size.text(),
      short_number(m.ours.median()), predicted ? short_number(*predicted) : std::string(),
      fmt::format("{}..{}", short_number(m.ours.min()), short_number(m.ours.max())),
      rate_text(row, rate), ceiling ? fmt::format("{:.0f} %", 100 * rate / *ceiling) : "", others);
  std::fflush(stdout);
}

ordered_json row_json(const Row& row, const Size& size, const Measurement& m,
                      std::optional<double> ceiling, std::optional<double> predicted) {
  const double rate = work_of(row, size) / (m.ours.median() * 1e-6);
  ordered_json json{{"kernel", row.name},
                    {"size", size.text()},
                    {row.precision.empty() ? "bytes" : "flops", work_of(row, size)},
                    {"sets_of_tensors", m.cases}};
  json.update(m.ours.json());
  json.erase("name");
  json[row.precision.empty() ? "gb_per_s" : "tflop_per_s"] =
      rate * (row.precision.empty() ? 1e-9 : 1e-12);
  if (predicted) json["predicted_us"] = *predicted;
  json["share_of_ceiling"] = ceiling ? ordered_json(rate / *ceiling) : ordered_json();
  json["peers"] = ordered_json::array();
  for (const Figures& peer : m.peers) {
    json["peers"].push_back(peer.json());
    json["peers"].back()["ratio"] = peer.median() / m.ours.median();
  }
  return json;
}

std::unique_ptr<Peer> start_pytorch(const Options& o, Device device) {
  if (o.peer.empty()) return nullptr;
  const std::string python = find_python(o.python);
  check<UsageError>(!python.empty(), "--peer pytorch: '{}' cannot import torch",
                    o.python.empty() ? "python3" : o.python);
  return std::make_unique<Peer>(std::vector<std::string>{
      python, LOCKSTEP_PEER_SCRIPTS "/pytorch_kernels.py", device.to_string()});
}

/// A simulator's times say nothing about a GPU's.
Device timed_device(const Options& o) {
  check<UsageError>(o.device.device != "sim",
                    "--device sim: times in the simulator mean nothing; cpu or cuda");
  return o.device.choose(0);
}

/// Prints what all rows are compared with, and returns the JSON to which rows are added.
ordered_json begin_report(const Method& method, const Ceilings& ceilings, bool quick) {
  const bool on_gpu = method.device.kind != Device::Kind::cpu;
  const std::string device = on_gpu ? gpu::describe(method.device.index) : "cpu, one core";
  fmt::print("{} | ceilings: copy {} GB/s (read + write)", device,
             short_number(ceilings.copy * 1e-9));
  ordered_json products = ordered_json::object();
  for (const auto& [precision, flops] : ceilings.product) {
    products[precision] = flops ? ordered_json(*flops * 1e-12) : ordered_json();
    if (flops) fmt::print(", {} product {} TFLOP/s", precision, short_number(*flops * 1e-12));
  }
  if (method.pytorch) fmt::print(" | {}", method.pytorch->name());
  fmt::print("\n\n");
  print_heading();
  return {{"device", device},
          {"quick", quick},
          {"rounds", method.rounds},
          {"copy_gb_per_s", ceilings.copy * 1e-9},
          {"best_library_tflop_per_s", products},
          {"rows", ordered_json::array()}};
}

/// What the row adds to the JSON; for a row that computes something else or fails, why.
ordered_json time_row(const Row& row, const Size& size, const Method& method,
                      const Ceilings& ceilings) {
  try {
    const Measurement m = measure(row, size, method);
    const std::optional<double> predicted = predicted_on(method.device, row, size);
    print_row(row, size, m, ceilings.of(row), predicted);
    return row_json(row, size, m, ceilings.of(row), predicted);
  } catch (const Error& error) {
    fmt::print("| {:<22} | {:>18} | FAILED |\n", row.name, size.text());
    fmt::print(stderr, "{} {}: {}\n", row.name, size.text(), error.what());
    return {{"kernel", row.name}, {"size", size.text()}, {"error", error.what()}};
  }
}

int run(int argc, char** argv) {
  const std::optional<Options> parsed = parse(argc, argv);
  if (!parsed) return 0;
  const Options& o = *parsed;
  const Device device = timed_device(o);
  const bool on_gpu = device.kind != Device::Kind::cpu;
  const Scale scale{.on_gpu = on_gpu, .quick = o.quick};
  const std::vector<Row> rows = chosen_rows(scale, o.only);
  if (o.list) {
    for (const Row& row : rows)
      for (const Size& size : row.sizes) fmt::print("{} {}\n", row.name, size.text());
    return 0;
  }
  if (!on_gpu && o.device.device.empty())
    fmt::print("no GPU here: the processor's kernels, one core, against Eigen and oneDNN\n");

  Method method{.device = device, .round_seconds = on_gpu ? 0.02 : 0.05};
  if (o.quick) method.round_seconds = 0.001, method.rotated_bytes = 1 << 20;
  const std::unique_ptr<Peer> pytorch = start_pytorch(o, device);
  method.pytorch = pytorch.get();
  const Ceilings ceilings = measure_ceilings(rows, method, scale);
  ordered_json json = begin_report(method, ceilings, o.quick);
  // A wrong row does not keep the others from being measured.
  int failures = 0;
  for (const Row& row : rows)
    for (const Size& size : row.sizes) {
      json["rows"].push_back(time_row(row, size, method, ceilings));
      failures += json["rows"].back().contains("error");
    }
  if (!o.json.empty()) cli::write_json(o.json, json);
  check<Error>(failures == 0, "{} of {} rows failed", failures, json["rows"].size());
  return 0;
}

}  // namespace
}  // namespace bench

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return bench::run(argc, argv); });
}
