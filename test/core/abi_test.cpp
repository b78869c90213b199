// A program that was compiled for another layout of the standard library's types does not link, and
// the linker says what differs (core/system/abi.h). Each case compiles two files of a few lines.

#include <doctest/doctest.h>
#include <fmt/format.h>

#include <fstream>

#include "support/program.h"
#include "support/temporary_folder.h"

using namespace lockstep::test;

namespace {

/// Links a program of `program` flags with the library's part of `library` flags.
Ended link_with(const std::string& program, const std::string& library) {
  const TemporaryFolder folder;
  std::ofstream(folder / "main.cpp") << "#include \"lockstep/core/error.h\"\nint main() {}\n";
  const std::string compile = LOCKSTEP_CXX " -std=c++20 -I " LOCKSTEP_INCLUDE_DIR;
  return run({"sh", "-c",
              fmt::format("cd '{}' && {} {} -c {}/core/system/abi.cpp -o abi.o && "
                          "{} {} main.cpp abi.o -o program",
                          folder.path().string(), compile, library, LOCKSTEP_SOURCE_DIR, compile,
                          program)});
}

}  // namespace

TEST_CASE("abi: what changes the layout of types is one clear name in the linker's error" *
          doctest::test_suite("not-address")) {
  struct Case {
    const char *flags, *there, *here;
  };
  const Case cases[] = {
      {"-D_GLIBCXX_DEBUG", "program_has_GLIBCXX_DEBUG_but_not_the_library",
       "library_has_GLIBCXX_DEBUG_but_not_the_program"},
      {"-D_GLIBCXX_USE_CXX11_ABI=0", "program_has_GLIBCXX_USE_CXX11_ABI_0_but_not_the_library",
       "library_has_GLIBCXX_USE_CXX11_ABI_0_but_not_the_program"},
  };
  for (const auto& [flags, there, here] : cases) {
    CAPTURE(flags);
    CHECK(contains(link_with(flags, "").err, there));
    CHECK(contains(link_with("", flags).err, here));
    CHECK(link_with(flags, flags).err == "");
  }
  CHECK(contains(link_with("-std=c++17", "").err, "need C++20"));
  CHECK(contains(link_with("-fpack-struct", "").err, "without -fpack-struct"));
}

TEST_CASE("abi: what changes no layout may differ") {
  const Ended ended = link_with("-DNDEBUG -D_GLIBCXX_ASSERTIONS -O1 -std=c++23 -g", "");
  CAPTURE(ended.err);
  CHECK(ended.code == 0);
}
