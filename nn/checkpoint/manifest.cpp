#include "lockstep/nn/checkpoint/manifest.h"

#include <limits>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>
#include <vector>

#include "lockstep/core/digest.h"
#include "lockstep/dist/rendezvous/environment.h"
#include "lockstep/version.h"

namespace lockstep::nn {
namespace {

constexpr const char *manifest_name = "lockstep", *hash_name = "lockstep.sha256";

std::string hash_of(std::string_view text) {
  Digest digest;
  return Digest::hex(digest.add(std::as_bytes(std::span(text))).value());
}

using Json = nlohmann::json;

std::string shown(const Json& value) { return value.dump(-1, ' ', true).substr(0, 40); }

// Not 1.5, true or "1", which nlohmann's conversions would cut or take for a number.
std::int64_t whole_number(std::string_view name, const Json& value,
                          std::int64_t least = std::numeric_limits<std::int64_t>::min(),
                          std::int64_t most = std::numeric_limits<std::int64_t>::max()) {
  const bool whole =
      value.is_number_integer() &&  // of any sign
      !(value.is_number_unsigned() && !std::in_range<std::int64_t>(value.get<std::uint64_t>()));
  check<DataError>(whole && value.get<std::int64_t>() >= least && value.get<std::int64_t>() <= most,
                   "its manifest is damaged: '{}' is {}, and must be a whole number from {} to {}",
                   name, shown(value), least, most);
  return value.get<std::int64_t>();
}

std::string text(std::string_view name, const Json& value) {
  check<DataError>(value.is_string(), "its manifest is damaged: '{}' is {}, and must be a text",
                   name, shown(value));
  return value.get<std::string>();
}

const Json& object(std::string_view name, const Json& value) {
  check<DataError>(value.is_object(), "its manifest is damaged: '{}' is {}, and must be an object",
                   name, shown(value));
  return value;
}

// nlohmann's parser keeps the last of several values of a name; programs differ in which they take.
Json parse_once(const std::string& text) {
  std::vector<std::set<std::string>> seen;  // names, of each object that has begun
  return Json::parse(text, [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) seen.emplace_back();
    if (event == Json::parse_event_t::object_end) seen.pop_back();
    if (event == Json::parse_event_t::key)
      check<DataError>(seen.back().insert(parsed.get<std::string>()).second,
                       "its manifest is damaged: '{}' is there twice", parsed.get<std::string>());
    return true;
  });
}

std::string sha256(const std::string& name, const Json& value) {
  const std::string hash = text(name, value);
  check<DataError>(hash.size() == 64 && hash.find_first_not_of("0123456789abcdef") == hash.npos,
                   "its manifest is damaged: the SHA-256 of '{}' is {}", name, shown(value));
  return hash;
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
  const auto manifest_text = metadata.find(manifest_name), hash = metadata.find(hash_name);
  check<DataError>(manifest_text != metadata.end() && hash != metadata.end(),
                   "it is a file of tensors, but no checkpoint (load_safetensors reads it)");
  check<DataError>(hash_of(manifest_text->second) == hash->second,
                   "its manifest is damaged: it does not have the hash that stands beside it");
  try {
    const Json json = object("manifest", parse_once(manifest_text->second));
    Manifest manifest;
    manifest.format = static_cast<int>(
        whole_number("format", json.at("format"), 1, std::numeric_limits<int>::max()));
    manifest.version = text("version", json.at("version"));
    check<DataError>(manifest.format <= Manifest::newest_format,
                     "it has format {}, written by version {}; this is {}, which reads up to {}",
                     manifest.format, manifest.version, version(), Manifest::newest_format);
    manifest.world = static_cast<int>(whole_number("world", json.at("world"), 1, dist::max_ranks));
    for (const auto& [name, value] : object("numbers", json.at("numbers")).items())
      manifest.numbers[name] = whole_number(name, value);
    manifest.bucket_layout = text("bucket_layout", json.at("bucket_layout"));
    for (const auto& [name, value] : object("sha256", json.at("sha256")).items())
      manifest.sha256[name] = sha256(name, value);
    return manifest;
  } catch (const Json::exception& error) {
    fail<DataError>("its manifest is none: {}", error.what());
  }
}

}  // namespace lockstep::nn
