#pragma once
/// The pairs of test/vocabulary/*.inc: PyTorch's text beside ours.

#include <string>
#include <utility>
#include <vector>

#include "structure/tree.h"

namespace lockstep::test {

struct PytorchPair {
  std::string title{};         ///< the comment above a program
  std::string theirs, ours{};  ///< lines; an expression has one
  bool is_program = false;
};

struct PytorchSection {
  std::string heading;
  std::vector<PytorchPair> pairs{};
};

namespace detail {

/// How many brackets of the code in `line` stay open; those in quotes do not count.
inline int open_brackets(const std::string& line) {
  int open = 0;
  char quote = 0;
  for (const char c : line) {
    if (quote) {
      if (c == quote) quote = 0;
    } else if (c == '"' || c == '\'') {
      quote = c;
    } else {
      open += c == '(' || c == '{';
      open -= c == ')' || c == '}';
    }
  }
  return open;
}

inline std::string trimmed(const std::string& text) {
  const std::size_t begin = text.find_first_not_of(' ');
  return begin == text.npos ? "" : text.substr(begin, text.find_last_not_of(' ') - begin + 1);
}

/// `NAME("theirs", ours)`, from line `k` on, which becomes the last one.
inline PytorchPair read_expression(const std::vector<std::string>& lines, std::size_t& k) {
  std::string text = lines[k];
  while (open_brackets(text) > 0) text += " " + trimmed(lines.at(++k));
  const std::size_t quote = text.find('"'), end = text.find("\",", quote);
  return {.theirs = text.substr(quote + 1, end - quote - 1),
          .ours = trimmed(text.substr(end + 2, text.size() - end - 3))};
}

/// `NAME(R"(`, lines, `)", {`, lines, `})`.
inline PytorchPair read_program(const std::vector<std::string>& lines, std::size_t& k,
                                const std::string& title) {
  PytorchPair pair{.title = title, .theirs = "", .is_program = true};
  for (++k; lines.at(k) != ")\", {"; ++k) pair.theirs += lines[k] + "\n";
  for (++k; lines.at(k) != "})"; ++k)
    pair.ours += lines[k].substr(std::min<std::size_t>(2, lines[k].size())) + "\n";
  return pair;
}

}  // namespace detail

/// Of all files, in the order of docs/from_pytorch.md.
inline std::vector<PytorchSection> pytorch_sections() {
  std::vector<PytorchSection> sections;
  for (const std::string name : {"layers", "training", "ranks", "expressions"}) {
    const std::vector<std::string> lines = lines_of_file("test/vocabulary/" + name + ".inc");
    std::string title;
    for (std::size_t k = 0; k < lines.size(); ++k) {
      const std::string& line = lines[k];
      if (line.starts_with("// --- ")) {
        sections.push_back({line.substr(7, line.rfind(" ---") - 7)});
      } else if (line.starts_with("//")) {
        title += (title.empty() ? "" : " ") + line.substr(std::min<std::size_t>(3, line.size()));
        continue;
      } else if (line.ends_with("(R\"(")) {
        sections.back().pairs.push_back(detail::read_program(lines, k, title));
      } else if (!line.empty()) {
        sections.back().pairs.push_back(detail::read_expression(lines, k));
      }
      title = "";
    }
  }
  return sections;
}

}  // namespace lockstep::test
