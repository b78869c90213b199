#include "lockstep/nn/checkpoint/manifest.h"

#include <nlohmann/json.hpp>

#include "lockstep/core/digest.h"
#include "lockstep/version.h"

namespace lockstep::nn {
namespace {

constexpr const char *manifest_name = "lockstep", *hash_name = "lockstep.sha256";

std::string hash_of(std::string_view text) {
  Digest digest;
  return Digest::hex(digest.add(std::as_bytes(std::span(text))).value());
}

}  // namespace

std::string sha256_of(const Tensor& tensor) {
  const Tensor here = tensor.to(Device{});
  const std::string what = fmt::format("{} {} ", here.dtype(), here.shape());
  Digest digest;
  digest.add(std::as_bytes(std::span(what)));
  return Digest::hex(digest.add({here.raw(), here.bytes()}).value());
}

std::map<std::string, std::string> to_metadata(const Manifest& manifest) {
  const nlohmann::ordered_json json = {{"format", manifest.format},
                                       {"version", manifest.version},
                                       {"world", manifest.world},
                                       {"numbers", manifest.numbers},
                                       {"bucket_layout", manifest.bucket_layout},
                                       {"sha256", manifest.sha256}};
  const std::string text = json.dump();
  return {{manifest_name, text}, {hash_name, hash_of(text)}};
}

Manifest parse_manifest(const std::map<std::string, std::string>& metadata) {
  const auto text = metadata.find(manifest_name), hash = metadata.find(hash_name);
  check<DataError>(text != metadata.end() && hash != metadata.end(),
                   "it is a file of tensors, but no checkpoint (load_safetensors reads it)");
  check<DataError>(hash_of(text->second) == hash->second,
                   "its manifest is damaged: it does not have the hash that stands beside it");
  try {
    const auto json = nlohmann::json::parse(text->second);
    Manifest manifest;
    manifest.format = json.at("format");
    manifest.version = json.at("version");
    check<DataError>(manifest.format <= Manifest::newest_format,
                     "it has format {}, written by version {}; this is {}, which reads up to {}",
                     manifest.format, manifest.version, version(), Manifest::newest_format);
    manifest.world = json.at("world");
    manifest.numbers = json.at("numbers");
    manifest.bucket_layout = json.at("bucket_layout");
    manifest.sha256 = json.at("sha256");
    return manifest;
  } catch (const nlohmann::json::exception& error) {
    fail<DataError>("its manifest is none: {}", error.what());
  }
}

}  // namespace lockstep::nn
