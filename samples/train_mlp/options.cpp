#include "options.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>

#include "lockstep/dist/environment.h"
#include "lockstep/tools/cli.h"

namespace train_mlp {
namespace {

using lockstep::check;
using lockstep::UsageError;

void check_positive(std::string_view name, double value) {
  check<UsageError>(std::isfinite(value) && value > 0, "{} must be positive, got {}", name, value);
}

void check_not_negative(std::string_view name, const std::optional<double>& value) {
  check<UsageError>(!value || (std::isfinite(*value) && *value >= 0),
                    "{} must be 0 or more, got {}", name, value.value_or(0));
}

// A result that cannot be written should be known before the training, not after it.
void check_writable(std::string_view name, const std::string& path) {
  if (path.empty()) return;
  namespace fs = std::filesystem;
  check<UsageError>(!fs::exists(path) || ::access(path.c_str(), W_OK) == 0,
                    "{} '{}' is there and not writable", name, path);
  const fs::path parent = fs::absolute(path).parent_path();
  check<UsageError>(!fs::is_directory(path), "{} '{}' is a folder", name, path);
  check<UsageError>(fs::is_directory(parent), "{} '{}': there is no folder '{}'", name, path,
                    parent.string());
  check<UsageError>(::access(parent.c_str(), W_OK) == 0, "{} '{}': the folder is not writable",
                    name, path);
}

void validate(const Options& o) {
  check<UsageError>(o.epochs > 0, "--epochs must be positive, got {}", o.epochs);
  check<UsageError>(o.batch > 0, "--batch must be positive, got {}", o.batch);
  check<UsageError>(!o.ranks || (*o.ranks > 0 && *o.ranks <= lockstep::dist::max_ranks),
                    "--ranks must be in 1..{}, got {}", lockstep::dist::max_ranks,
                    o.ranks.value_or(0));
  if (o.lr) check_positive("--lr", *o.lr);
  check_not_negative("--momentum", o.momentum);
  check<UsageError>(!o.momentum || o.optimizer == "sgd",
                    "--momentum {} is for --optimizer sgd, not {}", o.momentum.value_or(0),
                    o.optimizer);
  check_not_negative("--weight-decay", o.weight_decay);
  check_positive("--timeout", o.timeout);
  check_positive("--bucket-cap-mb", o.bucket_cap_mb);
}

}  // namespace

void check_outputs(const Options& o) {
  check_writable("--checkpoint", o.checkpoint);
  check<UsageError>(
      !std::filesystem::exists(o.checkpoint) || std::filesystem::is_regular_file(o.checkpoint),
      "--checkpoint '{}' is there and is no regular file", o.checkpoint);
  check_writable("--json", o.json);
}

std::optional<Options> parse(int argc, const char* const* argv) {
  Options o;
  o.data = TRAIN_MLP_DIGITS;
  const CLI::Validator whole = lockstep::cli::whole_number();
  CLI::App app("Trains an MLP on handwritten digits, data-parallel", "lockstep train");
  std::string layers;
  app.add_option("--layers", layers, "Widths, input to output (INPUT,128,64,10)");
  app.add_option("--epochs", o.epochs, "Passes over the training set (30)")->check(whole);
  app.add_option("--batch", o.batch, "Samples per rank and step (32)")->check(whole);
  app.add_option("--optimizer", o.optimizer, "sgd, adam or adamw (sgd)")
      ->check(CLI::IsMember({"sgd", "adam", "adamw"}));
  app.add_option("--lr", o.lr, "Learning rate (sgd 0.1, adam and adamw 0.001)");
  app.add_option("--momentum", o.momentum, "Momentum, sgd only (0.9)");
  app.add_option("--weight-decay", o.weight_decay, "Weight decay (0; adamw 0.01)");
  app.add_option("--seed", o.seed, "Of the weights and the order of samples (0)")
      ->check(lockstep::cli::whole_number<std::uint64_t>());
  app.add_option("--data", o.data, "Folder of MNIST-format IDX files (the digits in samples/data)");
  bool no_shuffle = false;
  app.add_flag("--no-shuffle", no_shuffle, "Keep the samples in the order of the files");
  app.add_flag("--padded", o.padded, "Pad the shards to equal sizes, as PyTorch's sampler does");
  app.add_option("--ranks", o.ranks, "Replicas (2; in a launcher's world: its size)")
      ->check(lockstep::cli::whole_number<int>());
  lockstep::cli::add_options(app, o.device);
  app.add_option("--comm", o.comm, "auto, ring or direct (auto)")
      ->check(CLI::IsMember({"auto", "ring", "direct"}));
  app.add_option("--transport", o.transport, "shm, tcp or threads (shm; several machines: tcp)")
      ->check(CLI::IsMember({"shm", "tcp", "threads"}));
  app.add_option("--timeout", o.timeout, "Seconds without progress until a collective fails (60)");
  app.add_option("--bucket-cap-mb", o.bucket_cap_mb, "MiB of gradients per bucket (25)");
  app.add_option("--checkpoint", o.checkpoint, "Write the trained model, as safetensors");
  app.add_option("--json", o.json, "Write a machine-readable summary");
  if (!lockstep::cli::parse(app, argc, argv)) return {};
  (void)o.device.choose(0);  // better now than in every rank
  o.shuffle = !no_shuffle;
  if (app.count("--layers")) o.layers = lockstep::cli::widths("--layers", layers);
  validate(o);
  return o;
}

}  // namespace train_mlp
