#include "options.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <filesystem>

#include "lockstep/core/lanes.h"
#include "lockstep/core/system/file_kind.h"
#include "lockstep/tools/cli.h"

namespace train_mlp {
namespace {

using lockstep::check;
using lockstep::UsageError;
using lockstep::dist::Deterministic;

void check_positive(std::string_view name, double value) {
  check<UsageError>(value > 0, "{} must be positive, got {}", name, value);
}

void check_not_negative(std::string_view name, const std::optional<double>& value) {
  check<UsageError>(!value || *value >= 0, "{} must be 0 or more, got {}", name, value.value_or(0));
}

// What belongs to one rank alone would be lost with it.
void check_survivable(const Options& o) {
  check<UsageError>(o.lanes != 0,
                    "--survive needs --lanes: without, the result depends on the ranks left");
  const std::pair<const char*, bool> refused[] = {
      {"--shard-optimizer", o.shard_optimizer},
      {"--transport threads", o.transport == "threads"},
      {"--transport ipc", o.transport == "ipc"},
      {"--comm mpi", o.comm == "mpi"},
      {"--comm nccl", o.comm.starts_with("nccl")},
      {"--trace", !o.trace.empty()},
      {"--hash-trace", !o.hash_trace.empty()},
      {"--checkpoint-async", o.checkpoint_async},
  };
  for (const auto& [option, given] : refused)
    check<UsageError>(!given, "--survive and {}: that cannot go on without a rank", option);
}

void validate(const Options& o) {
  check<UsageError>(o.epochs > 0, "--epochs must be positive, got {}", o.epochs);
  check<UsageError>(o.batch > 0, "--batch must be positive, got {}", o.batch);
  check<UsageError>(o.lanes == 0 || !o.padded,
                    "--lanes {} and --padded: lanes take every sample once", o.lanes);
  if (o.lanes != 0) (void)lockstep::lanes_of({}, o.lanes);
  if (o.survive) check_survivable(o);
  check<UsageError>(o.survive || o.respawn == 0, "--respawn {} needs --survive", o.respawn);
  check<UsageError>(o.respawn >= 0, "--respawn must be 0 or more, got {}", o.respawn);
  check<UsageError>(o.audit >= 0, "--audit must be 0 or more, got {}", o.audit);
  check<UsageError>(o.audit == 0 || o.lanes != 0,
                    "--audit needs --lanes: without, no rank gets the bits of another one");
  check<UsageError>(
      o.ddp.deterministic < Deterministic::machine ||
          (o.precision.name == "f32" && o.device.device != "sim" && o.device.device != "cuda"),
      "--deterministic machine takes f32 on the cpu, not --precision {} on {}", o.precision.name,
      o.device.device.empty() ? "cpu" : o.device.device);
  if (o.lr) check_positive("--lr", *o.lr);
  check_not_negative("--momentum", o.momentum);
  check<UsageError>(!o.momentum || o.optimizer == "sgd" || o.optimizer == "rmsprop",
                    "--momentum {} is for --optimizer sgd or rmsprop, not {}",
                    o.momentum.value_or(0), o.optimizer);
  check_not_negative("--weight-decay", o.weight_decay);
  check_positive("--bucket-cap-mb", o.ddp.bucket_cap_mb);
  check_positive("--first-bucket-mb", o.ddp.first_bucket_mb);
  check_positive("--last-bucket-mb", o.ddp.last_bucket_mb);
  check<UsageError>(!o.hash_values || !o.hash_trace.empty(),
                    "--hash-values needs --hash-trace FILE");
  check<UsageError>(o.keep > 0, "--keep must be positive, got {}", o.keep);
  check<UsageError>(!o.checkpoint.empty() || (o.checkpoint_every == 0 && !o.checkpoint_async &&
                                              o.keep == 1 && !o.resume),
                    "--checkpoint-every, --checkpoint-async, --keep and --resume need --checkpoint "
                    "FILE");
}

// "12:37": the 37th record of step 12.
lockstep::dist::HashTraceOptions::Record record_of(const std::string& text) {
  lockstep::dist::HashTraceOptions::Record result{};
  const char* const end = text.data() + text.size();
  const auto step = std::from_chars(text.data(), end, result.step);
  const bool colon = step.ec == std::errc() && step.ptr != end && *step.ptr == ':';
  const auto record = std::from_chars(colon ? step.ptr + 1 : end, end, result.record);
  check<UsageError>(
      record.ec == std::errc() && record.ptr == end && result.step > 0 && result.record > 0,
      "--hash-values '{}' is not STEP:RECORD, as ./lockstep diff names it", text);
  return result;
}

// Where a path leads: its folder, which may have several names, and the file's name.
bool same_file(const std::string& a, const std::string& b) {
  namespace fs = std::filesystem;
  const fs::path first = fs::absolute(lockstep::follow_links(a).value_or(a));
  const fs::path second = fs::absolute(lockstep::follow_links(b).value_or(b));
  std::error_code error;
  return first.filename() == second.filename() &&
         fs::equivalent(first.parent_path(), second.parent_path(), error);
}

}  // namespace

bool as_published(const Options& o) {
  const Options defaults;
  return o.ddp.deterministic == Deterministic::machine && o.layers.empty() && !o.resume &&
         o.data == LOCKSTEP_SAMPLES_DATA "/digits" && o.shuffle && o.lanes == 8 &&
         o.epochs == defaults.epochs && o.batch == defaults.batch && o.seed == defaults.seed &&
         o.optimizer == defaults.optimizer && !o.lr && !o.momentum && !o.weight_decay;
}

void check_files(const Options& o) {
  const std::pair<const char*, const std::string*> files[] = {{"--checkpoint", &o.checkpoint},
                                                              {"--save-model", &o.save_model},
                                                              {"--hash-trace", &o.hash_trace},
                                                              {"--json", &o.json}};
  for (int age = 1; age < o.keep && !o.checkpoint.empty(); ++age)
    check<UsageError>(
        o.save_model.empty() || !same_file(o.save_model, fmt::format("{}.{}", o.checkpoint, age)),
        "--save-model '{}' is where --keep {} keeps an older checkpoint", o.save_model, o.keep);
  for (const auto& [name, path] : files) {
    if (path->empty()) continue;
    for (const auto& [other, its_path] : files)
      check<UsageError>(other == name || its_path->empty() || !same_file(*path, *its_path),
                        "{} '{}' and {} '{}' are the same file", name, *path, other, *its_path);
    if (path == &o.json) continue;  // which may be a pipe
    lockstep::cli::check_writable(name, *path);
    const lockstep::FileKind kind = lockstep::kind_of_file(*path);
    check<UsageError>(kind == lockstep::FileKind::none || kind == lockstep::FileKind::file,
                      "{} '{}' is {}, not a regular file", name, *path, lockstep::name_of(kind));
  }
}

std::optional<Options> parse(int argc, const char* const* argv) {
  Options o;
  o.data = LOCKSTEP_SAMPLES_DATA "/digits";
  const lockstep::cli::Check whole = lockstep::cli::whole_number(),
                             number = lockstep::cli::number();
  lockstep::cli::App app("Trains an MLP on handwritten digits, data-parallel", "lockstep train");
  std::string layers;
  app.add_option("--layers", layers,
                 "Widths, input to output (default: the data's width,128,64,10)");
  app.add_option("--epochs", o.epochs, "Passes over the training set (30)").check(whole);
  app.add_option("--batch", o.batch, "Samples per rank and step (32)").check(whole);
  app.add_option("--lanes", o.lanes,
                 "Train with the same bits on any number of ranks: batches, now of all ranks "
                 "together, are cut into so many lanes, a power of two (none)")
      .check(lockstep::cli::whole_number<int>());
  app.add_flag("--survive", o.survive,
               "Go on without ranks that are killed or hang, with the same result; needs --lanes");
  app.add_option("--respawn", o.respawn, "With --survive: replace so many of those ranks (0)")
      .check(lockstep::cli::whole_number<int>());
  app.add_option("--audit", o.audit,
                 "In every N-th step each rank computes a part of another rank's step again. A bit "
                 "that differs ends the run, or with --survive the rank; needs --lanes (never)")
      .check(whole);
  app.add_option("--optimizer", o.optimizer, "sgd, adam, adamw, rmsprop or lion (sgd)")
      .check(lockstep::cli::one_of({"sgd", "adam", "adamw", "rmsprop", "lion"}));
  app.add_option("--lr", o.lr, "Learning rate (sgd 0.1, lion 0.0003, others 0.001)").check(number);
  app.add_option("--momentum", o.momentum, "Momentum, of sgd (0.9) and rmsprop (0)").check(number);
  app.add_option("--weight-decay", o.weight_decay, "Weight decay (0; adamw 0.01)").check(number);
  app.add_option("--seed", o.seed, "Seed of the weights and of the order of samples (0)")
      .check(lockstep::cli::whole_number<std::uint64_t>());
  app.add_option("--data", o.data, "Folder of MNIST-format IDX files (the digits in samples/data)");
  bool no_shuffle = false;
  app.add_flag("--no-shuffle", no_shuffle, "Keep the samples in the order of the files");
  app.add_flag("--padded", o.padded, "Pad the shards to equal sizes, as PyTorch's sampler does");
  bool no_record = false;
  app.add_flag("--no-record", no_record,
               "On a GPU: enqueue each step anew, where it would be recorded once and replayed");
  lockstep::samples::add_options(app, o, "2; in a launcher's world: its size");
  app.add_option("--bucket-cap-mb", o.ddp.bucket_cap_mb,
                 fmt::format("MiB of gradients per bucket ({})", o.ddp.bucket_cap_mb))
      .check(number);
  app.add_option("--first-bucket-mb", o.ddp.first_bucket_mb,
                 fmt::format("MiB at which the first bucket is closed, so that the link starts "
                             "early ({})",
                             o.ddp.first_bucket_mb))
      .check(number);
  app.add_option("--last-bucket-mb", o.ddp.last_bucket_mb,
                 fmt::format("MiB that the last bucket holds at least: nothing hides it ({})",
                             o.ddp.last_bucket_mb))
      .check(number);
  app.add_option(
         "--plan", o.plan,
         "Order of the buckets: registration, or ready, as the gradients of the first step became "
         "ready (ready)")
      .check(lockstep::cli::one_of({"registration", "ready"}));
  app.add_option("--hook", o.hook, "Gradients travel as bf16 or f16 (none)")
      .check(lockstep::cli::one_of({"none", "bf16", "f16"}));
  lockstep::cli::add_options(app, o.precision);
  app.add_flag("--shard-optimizer", o.shard_optimizer,
               "Each rank keeps and steps its part of the optimizer's state (ZeRO, stage 1)");
  app.add_option("--trace", o.trace,
                 "Write what each rank computes, sends and waits for into this folder, for "
                 "./lockstep trace and ui.perfetto.dev");
  app.add_option("--hash-trace", o.hash_trace,
                 "Write a hash of every result into FILE, those of rank N into FILE.N, for "
                 "./lockstep diff");
  std::string hash_values;
  app.add_option("--hash-values", hash_values,
                 "STEP:RECORD, of which the values are written, too: ./lockstep diff asks for it");
  app.add_option("--metrics", o.metrics,
                 "Write losses, accuracy, speed and learning rate into this folder: metrics.csv, "
                 "and a file for TensorBoard");
  app.add_option(
      "--checkpoint", o.checkpoint,
      "Write all that --resume needs to go on: at the end, and as --checkpoint-every says");
  app.add_option("--checkpoint-every", o.checkpoint_every, "Steps from one checkpoint to the next")
      .check(whole);
  app.add_flag("--checkpoint-async", o.checkpoint_async,
               "Train on while a thread writes a copy of the state");
  app.add_option("--keep", o.keep, "Checkpoints: FILE, the one before as FILE.1, ... (1)")
      .check(whole);
  app.add_flag("--resume", o.resume, "Go on from the checkpoint; begin if there is none");
  app.add_option("--save-model", o.save_model,
                 "Write the trained model alone, as PyTorch's safetensors");
  std::string level = "run";
  app.add_option("--deterministic", level,
                 "The same bits: run, of the same command again; layout, also for any buckets and "
                 "transport; world, also on any number of ranks (with 8 lanes, if --lanes names "
                 "none); machine, also on any x86-64 processor with AVX2 (run)")
      .check(lockstep::cli::one_of({"run", "layout", "world", "machine"}));
  if (!lockstep::samples::parse(app, o, argc, argv)) return {};
  o.ddp.deterministic =
      static_cast<Deterministic>(std::ranges::find(lockstep::dist::deterministic_names, level) -
                                 lockstep::dist::deterministic_names.begin());
  const bool on_gpu = !o.device.device.empty() && o.device.device != "cpu";
  const bool in_tree = o.ddp.deterministic >= Deterministic::layout || (on_gpu && o.lanes != 0);
  if (in_tree && o.comm == "auto") o.comm = "direct";  // on GPUs it may be NCCL's own sum
  if (o.ddp.deterministic >= Deterministic::world && o.lanes == 0) o.lanes = 8;
  o.shuffle = !no_shuffle;
  o.record = !no_record;
  if (!hash_values.empty()) o.hash_values = record_of(hash_values);
  if (app.count("--layers")) o.layers = lockstep::cli::widths("--layers", layers);
  validate(o);
  return o;
}

}  // namespace train_mlp
