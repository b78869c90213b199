#pragma once
/// One rank's file of a hash trace (dist/observe/hash_trace.h), read record by record.
///
/// What is not such a file, or is damaged, throws UsageError, which names file and line. A file
/// that is cut off is read up to its last whole line.

#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/tools/hash_trace/elements.h"

namespace lockstep::hashes {

struct Record {
  std::int64_t step = 0, number = 0;  ///< number: in its step, from 1
  std::string place, operation, name;
  std::string of;                   ///< "rank", "world", or "4/8": from lane 4 of 8 on
  std::vector<std::string> hashes;  ///< one, or one for each lane
  Elements elements;

  bool of_lanes() const { return of != "rank" && of != "world"; }
  int first_lane() const;  ///< these two: if of_lanes()
  int lanes() const;
  /// "output of linear ('0.weight')", "gradient of '0.weight', reduced"
  std::string describe() const;
};

class RankFile {
 public:
  explicit RankFile(const std::string& path);

  const std::string& run() const { return run_; }  ///< the same for all files of a run
  int rank() const { return rank_; }
  int ranks() const { return ranks_; }
  const std::string& path() const { return path_; }

  /// Moves to the next record; false at the end, which complete() says was written.
  bool next();
  const Record& record() const { return record_; }  ///< the last one after the end
  bool complete() const { return complete_; }

 private:
  bool read_line();
  [[noreturn]] void refuse(std::string_view why) const;
  std::int64_t number(std::string_view text, std::int64_t least) const;
  Shape shape_of(std::string_view text) const;
  void check_of(const Record& record) const;

  std::string path_, run_, line_;
  std::ifstream file_;
  std::int64_t line_number_ = 0;
  int rank_ = 0, ranks_ = 0;
  Record record_;
  std::int64_t records_ = 0;
  bool complete_ = false;
};

}  // namespace lockstep::hashes
