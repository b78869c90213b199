// kernel_counts [NAME...]: counts what kernels do to memory, in the simulator (docs/counters.md),
// and predicts what they take on a GPU (docs/predictions.md).
#include <fmt/format.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "lockstep/core/error.h"
#include "lockstep/core/system/atomic_file.h"
#include "lockstep/launch/report.h"
#include "lockstep/tools/cli.h"
#include "lockstep/tools/counts/predicted.h"
#include "lockstep/tools/counts/text.h"
#include "lockstep/tools/facts/text.h"

namespace {

using namespace lockstep;

void write(const std::vector<counts::Counted>& all) {
  const std::filesystem::path root = LOCKSTEP_SOURCE_DIR;
  for (const auto& [source, statement] : counts::statements(all))
    write_file(root / source, counts::with_statement(facts::read_file(root / source), statement));
  write_file(root / "docs/counters.md", counts::document(all));
  write_file(root / "docs/predictions.md",
             predict::document(counts::softmax_readings(all),
                               facts::read_file(root / "docs/benchmarks.md")));
}

int run(int argc, char** argv) {
  std::vector<std::string> names;
  std::string json, trace, gpu, product;
  bool lines = false, to_sources = false;
  cli::App app("Counts what kernels do to memory, in the simulator.", "lockstep count");
  app.add_option("names", names, "operations, as in softmax or 'gemm*' (default: all)");
  app.add_option("--json", json, "also write all figures to this file");
  app.add_option("--trace", trace, "also write to this file which lane accesses what");
  app.add_flag("--lines", lines, "also name the lines of sources that waste something");
  const cli::Option predicts =
      app.add_option("--predict", gpu, "predict times on this GPU instead: A6000, H100, ...");
  app.add_option("--product", product, "of a product alone, as in 4096x4096x1024 or '... NT'")
      .needs(predicts);
  app.add_flag("--write", to_sources,
               "write docs/counters.md, docs/predictions.md and the comments of kernels' files");
  if (!app.parse(argc, argv)) return 0;
  check<UsageError>(!to_sources || names.empty(), "--write takes no names: it writes of all");
  cli::check_writable("--json", json);
  cli::check_writable("--trace", trace);
  if (!gpu.empty()) (void)predict::gpu_named(gpu);
  if (!product.empty()) {
    fmt::print("{}\n", counts::predicted_product(product, predict::gpu_named(gpu)));
    return 0;
  }
  const std::vector<counts::Counted> all = counts::count(counts::chosen(names));
  fmt::print("{}\n", gpu.empty() ? counts::table(all)
                                 : counts::predicted_table(all, predict::gpu_named(gpu)));
  if (lines) fmt::print("{}", counts::wasteful_lines(all));
  if (!json.empty()) cli::write_json(json, counts::to_json(all));
  if (!trace.empty()) cli::write_json(trace, counts::trace_of(all));
  if (to_sources) write(all);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return lockstep::run_main([&] { return run(argc, argv); });
}
