// What a manifest may say: each of its fields is tried with values of every wrong kind.

#include "lockstep/nn/checkpoint/manifest.h"

#include <doctest/doctest.h>

#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "lockstep/core/digest.h"

using namespace lockstep;
using nlohmann::json;

namespace {

using Metadata = std::map<std::string, std::string>;

json whole_manifest() {
  nn::Manifest manifest;
  manifest.version = "0.1";
  manifest.world = 3;
  manifest.bucket_layout = "1 0 / ";
  manifest.numbers = {{"epoch", 4}, {"offset", -7}};
  manifest.sha256 = {{"model/w", std::string(64, 'a')}};
  return json::parse(nn::to_metadata(manifest).at("lockstep"));
}

/// As a file has it that somebody has written so: with the right hash.
Metadata sealed(const std::string& text) {
  Digest digest;
  digest.add(std::as_bytes(std::span(text)));
  return {{"lockstep", text}, {"lockstep.sha256", Digest::hex(digest.value())}};
}
Metadata sealed(const json& manifest) { return sealed(manifest.dump()); }

std::string refusal(const auto& manifest) {
  try {
    nn::parse_manifest(sealed(manifest));
  } catch (const DataError& error) {
    return error.what();
  }
  return "";
}

}  // namespace

TEST_CASE("manifest: there and back") {
  const nn::Manifest manifest = nn::parse_manifest(sealed(whole_manifest()));
  CHECK(manifest.format == 1);
  CHECK(manifest.world == 3);
  CHECK(manifest.numbers == std::map<std::string, std::int64_t>{{"epoch", 4}, {"offset", -7}});
  CHECK(manifest.sha256 == std::map<std::string, std::string>{{"model/w", std::string(64, 'a')}});
  CHECK(manifest.version == "0.1");
  CHECK(manifest.bucket_layout == "1 0 / ");
}

TEST_CASE("manifest: a tensor's hash is one of its bytes, its shape and its type") {
  const auto hash = [](const Shape& shape, DType dtype) {
    return nn::sha256_of(Tensor::zeros(shape, dtype));
  };
  CHECK(hash({2, 3}, DType::f32) == hash({2, 3}, DType::f32));
  std::set<std::string> all;
  for (const Shape& shape : {Shape{2, 3}, Shape{3, 2}, Shape{6}, Shape{6, 1}, Shape{1, 6}})
    for (const DType dtype : {DType::f32, DType::i32}) CHECK(all.insert(hash(shape, dtype)).second);
  for (const Shape& shape : {Shape{0}, Shape{0, 2}, Shape{2, 0}})  // without a byte
    CHECK(all.insert(hash(shape, DType::f32)).second);
  const Tensor other = Tensor::zeros({6});
  other.data<float>()[5] = -0.0F;
  CHECK(all.insert(nn::sha256_of(other)).second);
}

TEST_CASE("manifest: every number is whole and in its range") {
  const json bad[] = {1.5,
                      1e3,
                      "3",
                      true,
                      nullptr,
                      json::array({3}),
                      json::object(),
                      9223372036854775808u,
                      18446744073709551615u,
                      1e300};
  struct Field {
    const char* place;
    std::vector<json> also;
  };
  const Field fields[] = {{"/format", {-1, 0, 2147483648}},
                          {"/world", {-5, 0, 4097, 1 << 20, 4294967299}},
                          {"/numbers/epoch", {}}};
  for (const auto& [place, also] : fields) {
    std::vector<json> values(std::begin(bad), std::end(bad));
    values.insert(values.end(), also.begin(), also.end());
    for (const json& value : values) {
      json manifest = whole_manifest();
      manifest[json::json_pointer(place)] = value;
      const std::string message = refusal(manifest);
      CAPTURE(place);
      CAPTURE(message);
      CHECK(message.find(std::string(place).substr(std::string(place).rfind('/') + 1)) !=
            std::string::npos);
      CHECK(message.find(value.dump().substr(0, 40)) != std::string::npos);
    }
  }
  json newer = whole_manifest();
  newer["format"] = 2;
  CHECK(refusal(newer).find("it has format 2, written by version 0.1") != std::string::npos);
}

TEST_CASE("manifest: every other field is of its kind, and there") {
  for (const char* place :
       {"/version", "/bucket_layout", "/numbers", "/sha256", "/sha256/model~1w"})
    for (const json& value : {json(-5), json(1.5), json(true), json(nullptr), json::array()}) {
      json manifest = whole_manifest();
      manifest[json::json_pointer(place)] = value;
      CAPTURE(place);
      CHECK(refusal(manifest).starts_with("its manifest is damaged: "));
    }
  for (const char* hash : {"", "a", "A", "g"}) {
    json manifest = whole_manifest();
    manifest["sha256"]["model/w"] = hash + std::string(*hash == 'a' ? 62 : 63, 'a');
    CHECK(refusal(manifest).find("the SHA-256 of 'model/w' is") != std::string::npos);
  }
  const json whole = whole_manifest();
  for (const auto& [name, value] : whole.items()) {
    json manifest = whole_manifest();
    manifest.erase(name);
    CAPTURE(name);
    CHECK(refusal(manifest).find(name) != std::string::npos);
  }
  CHECK(refusal(json::array({1})) != "");
}

TEST_CASE("manifest: no name is there twice, at any depth") {
  const std::string whole = whole_manifest().dump();
  for (const std::string member :
       {R"("world":3)", R"("format":1)", R"("version":"0.1")", R"("epoch":4)", R"("offset":-7)"}) {
    CAPTURE(member);
    const auto at = whole.find(member);
    REQUIRE(at != whole.npos);
    const std::string name = member.substr(1, member.find(':') - 2);
    for (const std::string& again : {member, '"' + name + "\":1"}) {
      std::string twice = whole;
      twice.insert(at, again + ",");
      CHECK(refusal(twice).find("'" + name + "' is there twice") != std::string::npos);
    }
  }
  json manifest = whole_manifest();  // one in each of two objects is no second one
  manifest["numbers"]["world"] = 7;
  CHECK(nn::parse_manifest(sealed(manifest)).numbers.at("world") == 7);
  CHECK(nn::parse_manifest(sealed(manifest)).world == 3);
}
