// What of a file of tensors is not read here, and names that other programs could not read.

#include <doctest/doctest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "lockstep/lockstep.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;

TEST_SUITE_BEGIN("not-cpu not-late");  // the same files, whatever computes

TEST_CASE("safetensors: what cannot be read harms no other tensor, and is refused by name") {
  const TemporaryFolder folder;
  struct Unread {
    const char* name;
    std::string dtype, shape;
    int bytes;
    const char* why;
  };
  const std::vector<Unread> all = {
      {"ids", "I16", "[2, 2]", 8, "'ids' has dtype I16, which is not read here"},
      {"counts", "U64", "[1]", 8, "'counts' has dtype U64"},
      {"small", "F8_E4M3", "[3]", 3, "'small' has dtype F8_E4M3"},
      {"half a byte", "F4", "[3, 2]", 3, "'half a byte' has dtype F4"},
      {"of a later format", "a\\u001bb", "[]", 1, "has dtype a\\x1bb"},
      {"deep", "U8", "[1, 1, 1, 1, 1, 1, 1, 2]", 2, "'deep' has 8 dimensions, of which at most 6"},
  };
  std::string json = R"({"w": {"dtype": "U8", "shape": [2], "data_offsets": [0, 2]})";
  int end = 2;
  for (const Unread& unread : all) {
    json += fmt::format(R"(, "{}": {{"dtype": "{}", "shape": {}, "data_offsets": [{}, {}]}})",
                        unread.name, unread.dtype, unread.shape, end, end + unread.bytes);
    end += unread.bytes;
  }
  json += fmt::format(R"(, "v": {{"dtype": "U8", "shape": [], "data_offsets": [{}, {}]}}}})", end,
                      end + 1);
  const std::string path = folder / "file";
  std::string bytes(8, '\0');
  const std::uint64_t length = json.size();
  std::memcpy(bytes.data(), &length, 8);
  std::ofstream(path, std::ios::binary)
      << bytes << json << std::string(static_cast<std::size_t>(end + 1), 'x');
  const nn::SafetensorsFile file(path);
  CHECK(file.read("w").shape() == Shape{2});
  CHECK(file.read("v").item() == 'x');
  CHECK(nn::load_safetensors(path, {"w", "v"}).size() == 2);
  CHECK_THROWS_WITH_AS(nn::load_safetensors(path, {"w", "absent"}),
                       doctest::Contains("has no 'absent'"), DataError);
  for (const Unread& unread : all) {
    CAPTURE(unread.name);
    const auto refuses = doctest::Contains(unread.why);
    CHECK_THROWS_WITH_AS(file.read(unread.name), refuses, DataError);
    CHECK_THROWS_WITH_AS(nn::load_safetensors(path, {"v", unread.name}), refuses, DataError);
  }
  CHECK_THROWS_WITH_AS(nn::load_safetensors(path), doctest::Contains("not read here"),
                       DataError);  // all are asked for
}

TEST_CASE("safetensors: names and texts that are not UTF-8 are refused where they come in") {
  const TemporaryFolder folder;
  const Tensor one = Tensor::ones({1});
  const std::string bad[] = {"w\xe9ight",        "\xc3",  "\xed\xa0\x80", "\xc0\xaf",
                             "\xf4\x90\x80\x80", "a\x80z"};
  const auto refuses = doctest::Contains("is not UTF-8");
  const std::string path = folder / "file";
  for (const std::string& name : bad) {
    CHECK_THROWS_WITH_AS(nn::save_safetensors(path, {{name, one}}), refuses, UsageError);
    CHECK_THROWS_WITH_AS(nn::save_safetensors(path, {{"w", one}}, {{name, "text"}}), refuses,
                         UsageError);
    CHECK_THROWS_WITH_AS(nn::save_safetensors(path, {{"w", one}}, {{"key", name}}), refuses,
                         UsageError);
    CHECK_THROWS_WITH_AS(Parameter(one, name), refuses, UsageError);
    CHECK_THROWS_WITH_AS(Parameter(one, "w").set_name(name), refuses, UsageError);
    std::int64_t number = 0;
    nn::Linear layer(1, 1);
    nn::Checkpoint checkpoint;
    CHECK_THROWS_WITH_AS(checkpoint.add(name, number), refuses, UsageError);
    CHECK_THROWS_WITH_AS(checkpoint.add(name, layer), refuses, UsageError);
    CHECK_THROWS_WITH_AS(nn::Metrics("").add(name, 1, 2), doctest::Contains("UTF-8"), UsageError);
  }
  CHECK_THROWS_WITH_AS(Parameter(one, "w\xe9ight"),
                       "[parameter] the name 'w\\xe9ight' is not UTF-8", UsageError);
  CHECK(!std::filesystem::exists(path));
  for (const std::string name : {"gewicht \u00e4", "\u91cd\u307f", "\U0001f41d", "\x7f", "a b"}) {
    nn::save_safetensors(path, {{name, one}}, {{name, name}});
    CHECK(nn::load_safetensors(path).contains(name));
    CHECK(Parameter(one, name).name() == name);
  }
}

TEST_SUITE_END();
