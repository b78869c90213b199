#pragma once
/// The first result that two runs do not have in common.
///
/// Record k of one run stands beside record k of the other: all ranks of both compute the same
/// operations in the same order. Of two such records is compared
///
///   what belongs to      with the same ranks    with other ranks
///   the world            rank by rank           once
///   lanes                rank by rank           lane by lane, whoever has them
///   a rank               rank by rank           not
///
/// and nothing where only one of them has lanes, or both have other numbers of them.

#include <string>

namespace lockstep::hashes {

struct Comparison {
  std::string text;    ///< what to tell, in lines
  bool equal = false;  ///< both runs came to their end, and what was compared is equal
};

/// `a` and `b` are rank 0's files; those of other ranks are beside them. Reads as far as to the
/// first difference. Throws UsageError, one line, for what cannot be read.
Comparison compare(const std::string& a, const std::string& b);

}  // namespace lockstep::hashes
