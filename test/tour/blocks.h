#pragma once
/// The blocks of a document that are drawn from elsewhere. A comment stands before each:
///
///   <!-- excerpt: PATH#NAME -->     lines of a file: what stands between `// region NAME` and
///                                   `// endregion NAME` (in scripts: `# region`), or the
///                                   definition of NAME. Without #NAME: the whole file
///   <!-- output: COMMAND -->        what a command prints: `./lockstep sample walk`
///   <!-- output: COMMAND; lines 3-9; times vary -->      only these lines; times may differ
///
/// The fenced block that follows is compared with its source; `./lockstep drill tour` writes it.

#include <string>
#include <string_view>
#include <vector>

namespace lockstep::test {

struct Block {
  bool is_output = false;
  std::string source;                 ///< the path with its name, or the command
  int first_line = 1, last_line = 0;  ///< of the output, from 1 on; last 0: to its end
  bool varies = false;                ///< times and what is drawn of them may differ
  std::size_t begin = 0, end = 0;     ///< the block's lines in the document, without the fences
};

/// In order. Throws std::runtime_error for a comment of another form, or one without a block.
std::vector<Block> blocks_of(const std::vector<std::string>& document);

/// The calls of ./lockstep, with what follows `$ `, that stand in no block of an output.
std::vector<std::string> unchecked_calls(const std::vector<std::string>& document);

/// The lines that an excerpt has to hold, with their common indentation taken away. Throws
/// std::runtime_error if there is no such file or name.
std::vector<std::string> excerpt(const std::string& source);
/// The same of a text: the part called `name`.
std::vector<std::string> region(const std::vector<std::string>& file, const std::string& name);

/// The lines that an output has to hold: `$ COMMAND`, then what it printed, or a part of it.
std::vector<std::string> shown_output(const Block& block, const std::string& printed);

/// The lines with "digest 0", "digest 1", ... in the place of hexadecimal digests, which differ
/// from machine to machine, as the last bits of trained parameters do. Equal ones have the same
/// name.
std::vector<std::string> with_named_digests(std::vector<std::string> lines);

/// Whether a line says the same: words and whole numbers are equal; numbers with a fraction agree
/// to 1e-5 of their size, or both are rounding errors (below 1e-6, but not 0). Where times vary,
/// these are not compared: numbers with a fraction (but `loss=0.8` is) or before us, ms or %, "step
/// N of M", how long what is drawn between bars lasts, and which rank noticed an error.
bool says_the_same(std::string_view a, std::string_view b, bool varies);

}  // namespace lockstep::test
