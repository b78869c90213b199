#pragma once
/// The curves of a training, for a table, for TensorBoard and for the report of a trace:
///
///   nn::Metrics metrics("runs/a", world.rank() == 0);
///   for (std::int64_t step = 1; ...; ++step) {
///     ...
///     metrics.add("train/loss", step, loss.item());
///   }
///
/// The folder then holds
///
///   metrics.csv                           step,tag,value,wall_time: a row for each value, in the
///                                         order in which they were added. value and wall_time
///                                         (seconds since 1970) read back as the same doubles
///   events.out.tfevents.TIME.lockstep     the same for `tensorboard --logdir runs`; values as f32
///
/// A row per value, since tags come at different steps: a column per tag would be mostly empty, and
/// a new tag would change the file's head. (pandas: `pivot(index="step", columns="tag")`.)
///
/// A value is also noted in the trace of the calling thread (dist::Trace), if there is one:
/// `./lockstep report` draws it. Of a tag of more than 45 bytes the trace has the beginning, a
/// checksum of all of it, and the end.
///
/// Tags are free: "train/loss" is what TensorBoard puts under "train", and the report into the
/// chart "loss". A tag names its unit if that is not plain ("samples_per_second").
///
/// Rows wait in memory: those that were added within a second after the last were written. Then
/// the next add() writes them all. So a run that is killed loses the rows of a second at most, and
/// none after flush(). What a kill has left of a row is removed when the run goes on.
///
/// A folder belongs to one Metrics at a time. Thread-safety: one thread uses a Metrics at a time.

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace lockstep::nn {

class Metrics {
 public:
  using Time = std::chrono::system_clock::time_point;

  /// Makes the folder if there is none. An empty name: no files, only the trace. Unless `writes`
  /// (of one rank alone), this object does nothing at all. Not collective.
  ///
  /// `first_step` is the run's first step. Rows of earlier runs are kept for steps before it, the
  /// others are removed from metrics.csv, and TensorBoard leaves them out: a run that goes on from
  /// a checkpoint has every step once.
  ///
  /// Throws DataError if the folder cannot be written, or if its metrics.csv is not one of these.
  explicit Metrics(const std::string& directory, bool writes = true, std::int64_t first_step = 0);
  /// flush(); an error is one line on stderr.
  ~Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;

  /// The value of `tag` at a step, which may be NaN or infinite, and when it was known. Throws
  /// UsageError for a tag that is empty, is not UTF-8 or has a comma, a quote or a control
  /// character, and for a step before `first_step`; DataError if the disk is full.
  void add(std::string_view tag, std::int64_t step, double value,
           Time when = std::chrono::system_clock::now());

  /// Hands all rows to the system: the end of this process no longer harms them. Throws DataError.
  void flush();

 private:
  struct Files;
  bool writes_;
  std::int64_t first_step_;
  std::unique_ptr<Files> files_;  // null: no files
};

}  // namespace lockstep::nn
