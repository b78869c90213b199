#include "lockstep/nn/checkpoint/safetensors.h"

#include <doctest/doctest.h>
#include <fmt/ranges.h>

#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/core/memory.h"
#include "lockstep/nn/batch_norm.h"
#include "lockstep/nn/layers.h"
#include "support/temporary_folder.h"

using namespace lockstep;
using lockstep::test::TemporaryFolder;

namespace {

const nlohmann::json& stored() {
  static const nlohmann::json all =
      nlohmann::json::parse(std::ifstream(LOCKSTEP_SOURCE_DIR "/test/reference/safetensors.json"));
  return all;
}

std::string bytes_of_hex(const std::string& hex) {
  std::string bytes;
  for (std::size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string written(const TemporaryFolder& folder, const std::string& bytes) {
  std::ofstream(folder / "file", std::ios::binary) << bytes;
  return folder / "file";
}

std::string file_of(const std::string& json, std::size_t data) {
  std::string bytes(8, '\0');
  const std::uint64_t length = json.size();
  std::memcpy(bytes.data(), &length, 8);
  return bytes + json + std::string(data, 'x');
}

/// One line that names the file, or "no error".
std::string said(const std::string& path) {
  try {
    nn::load_safetensors(path);
  } catch (const DataError& error) {
    const std::string text = error.what();
    CHECK(text.find('\n') == std::string::npos);
    CHECK(text.starts_with("[load] " + path + ": "));
    return text;
  }
  return "no error";
}

std::vector<double> elements(const Tensor& tensor) {
  std::vector<double> result;
  visit_any(tensor.dtype(), [&](auto zero) {
    for (const auto element : tensor.to_vector<decltype(zero)>())
      result.push_back(static_cast<double>(element));
  });
  return result;
}

}  // namespace

namespace {

/// make_safetensors.py's: the weights of both Linears are one.
nn::Sequential tied_model() {
  nn::Sequential model{nn::Linear(3, 3, false), nn::Tanh(), nn::Linear(3, 3, false)};
  model.at<nn::Linear>("2").weight = model.at<nn::Linear>("0").weight;
  return model;
}

}  // namespace

TEST_CASE("safetensors: tied weights that PyTorch saved under one name, or under both" *
          doctest::test_suite("not-cpu not-late")) {
  const TemporaryFolder folder;
  const nlohmann::json& tied = stored().at("tied");
  const auto inputs = tied.at("x").get<std::vector<std::vector<float>>>();
  const auto outputs = tied.at("y").get<std::vector<std::vector<double>>>();
  const auto check_same = [&](const nn::StateDict& state) {
    nn::Sequential model = tied_model();
    model.load_state_dict(state);
    for (std::size_t row = 0; row < inputs.size(); ++row) {
      const auto y = elements(model(Tensor::from(inputs[row]).view({1, 3})));
      for (std::size_t k = 0; k < 3; ++k)
        CHECK(y[k] == doctest::Approx(outputs[row][k]).epsilon(1e-6));
    }
  };
  const auto file = [&](const char* name) {
    return nn::load_safetensors(written(folder, bytes_of_hex(tied.at(name))));
  };
  nn::StateDict state = file("one name");
  REQUIRE(state.size() == 1);
  check_same(state);
  check_same(
      {{"2.weight", state.begin()->second}});  // the name that save_model() leaves may differ
  state = file("both names");
  REQUIRE(state.size() == 2);
  check_same(state);
  // Ours has the first name, which we also read.
  nn::Sequential model = tied_model();
  model.load_state_dict(state);
  CHECK(model.state_dict().size() == 1);
  check_same(model.state_dict());
}

TEST_CASE("tied weights that differ in a state, or lack all names, change nothing") {
  nn::Sequential model = tied_model();
  const auto before = elements(model.state_dict().at("0.weight"));
  const Tensor one = Tensor::ones({3, 3}), other = Tensor::ones({3, 3});
  other.data<float>()[4] = 1.5;
  CHECK_THROWS_WITH_AS(model.load_state_dict({{"0.weight", one}, {"2.weight", other}}),
                       "[load_state_dict] '0.weight' and '2.weight' are one tensor of the model, "
                       "and differ in the state",
                       StateError);
  CHECK_THROWS_AS(model.load_state_dict({{"0.weight", one}, {"2.weight", Tensor::ones({9})}}),
                  StateError);
  CHECK_THROWS_WITH_AS(model.load_state_dict({}), doctest::Contains("lacks '0.weight'"),
                       StateError);
  CHECK_THROWS_WITH_AS(model.load_state_dict({{"2.weight", Tensor::ones({9})}}),
                       doctest::Contains("'0.weight' is (3, 3)"), ShapeError);
  CHECK(elements(model.state_dict().at("0.weight")) == before);
  nn::LoadReport report = model.load_state_dict({{"2.weight", one}, {"3.weight", one}}, false);
  CHECK(report.missing.empty());
  CHECK(report.unexpected == std::vector<std::string>{"3.weight"});
  CHECK(elements(model.state_dict().at("0.weight"))[0] == 1);
  report = model.load_state_dict({}, false);
  CHECK(report.missing == std::vector<std::string>{"0.weight"});
}

TEST_CASE("a layer that stands twice in a model has its buffers once, and loads either name") {
  struct Twice : nn::Module {
    nn::BatchNorm norm{2};
    Tensor forward(const Tensor& x) override { return norm(norm(x)); }
    void visit(nn::Visitor& p) override {
      p("first", norm);
      p("second", norm);
    }
  } model;
  REQUIRE(model.buffers().size() == 3);
  const nn::StateDict state = model.state_dict();
  CHECK(state.size() == 5);
  nn::StateDict both, second;  // as PyTorch writes them
  for (const auto& [name, tensor] : state) {
    const std::string other = "second" + name.substr(5);
    both[name] = both[other] = second[other] = Tensor::full(tensor.shape(), 7, tensor.dtype());
  }
  for (const nn::StateDict& given : {both, second}) {
    model.norm.running_mean.fill(1);
    model.load_state_dict(given);
    CHECK(elements(model.norm.running_mean) == std::vector<double>{7, 7});
  }
}

TEST_SUITE_BEGIN("not-cpu not-late");  // the same files, whatever computes

TEST_CASE("safetensors: a model that PyTorch saved computes what it did there") {
  const TemporaryFolder folder;
  const nlohmann::json& model = stored().at("model");
  const std::string path = written(folder, bytes_of_hex(model.at("hex")));
  nn::Sequential net{nn::Linear(3, 4), nn::ReLU(), nn::Linear(4, 2)};
  net.load_state_dict(nn::load_safetensors(path));
  const auto inputs = model.at("x").get<std::vector<std::vector<float>>>();
  const auto logits = model.at("logits").get<std::vector<std::vector<double>>>();
  for (std::size_t row = 0; row < inputs.size(); ++row) {
    const Tensor x = Tensor::from(inputs[row]).view({1, 3});
    const auto y = elements(net(x));
    for (std::size_t k = 0; k < 2; ++k)
      CHECK(y[k] == doctest::Approx(logits[row][k]).epsilon(1e-6));
  }
}

TEST_CASE("safetensors: PyTorch's tensors of every dtype, and ours again after saving") {
  const TemporaryFolder folder;
  const nlohmann::json& all = stored().at("all");
  const std::string path = written(folder, bytes_of_hex(all.at("hex")));
  const auto check_all = [&](const nn::StateDict& tensors) {
    CHECK(tensors.size() == all.at("tensors").size());
    for (const auto& [name, expected] : all.at("tensors").items()) {
      CAPTURE(name);
      REQUIRE(tensors.contains(name));
      const Tensor& tensor = tensors.at(name);
      CHECK(tensor.shape() == Shape(std::span<const std::int64_t>(
                                  expected.at("shape").get<std::vector<std::int64_t>>())));
      if (tensor.dtype() == DType::i64)
        CHECK(tensor.to_vector<std::int64_t>() ==
              expected.at("values").get<std::vector<std::int64_t>>());
      else
        CHECK(elements(tensor) == expected.at("values").get<std::vector<double>>());
    }
  };
  const nn::StateDict tensors = nn::load_safetensors(path);
  check_all(tensors);
  CHECK(tensors.at("bf16").dtype() == DType::bf16);
  CHECK(tensors.at("bool").dtype() == DType::u8);
  const nn::SafetensorsFile file(path);
  CHECK(file.header().metadata == std::map<std::string, std::string>{{"made by", "PyTorch"}});
  CHECK(elements(file.read("scalar")) == std::vector<double>{0.25});
  CHECK_THROWS_WITH_AS(file.read("absent"), doctest::Contains("has no 'absent'"), DataError);
  nn::save_safetensors(folder / "again", tensors);
  check_all(nn::load_safetensors(folder / "again"));
}

TEST_CASE("safetensors: what is not read here is named") {
  const TemporaryFolder folder;
  for (const auto& [name, hex] : stored().at("other dtypes").items()) {
    const std::string text = said(written(folder, bytes_of_hex(hex)));
    CAPTURE(name);
    CAPTURE(text);
    CHECK(text.find("'t' has dtype ") != std::string::npos);
    CHECK(text.find("not read here") != std::string::npos);
  }
}

TEST_CASE("safetensors: headers that break the format's rules") {
  const TemporaryFolder folder;
  const auto entry = [](const std::string& name, const std::string& shape, int begin, int end,
                        const std::string& dtype = "U8") {
    return fmt::format(R"("{}": {{"dtype": "{}", "shape": {}, "data_offsets": [{}, {}]}})", name,
                       dtype, shape, begin, end);
  };
  const auto header = [](const std::vector<std::string>& entries) {
    return fmt::format("{{{}}}", fmt::join(entries, ", "));
  };
  struct Case {
    std::string json;
    std::size_t data;
    const char* part;
  };
  const std::vector<Case> cases = {
      {header({entry("a", "[3]", 0, 3)}), 3, "no error"},
      {header({entry("b", "[1]", 2, 3), entry("a", "[2]", 0, 2)}), 3, "no error"},
      {header({entry("a", "[0]", 0, 0), entry("b", "[]", 0, 1), entry("c", "[4, 0]", 1, 1)}), 1,
       "no error"},
      {"{}", 0, "no error"},
      {header({entry("a", "[3]", 0, 3)}) + "  \n", 3, "no error"},
      {"{}", 1, "tensors have 0 bytes, but 1 follow"},
      {header({entry("a", "[3]", 0, 3)}), 2, "tensors have 3 bytes, but 2 follow"},
      {header({entry("a", "[3]", 0, 3)}), 4, "tensors have 3 bytes, but 4 follow"},
      {header({entry("a", "[3]", 1, 4)}), 4, "'a' begins at byte 1 of the data, not at 0"},
      {header({entry("a", "[2]", 0, 2), entry("b", "[2]", 1, 3)}), 3, "'b' begins at byte 1"},
      {header({entry("a", "[2]", 0, 2), entry("b", "[2]", 3, 5)}), 5, "'b' begins at byte 3"},
      {header({entry("a", "[2]", 0, 3)}), 3, "'a' has bytes 0 to 3"},
      {header({entry("a", "[2]", 2, 0)}), 2, "'a' begins at byte 2"},
      {header({entry("a", "[2]", 0, 4, "F32")}), 4, "of shape (2,) has 8 bytes"},
      {header({entry("a", "[4294967296, 4294967296, 4294967296]", 0, 0)}), 0, "'a': "},
      {header({entry("a", "[1,1,1,1,1,1,1]", 0, 1)}), 1,
       "'a' has 7 dimensions, of which at most 6"},
      {header({entry("a", "[1]", 0, 2, "I9")}), 1, "tensors have 2 bytes, but 1 follow"},
      {header({entry("a", "[1]", 1, 0, "I9"), entry("b", "[1]", 0, 1)}), 1, "'a' "},
      {header({entry("a", "[-1]", 0, 1)}), 1, "a negative number"},
      {header({entry("a", "[1.0]", 0, 1)}), 1, "a fraction"},
      {header({entry("a", "[18446744073709551615]", 0, 1)}), 1, "see 'shape'"},
      {header({entry("a", "[[1]]", 0, 1)}), 1, "a list"},
      {header({entry("a", "\"1\"", 0, 1)}), 1, "a text"},
      {header({entry("a", "null", 0, 1)}), 1, "null"},
      {header({entry("a", "[1]", 0, 1), entry("a", "[1]", 1, 2)}), 2, "'a' stands there twice"},
      {R"({"a": {"dtype": "U8", "dtype": "U8", "shape": [], "data_offsets": [0, 1]}})", 1,
       "a text"},
      {R"({"a": {"dtype": "U8", "shape": []}})", 0, "lacks"},
      {R"({"a": {"dtype": "U8", "shape": [], "data_offsets": [0]}})", 1, "lacks"},
      {R"({"a": {"dtype": "U8", "shape": [], "data_offsets": [0, 1], "more": 1}})", 1, "a number"},
      {R"({"a": 5})", 0, "a number"},
      {R"({"__metadata__": {"k": 1}})", 0, "a number"},
      {R"({"__metadata__": {"k": "1", "k": "2"}})", 0, "'k' stands twice"},
      {R"({"__metadata__": {"k": "1"}, "__metadata__": {}})", 0, "stands there twice"},
      {R"([1])", 0, "does not begin with '{'"},
      {R"( {})", 0, "does not begin with '{'"},
      {R"({} x)", 0, "no JSON"},
      {R"({"a")", 0, "no JSON"},
      {"{\"\xff\": 1}", 0, "no JSON"},
      {"", 0, "does not begin"},
  };
  for (const auto& [json, data, part] : cases) {
    CAPTURE(json);
    const std::string text = said(written(folder, file_of(json, data)));
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  }
}

TEST_CASE("safetensors: files that are none, or cut short") {
  const TemporaryFolder folder;
  const auto check_says = [&](const std::string& path, const char* part) {
    const std::string text = said(path);
    CAPTURE(text);
    CHECK(text.find(part) != std::string::npos);
  };
  check_says(folder / "absent", "No such file");
  check_says(folder / "", "a folder");
  check_says(written(folder, ""), "it has 0 bytes");
  check_says(written(folder, "1234567"), "it has 7 bytes");
  check_says(written(folder, std::string(8, '\xff')), "cut short");
  const std::string whole = bytes_of_hex(stored().at("all").at("hex"));
  for (std::size_t length = 0; length < whole.size(); ++length) {
    CAPTURE(length);
    CHECK(said(written(folder, whole.substr(0, length))) != "no error");
  }
}

TEST_CASE("safetensors: every byte of the header changed is an error or another lawful header") {
  const TemporaryFolder folder;
  const std::string whole = bytes_of_hex(stored().at("all").at("hex"));
  std::uint64_t length = 0;
  std::memcpy(&length, whole.data(), 8);
  int errors = 0;
  for (std::size_t i = 0; i < 8 + length; ++i)
    for (const int mask : {1, 0x20, 0x80, 0xff}) {
      CAPTURE(i);
      std::string bytes = whole;
      bytes[i] = static_cast<char>(bytes[i] ^ mask);
      errors += said(written(folder, bytes)) != "no error";
    }
  CHECK(errors > static_cast<int>(2 * length));
}

TEST_CASE("safetensors: a header of many entries takes memory in proportion") {
  const TemporaryFolder folder;
  std::string json = "{";
  for (int i = 0; i < 20000; ++i)
    json +=
        fmt::format(R"({}"{}":{{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})", i ? "," : "", i);
  const std::string path = written(folder, file_of(json + "}", 0));
  CHECK(nn::SafetensorsFile(path).header().entries.size() == 20000);
}

TEST_SUITE_END();
