// The documents show what is there: excerpts of the sources, outputs of the programs, and pictures
// of what the library does. `./lockstep drill tour` writes all of them.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>

#include "structure/tree.h"
#include "support/program.h"
#include "support/temporary_folder.h"
#include "tour/blocks.h"
#include "tour/pictures/pictures.h"

using namespace lockstep::test;

namespace {

namespace fs = std::filesystem;

/// What a command of the documents prints, in an empty folder. It must succeed.
std::string printed_by(const std::string& command) {
  static std::map<std::string, std::string> known;
  if (const auto found = known.find(command); found != known.end()) return found->second;
  std::string line = command;
  const std::string bin = LOCKSTEP_BIN_DIR;
  for (const auto& [front, program] :
       {std::pair("./lockstep sample ", "/"), std::pair("./lockstep trace ", "/lockstep_trace "),
        std::pair("./lockstep train", "/train_mlp")})
    for (std::size_t at = 0; (at = line.find(front, at)) != line.npos;)
      line.replace(at, std::string_view(front).size(), bin + program);
  const TemporaryFolder folder;
  const Ended ended = run({"bash", "-c", "set -eo pipefail; cd " + (folder / "") + "; " + line});
  INFO(command, ": ", ended.err);
  REQUIRE(ended.code == 0);
  return known[command] = ended.out;
}

std::vector<std::string> expected_lines(const Block& block) {
  return block.is_output ? shown_output(block, printed_by(block.source)) : excerpt(block.source);
}

void check_block(const Block& block, const std::vector<std::string>& document) {
  CAPTURE(block.source);
  const std::vector<std::string> expected = expected_lines(block);
  const bool as_many = block.end - block.begin == expected.size();
  CHECK_MESSAGE(as_many, "the block is not current: ./lockstep drill tour writes it");
  if (!as_many) return;
  using Lines = std::vector<std::string>;
  const auto begin = document.begin() + static_cast<std::ptrdiff_t>(block.begin);
  const Lines shown(begin, begin + std::ssize(expected));
  const Lines a = block.is_output ? with_named_digests(shown) : shown;
  const Lines b = block.is_output ? with_named_digests(expected) : expected;
  for (std::size_t k = 0; k < b.size(); ++k) {
    CAPTURE(shown[k]);
    CAPTURE(expected[k]);
    CHECK((block.is_output ? says_the_same(a[k], b[k], block.varies) : a[k] == b[k]));
  }
}

std::vector<std::string> documents() {
  std::vector<std::string> found;
  for (const std::string& path : files_of_tree())
    if (path.ends_with(".md")) found.push_back(path);
  return found;
}

fs::path picture_path(const Picture& picture) {
  return fs::path(LOCKSTEP_SOURCE_DIR "/docs/pictures") / (std::string(picture.name) + ".svg");
}

}  // namespace

TEST_CASE("drill tour: writes excerpts, outputs and pictures of the documents") {
  if (!std::getenv("LOCKSTEP_RUNS")) return;  // only when it is asked for
  fs::create_directories(LOCKSTEP_SOURCE_DIR "/docs/pictures");
  for (const Picture& picture : pictures) std::ofstream(picture_path(picture)) << picture.draw();
  for (const std::string& path : documents()) {
    std::vector<std::string> document = lines_of_file(path);
    std::vector<Block> blocks = blocks_of(document);
    if (blocks.empty()) continue;
    std::ranges::reverse(blocks);  // so that places stay right
    for (const Block& block : blocks) {
      CAPTURE(path);
      CAPTURE(block.source);
      const auto begin = document.begin() + static_cast<std::ptrdiff_t>(block.begin);
      const std::vector<std::string> lines = expected_lines(block);
      document.insert(
          document.erase(begin, document.begin() + static_cast<std::ptrdiff_t>(block.end)),
          lines.begin(), lines.end());
    }
    std::ofstream file(LOCKSTEP_SOURCE_DIR "/" + path);
    for (const std::string& line : document) file << line << '\n';
  }
}

TEST_CASE("tour: excerpts of the documents are what the files say") {
  int excerpts = 0;
  for (const std::string& path : documents()) {
    CAPTURE(path);
    const std::vector<std::string> document = lines_of_file(path);
    for (const Block& block : blocks_of(document))
      if (!block.is_output) {
        check_block(block, document);
        ++excerpts;
      }
  }
  CHECK(excerpts >= 17);  // as many as there are: or the check reads too little
}

TEST_CASE("tour: outputs in the documents are what the programs print") {
  int outputs = 0;
  for (const std::string& path : documents()) {
    CAPTURE(path);
    const std::vector<std::string> document = lines_of_file(path);
    CHECK(unchecked_calls(document) == std::vector<std::string>{});
    const int before = outputs;
    for (const Block& block : blocks_of(document))
      if (block.is_output) {
        check_block(block, document);
        ++outputs;
      }
    const bool chapter = path.starts_with("docs/tour/") && path != "docs/tour/index.md";
    if (chapter) CHECK(outputs > before);
  }
  CHECK(outputs >= 23);
}

TEST_CASE("tour: pictures are drawn from what the library does") {
  for (const Picture& picture : pictures) {
    CAPTURE(picture.name);
    std::ifstream file(picture_path(picture));
    const std::string stored{std::istreambuf_iterator<char>(file), {}};
    CHECK_MESSAGE(stored == picture.draw(), "not current: ./lockstep drill tour draws it");
    const bool shown = std::ranges::any_of(documents(), [&](const std::string& path) {
      return std::ranges::any_of(lines_of_file(path), [&](const std::string& line) {
        return contains(line, std::string("pictures/") + picture.name + ".svg)");
      });
    });
    CHECK_MESSAGE(shown, "no document shows it");
  }
  for (const auto& entry : fs::directory_iterator(LOCKSTEP_SOURCE_DIR "/docs/pictures"))
    CHECK(std::ranges::any_of(
        pictures, [&](const Picture& picture) { return entry.path() == picture_path(picture); }));
}

TEST_CASE("tour: the check itself") {
  const std::vector<std::string> file = {"// twice() doubles",
                                         "int once(int);",
                                         "struct Pair {",
                                         "  int twice(int x) const {",
                                         "    return 2 * x;",
                                         "  }",
                                         "};",
                                         "  // region two",
                                         "  int y = pair.twice(1);",
                                         "",
                                         "    y += 1;",
                                         "  // endregion two",
                                         "void long_head(int a,",
                                         "               int b) {",
                                         "  use(a, b);",
                                         "}"};
  using Lines = std::vector<std::string>;
  CHECK(region(file, "twice") == Lines{"int twice(int x) const {", "  return 2 * x;", "}"});
  CHECK(region(file, "two") == Lines{"int y = pair.twice(1);", "", "  y += 1;"});
  CHECK(region(file, "Pair").size() == 5);
  CHECK(region(file, "long_head").size() == 4);
  CHECK_THROWS(region(file, "once"));
  CHECK_THROWS(region(file, "three"));
  CHECK_THROWS(excerpt("no/such/file.cpp"));

  const Lines document = {"<!-- output: ./lockstep sample walk; lines 2-3; times vary -->", "```",
                          "old", "```"};
  const Block block = blocks_of(document).at(0);
  CHECK(block.source == "./lockstep sample walk");
  CHECK(block.varies);
  CHECK(shown_output(block, "a\nb\nc \nd\n") ==
        Lines{"$ ./lockstep sample walk", "...", "b", "c", "..."});
  CHECK_THROWS(shown_output(block, "a\nb\n"));
  CHECK_THROWS(blocks_of({"<!-- excerpt: a.cpp -->", "no block"}));
  CHECK_THROWS(blocks_of({"<!-- output: a; no such word -->", "```", "```"}));
  CHECK_THROWS(blocks_of({"<!-- excerpt: a.cpp -->", "```", "no end"}));

  CHECK(unchecked_calls({"<!-- output: ./lockstep sample walk -->", "```",
                         "$ ./lockstep sample walk", "```", "    $ ./lockstep sample tape", "```",
                         "$ ./lockstep trace t", "./lockstep report t", "```"}) ==
        Lines{"$ ./lockstep sample tape", "$ ./lockstep trace t"});
}

TEST_CASE("tour: the comparison itself") {
  using Lines = std::vector<std::string>;
  CHECK(says_the_same("a  1.000001 b", "a 1.000002 b", false));
  CHECK(says_the_same("3e-08", "6e-08", false));
  CHECK(!says_the_same("a 1.0001 b", "a 1.0002 b", false));
  CHECK(!says_the_same("a 1 b", "a 1 c", false));
  CHECK(!says_the_same("rank 1", "rank 2", false));
  CHECK(!says_the_same("133904 elements", "133905 elements", false));
  CHECK(!says_the_same("12345678 bytes", "22345678 bytes", false));
  CHECK(!says_the_same("0.05693333", "0.06693333", false));
  CHECK(!says_the_same("takes 0.0101354923 of", "takes 0.9901354923 of", false));
  CHECK(!says_the_same("differ by 0.0e+00", "differ by 3.1e-08", false));
  CHECK(!says_the_same("40 collectives in 2.5 ms", "41 collectives in 2.5 ms", true));
  CHECK(says_the_same("12 % of 3 buckets, step 7 of 39", "9 % of 3 buckets, step 8 of 40", true));
  CHECK(with_named_digests({"rank 0 764f9bd0f69c...", "rank 1 764f9bd0f69c...", "0.123456789"}) ==
        Lines{"rank 0 digest 0...", "rank 1 digest 0...", "0.123456789"});
  CHECK(with_named_digests({"764f9bd0f69c 5f339a5a52df 12345678"}) ==
        Lines{"digest 0 digest 1 12345678"});
  CHECK(with_named_digests({"|bbbbbbbb ffffffffffff|"}) == Lines{"|bbbbbbbb ffffffffffff|"});
  CHECK(says_the_same("rank 0 |r==| took 12.5 ms", "rank 0 |  r=| took 9 ms", true));
  CHECK(!says_the_same("took 12.5 ms", "took 9 us", true));
  CHECK(!says_the_same("train_loss=0.8137", "train_loss=0.8237", true));
  CHECK(!says_the_same("rank 0 |bbmw|", "rank 0 |xxxx|", true));
  CHECK(!says_the_same("bucket 0 |r-==|", "bucket 0 |=r--|", true));
  CHECK(!says_the_same("bucket 0 |r-==|", "bucket 0 |    |", true));
  const std::string error =
      "[sum] rank {}, #4 '{}': rank {} called sum #4 '{}' of 2 f32 (one-shot), this rank sum #4 "
      "'{}' of 2 f32 (one-shot)";
  const auto noticed = [&](int rank, const char* mine, const char* theirs) {
    return fmt::format(fmt::runtime(error), rank, mine, 1 - rank, theirs, mine);
  };
  CHECK(says_the_same(noticed(0, "a", "b"), noticed(1, "b", "a"), true));
  CHECK(!says_the_same(noticed(0, "a", "b"), "nothing", true));
}
