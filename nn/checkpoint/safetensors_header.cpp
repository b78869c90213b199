#include "lockstep/nn/checkpoint/safetensors_header.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <utility>

#include "lockstep/core/text/utf8.h"

namespace lockstep::nn {
namespace {

using Format = std::pair<std::string_view, DType>;
// The last is only read.
constexpr std::array<Format, 8> formats{{{"F32", DType::f32},
                                         {"F64", DType::f64},
                                         {"I64", DType::i64},
                                         {"I32", DType::i32},
                                         {"U8", DType::u8},
                                         {"F16", DType::f16},
                                         {"BF16", DType::bf16},
                                         {"BOOL", DType::u8}}};
constexpr std::string_view metadata_name = "__metadata__";

// Events of the JSON parser, so that a key that stands there twice is seen, and nothing is kept but
// what the format has. An event that does not fit ends the parsing.
class Reader final : public nlohmann::json_sax<nlohmann::json> {
 public:
  SafetensorsHeader header;

  bool start_object(std::size_t) override {
    if (where_ == Where::outside) return enter(Where::top);
    if (where_ != Where::top) return refuse("an object");
    if (key_ == metadata_name) return enter(Where::metadata);
    entry_ = {};
    entry_.name = key_;
    has_dtype_ = false;
    shape_.reset();
    offsets_.reset();
    return enter(Where::tensor);
  }

  bool key(std::string& text) override {
    key_ = std::move(text);
    if (where_ == Where::top)
      check<DataError>(names_.insert(key_).second, "'{}' stands there twice", key_);
    if (where_ == Where::metadata)
      check<DataError>(!header.metadata.contains(key_), "'{}' stands twice in '{}'", key_,
                       metadata_name);
    return true;
  }

  bool string(std::string& text) override {
    if (where_ == Where::metadata) return header.metadata.emplace(key_, std::move(text)), true;
    if (where_ != Where::tensor || key_ != "dtype" || has_dtype_) return refuse("a text");
    const auto* format = std::ranges::find(formats, text, &Format::first);
    if (format != formats.end())
      entry_.dtype = format->second;
    else
      entry_.unread = fmt::format("has dtype {}, which is not read here", text.substr(0, 40));
    has_dtype_ = true;
    return true;
  }

  bool start_array(std::size_t) override {
    if (where_ != Where::tensor) return refuse("a list");
    std::optional<std::vector<std::int64_t>>* numbers = key_ == "shape"          ? &shape_
                                                        : key_ == "data_offsets" ? &offsets_
                                                                                 : nullptr;
    if (!numbers || *numbers) return refuse("a list");
    numbers_ = &numbers->emplace();
    return enter(Where::numbers);
  }

  bool number_unsigned(std::uint64_t number) override {
    if (where_ != Where::numbers || !std::in_range<std::int64_t>(number) ||
        (key_ != "shape" && numbers_->size() == 2))
      return refuse("a number");
    numbers_->push_back(static_cast<std::int64_t>(number));
    return true;
  }

  bool end_array() override { return enter(Where::tensor); }

  bool end_object() override {
    if (where_ == Where::tensor) finish_entry();
    return enter(where_ == Where::top ? Where::done : Where::top);
  }

  bool null() override { return refuse("null"); }
  bool boolean(bool) override { return refuse("true or false"); }
  bool number_integer(std::int64_t) override { return refuse("a negative number"); }
  bool number_float(double, const std::string&) override { return refuse("a fraction"); }
  bool binary(nlohmann::json::binary_t&) override { return refuse("bytes"); }
  bool parse_error(std::size_t at, const std::string&, const nlohmann::json::exception&) override {
    fail<DataError>("its header is no JSON: see byte {}", at);
  }

 private:
  enum class Where { outside, top, metadata, tensor, numbers, done };

  bool enter(Where where) {
    where_ = where;
    return true;
  }

  bool refuse(std::string_view what) const {
    fail<DataError>("its header has {} where none belongs: see '{}'", what, key_.substr(0, 80));
  }

  void finish_entry() {
    const std::string& name = entry_.name;
    check<DataError>(has_dtype_ && shape_ && offsets_ && offsets_->size() == 2,
                     "'{}' lacks its dtype, its shape or its two data_offsets", name);
    const std::size_t rank = shape_->size();
    if (entry_.unread.empty() && rank > Shape::max_rank)
      entry_.unread = fmt::format("has {} dimensions, of which at most {} are read here", rank,
                                  Shape::max_rank);
    try {
      if (entry_.unread.empty()) entry_.shape = Shape(*shape_);
    } catch (const ShapeError& error) {
      fail<DataError>("'{}': {}", name, error.what());
    }
    entry_.begin = static_cast<std::uint64_t>((*offsets_)[0]);
    entry_.end = static_cast<std::uint64_t>((*offsets_)[1]);
    header.entries.push_back(std::move(entry_));
  }

  Where where_ = Where::outside;
  std::string key_;
  std::set<std::string> names_;
  SafetensorsEntry entry_;
  bool has_dtype_ = false;
  std::optional<std::vector<std::int64_t>> shape_, offsets_;
  std::vector<std::int64_t>* numbers_ = nullptr;
};

// Each begins where the one before it ends.
void check_places(const SafetensorsHeader& header, std::uint64_t data_bytes) {
  std::uint64_t end = 0;
  for (const auto& entry : header.entries) {
    check<DataError>(entry.begin == end, "'{}' begins at byte {} of the data, not at {}",
                     entry.name, entry.begin, end);
    const std::uint64_t bytes =
        static_cast<std::uint64_t>(entry.shape.numel()) * size_of(entry.dtype);
    if (entry.unread.empty())
      check<DataError>(entry.end >= entry.begin && entry.end - entry.begin == bytes,
                       "'{}' has bytes {} to {} of the data, but {} of shape {} has {} bytes",
                       entry.name, entry.begin, entry.end, entry.dtype, entry.shape, bytes);
    else
      check<DataError>(entry.end >= entry.begin, "'{}' has bytes {} to {} of the data", entry.name,
                       entry.begin, entry.end);
    end = entry.end;
  }
  check<DataError>(end == data_bytes, "its tensors have {} bytes, but {} follow its header", end,
                   data_bytes);
}

// Gives each entry its place: by falling element size, then by name.
std::vector<SafetensorsEntry> in_order(std::vector<SafetensorsEntry> entries) {
  std::ranges::sort(entries, [](const auto& a, const auto& b) {
    return std::pair(size_of(b.dtype), a.name) < std::pair(size_of(a.dtype), b.name);
  });
  std::uint64_t offset = 0;
  for (auto& entry : entries) {
    entry.begin = offset;
    offset += static_cast<std::uint64_t>(entry.shape.numel()) * size_of(entry.dtype);
    entry.end = offset;
  }
  return entries;
}

}  // namespace

const SafetensorsEntry* SafetensorsHeader::find(std::string_view name) const {
  const auto found = std::ranges::find(entries, name, &SafetensorsEntry::name);
  return found == entries.end() ? nullptr : &*found;
}

SafetensorsHeader plan_safetensors(const StateDict& tensors,
                                   std::map<std::string, std::string> metadata) {
  SafetensorsHeader header;
  header.metadata = std::move(metadata);
  const auto check_text = [](std::string_view what, const std::string& text) {
    check<UsageError>(is_utf8(text), "[save] {} '{}' is not UTF-8", what, text);
  };
  for (const auto& [key, text] : header.metadata) {
    check_text("the metadata's key", key);
    check_text(fmt::format("the metadata's '{}',", key), text);
  }
  for (const auto& [name, tensor] : tensors) {
    check_text("the name", name);
    check<UsageError>(name != metadata_name, "[save] '{}' cannot be a tensor's name", name);
    check<UsageError>(tensor.defined(), "[save] '{}' is undefined", name);
    header.entries.push_back({name, tensor.dtype(), tensor.shape()});
  }
  header.entries = in_order(std::move(header.entries));
  return header;
}

std::string to_bytes(const SafetensorsHeader& header) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  if (!header.metadata.empty()) json[std::string(metadata_name)] = header.metadata;
  // Not json[name], which compares it with all names before it.
  auto& members = json.get_ref<nlohmann::ordered_json::object_t&>();
  for (const auto& entry : header.entries)
    members.emplace_back(
        entry.name,
        nlohmann::ordered_json{
            {"dtype", std::ranges::find(formats, entry.dtype, &Format::second)->first},
            {"shape", std::vector<std::int64_t>(entry.shape.begin(), entry.shape.end())},
            {"data_offsets", {entry.begin, entry.end}}});
  std::string text = json.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const std::uint64_t length = text.size();
  std::string bytes(sizeof length, '\0');
  std::memcpy(bytes.data(), &length, sizeof length);
  return bytes + text;
}

SafetensorsHeader header_of_bytes(std::string_view bytes) {
  const std::string_view json = bytes.substr(sizeof(std::uint64_t));
  Reader reader;
  nlohmann::json::sax_parse(json, &reader);
  return std::move(reader.header);
}

SafetensorsHeader parse_safetensors(std::string_view json, std::uint64_t data_bytes) {
  check<DataError>(json.starts_with('{'), "its header does not begin with '{{'");
  Reader reader;
  nlohmann::json::sax_parse(json, &reader);  // throws what the reader throws
  std::ranges::stable_sort(reader.header.entries, {}, [](const SafetensorsEntry& entry) {
    return std::pair(entry.begin, entry.end);
  });
  check_places(reader.header, data_bytes);
  return std::move(reader.header);
}

}  // namespace lockstep::nn
