#include "lockstep/tools/hash_trace/compare.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <vector>

#include "lockstep/core/error.h"
#include "lockstep/tools/hash_trace/elements.h"
#include "lockstep/tools/hash_trace/rank_file.h"

namespace lockstep::hashes {
namespace {

std::string with_commas(std::int64_t count) {
  std::string digits = std::to_string(count);
  for (std::ptrdiff_t at = std::ssize(digits) - 3; at > 0; at -= 3)
    digits.insert(static_cast<std::size_t>(at), ",");
  return digits;
}

std::string counted(std::int64_t count, std::string_view what) {
  return fmt::format("{} {}{}", with_commas(count), what, count == 1 ? "" : "s");
}

/// The files of all ranks, which move on together.
class Run {
 public:
  explicit Run(const std::string& path) {
    files_.emplace_back(path);
    check<UsageError>(files_[0].rank() == 0, "'{}' is rank {}'s file: name that of rank 0", path,
                      files_[0].rank());
    for (int rank = 1; rank < files_[0].ranks(); ++rank) {
      const RankFile& file = files_.emplace_back(fmt::format("{}.{}", path, rank));
      check<UsageError>(file.run() == files_[0].run() && file.rank() == rank,
                        "'{}' and '{}' are not of the same run", path, file.path());
    }
  }

  bool next() {
    for (RankFile& file : files_)
      if (!file.next()) ended_ = &file;
    return !ended_;
  }
  /// After its end: whether all of it was there.
  bool complete() const { return ended_ && ended_->complete(); }
  std::string how_ended() const {
    const Record& last = ended_->record();
    const std::string_view how = complete() ? "ends" : "is cut off";
    return last.step == 0 ? fmt::format("{} {} before its first record", ended_->path(), how)
                          : fmt::format("{} {} after record {} of step {}", ended_->path(), how,
                                        last.number, last.step);
  }

  int ranks() const { return static_cast<int>(files_.size()); }
  const std::string& path() const { return files_[0].path(); }
  const Record& at(int rank) const { return files_[static_cast<std::size_t>(rank)].record(); }

  /// The hash of each lane, from all ranks; empty if they do not have them all.
  std::vector<std::string> lanes() const {
    std::vector<std::string> all;
    for (const RankFile& file : files_) {
      const Record& record = file.record();
      if (!record.of_lanes() || record.first_lane() != std::ssize(all)) return {};
      all.insert(all.end(), record.hashes.begin(), record.hashes.end());
    }
    return std::ssize(all) == at(0).lanes() ? all : std::vector<std::string>{};
  }
  /// The rows of all ranks, if all have written them.
  Elements elements() const {
    Elements all = at(0).elements;
    for (int rank = 1; rank < ranks(); ++rank) {
      const auto& [dtype, shape, hex] = at(rank).elements;
      if (all.shape.rank() > 0 && shape.rank() > 0)
        all.shape = all.shape.with(0, 1, {all.shape[0] + shape[0]});
      all.hex += hex;
    }
    return all;
  }

 private:
  std::vector<RankFile> files_;
  const RankFile* ended_ = nullptr;
};

class Comparer {
 public:
  Comparer(const std::string& a, const std::string& b)
      : a_(a),
        b_(b),
        compared_ranks_(same_ranks() ? a_.ranks() : 1),
        width_(std::max(a.size(), b.size())) {}

  Comparison compare() {
    bool more_a = a_.next(), more_b = b_.next();
    if (more_a && more_b) skip_to_common_step(more_a, more_b);
    for (; more_a && more_b; more_a = a_.next(), more_b = b_.next()) {
      if (compare_records()) return {text_ + not_compared(), false};
    }
    return end(more_a, more_b);
  }

 private:
  bool same_ranks() const { return a_.ranks() == b_.ranks(); }

  void skip_to_common_step(bool& more_a, bool& more_b) {
    const std::int64_t first_a = a_.at(0).step, first_b = b_.at(0).step;
    while (more_a && a_.at(0).step < first_b) more_a = a_.next();
    while (more_b && b_.at(0).step < first_a) more_b = b_.next();
    if (first_a != first_b)
      notes_ = fmt::format("{} begins at step {}, {} at step {}: compared from step {} on\n",
                           a_.path(), first_a, b_.path(), first_b, std::max(first_a, first_b));
  }

  // True if they differ, which text_ then says.
  bool compare_records() {
    if (const auto rank = other_result()) return tell_other_result(*rank), true;
    const Record &a = a_.at(0), &b = b_.at(0);
    if (a.of_lanes() != b.of_lanes() || (a.of_lanes() && a.lanes() != b.lanes()))
      return ++not_compared_["that have other lanes, or only in one run"][a.place], false;
    if (same_ranks()) return compare_ranks();
    if (a.of_lanes()) return compare_lanes();
    if (a.of == "rank") return ++not_compared_["that belong to one rank"][a.place], false;
    return compare_ranks();
  }

  bool equal() {
    ++equal_;
    last_ = a_.at(0);
    return false;
  }

  // A rank where the two runs compute something else.
  std::optional<int> other_result() const {
    for (int rank = 0; rank < compared_ranks_; ++rank) {
      const Record &a = a_.at(rank), &b = b_.at(rank);
      if (a.step != b.step || a.place != b.place || a.operation != b.operation ||
          a.name != b.name || (a.of == "world") != (b.of == "world") ||
          a.elements.dtype != b.elements.dtype)
        return rank;
      const Shape &x = a.elements.shape, &y = b.elements.shape;
      const int rows = same_ranks() || a.of == "world" ? 0 : std::min(1, x.rank());
      if (x.rank() != y.rank() || !std::equal(x.begin() + rows, x.end(), y.begin() + rows))
        return rank;
    }
    return {};
  }

  bool compare_ranks() {
    for (int rank = 0; rank < compared_ranks_; ++rank) {
      const Record &a = a_.at(rank), &b = b_.at(rank);
      if (a.of == b.of && a.hashes == b.hashes) continue;
      const auto [x, y] = std::ranges::mismatch(a.hashes, b.hashes);
      std::string where = compared_ranks_ == 1 ? "" : fmt::format("rank {}", rank);
      if (a.of_lanes())
        where += fmt::format("{}lane {}", where.empty() ? "" : ", ",
                             a.first_lane() + (x - a.hashes.begin()));
      tell(a.elements, b.elements, where, x == a.hashes.end() ? "none" : *x,
           y == b.hashes.end() ? "none" : *y);
      return true;
    }
    return equal();
  }

  bool compare_lanes() {
    const std::vector<std::string> a = a_.lanes(), b = b_.lanes();
    if (a.empty() || b.empty())
      return ++not_compared_["whose lanes are not all there"][a_.at(0).place], false;
    const auto x = std::ranges::mismatch(a, b).in1;
    if (x == a.end()) return equal();
    const auto lane = static_cast<std::size_t>(x - a.begin());
    tell(a_.elements(), b_.elements(), fmt::format("lane {}", lane), a[lane], b[lane]);
    return true;
  }

  void tell(const Elements& a, const Elements& b, const std::string& where,
            const std::string& hash_a, const std::string& hash_b) {
    const Record& record = a_.at(0);
    text_ = heading(where) + fmt::format("  {}, {}\n", record.describe(), a.type());
    const std::string elements = first_different_element(a, b, a_.path(), b_.path());
    text_ += !elements.empty() ? elements
                               : fmt::format("    {:<{}}  hash {}\n    {:<{}}  hash {}\n",
                                             a_.path(), width_, hash_a, b_.path(), width_, hash_b);
    text_ += before();
    if (elements.empty())
      text_ +=
          fmt::format("for index and values run both once more, with --hash-values {}:{} as well\n",
                      record.step, record.number);
  }

  void tell_other_result(int rank) {
    text_ = heading(a_.ranks() == 1 && b_.ranks() == 1 ? "" : fmt::format("rank {}", rank));
    text_ += "  the runs do other things here:\n";
    for (const Run* run : {&a_, &b_}) {
      const Record& record = run->at(rank);
      text_ += fmt::format("    {:<{}}  step {}: {}, {}\n", run->path(), width_, record.step,
                           record.describe(), record.elements.type());
    }
    text_ += before();
  }

  std::string heading(const std::string& where) const {
    const Record& record = a_.at(0);
    return notes_ + fmt::format("first difference: step {}, record {}{}{}\n", record.step,
                                record.number, where.empty() ? "" : ", ", where);
  }

  std::string before() const {
    if (equal_ == 0) return "nothing was compared before it\n";
    return fmt::format("{} before it {} equal, the last: {}\n", counted(equal_, "record"),
                       equal_ == 1 ? "is" : "are", last_.describe());
  }

  // "not compared: 6 forward, 12 gradient records that belong to one rank"
  std::string not_compared() const {
    std::string text;
    for (const auto& [why, places] : not_compared_) {
      std::vector<std::string> parts;
      for (const char* place : {"input", "forward", "backward", "gradient", "parameter", "buffer"})
        if (const auto found = places.find(place); found != places.end())
          parts.push_back(fmt::format("{} {}", with_commas(found->second), place));
      text += fmt::format("not compared: {} records {}\n", fmt::join(parts, ", "), why);
    }
    return text;
  }

  Comparison end(bool more_a, bool more_b) {
    std::string text = notes_ + fmt::format("no difference in {}", counted(equal_, "record"));
    if (equal_ > 0) text += fmt::format(", up to step {}", last_.step);
    text += same_ranks() ? fmt::format(", on {}", counted(a_.ranks(), "rank"))
                         : fmt::format(", on {} and {} ranks", a_.ranks(), b_.ranks());
    text += "\n" + not_compared();
    if (more_a || more_b)
      text += fmt::format("{}, {} goes on\n", (more_a ? b_ : a_).how_ended(),
                          (more_a ? a_ : b_).path());
    else
      for (const Run* run : {&a_, &b_})
        if (!run->complete()) text += run->how_ended() + "\n";
    const bool all = !more_a && !more_b && a_.complete() && b_.complete();
    return {text, all && equal_ > 0};
  }

  Run a_, b_;
  int compared_ranks_;  // all of them, or rank 0 alone
  std::size_t width_;
  std::string text_, notes_;
  std::int64_t equal_ = 0;
  // Why, which, how many.
  std::map<std::string, std::map<std::string, std::int64_t>> not_compared_;
  Record last_;  // that is equal
};

}  // namespace

Comparison compare(const std::string& a, const std::string& b) { return Comparer(a, b).compare(); }

}  // namespace lockstep::hashes
