#pragma once
/// Another framework that does the same work in the same run: a child process that is asked for one
/// round at a time, and is idle in between.
///
///   we write          it answers
///                     ready NAME       its name and version
///                     cannot WHY       instead: this is not to be had here
///   steps N           us X             N steps took X microseconds each
///
/// and what else the two agree on. At end of input it ends.

#include <cstdio>
#include <string>
#include <vector>

namespace bench {

class Peer {
 public:
  /// Starts `command`. Throws UsageError for what it cannot do, Error if it does not say that it is
  /// ready.
  explicit Peer(const std::vector<std::string>& command);
  ~Peer();
  Peer(const Peer&) = delete;
  Peer& operator=(const Peer&) = delete;

  const std::string& name() const { return name_; }
  /// Writes a line, and returns its answer but for the word `reply`, with which that must begin.
  std::string ask(const std::string& request, const std::string& reply);
  /// The same for a request that has reached it in another way.
  std::string hear(const std::string& reply);
  /// Runs a round; microseconds per step.
  double round(long steps);

 private:
  std::string line();  // the next line of its answer

  int pid_ = -1;
  std::FILE* to_ = nullptr;
  std::FILE* from_ = nullptr;
  std::string name_;
};

/// A Python that can `import torch`: `given` if not empty, else $LOCKSTEP_PYTHON, else python3
/// where they can; or empty.
std::string find_python(const std::string& given);

}  // namespace bench
