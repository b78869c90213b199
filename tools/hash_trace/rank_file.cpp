#include "lockstep/tools/hash_trace/rank_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "lockstep/core/error.h"
#include "lockstep/core/lanes.h"
#include "lockstep/core/system/file_kind.h"
#include "lockstep/dist/rendezvous/ranks.h"
#include "lockstep/tools/split.h"

namespace lockstep::hashes {
namespace {

using cli::split;

constexpr std::string_view magic = "lockstep hash trace ";

bool in_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == text.npos;
}

}  // namespace

int Record::first_lane() const { return std::stoi(of); }
int Record::lanes() const { return std::stoi(of.substr(of.find('/') + 1)); }

std::string Record::describe() const {
  const std::string at = name.empty() ? "" : fmt::format(" ('{}')", name);
  if (place == "forward") return fmt::format("output of {}{}", operation, at);
  if (place == "backward") return fmt::format("gradient of the output of {}{}", operation, at);
  if (place == "input") return fmt::format("input of {}{}", operation, at);
  if (place == "parameter" && operation.empty())
    return fmt::format("parameter '{}' after the step", name);
  if (place == "parameter") return fmt::format("parameter '{}', as {} uses it", name, operation);
  if (place == "buffer") return fmt::format("buffer '{}'", name);
  if (of == "world") return fmt::format("gradient of '{}', as the optimizer takes it", name);
  return fmt::format("gradient of '{}' on its rank{}{}", name, operation.empty() ? "" : ", from ",
                     operation);
}

RankFile::RankFile(const std::string& path) : path_(path) {
  const std::string why = why_unreadable(path);
  check<UsageError>(why.empty(), "cannot read '{}': {}", path, why);
  file_.open(path, std::ios::binary);
  const bool whole = read_line();
  if (!whole && (line_.empty() || magic.starts_with(line_) || line_.starts_with(magic)))
    fail<UsageError>("'{}' is {}: its run has not begun to compute", path,
                     line_.empty() ? "empty" : "cut off in its first line");
  check<UsageError>(line_.starts_with(magic),
                    "'{}' is not a hash trace (train --hash-trace writes one)", path);
  const auto fields = split(std::string_view(line_).substr(magic.size()), '\t');
  check<UsageError>(fields[0] == "1", "'{}' is a hash trace of version {}; this program reads 1",
                    path, fields[0]);
  if (fields.size() != 4) refuse("has not 4 fields");
  run_ = fields[1];
  rank_ = static_cast<int>(number(fields[2], 0));
  ranks_ = static_cast<int>(number(fields[3], 1));
  if (rank_ >= ranks_) refuse("names a rank that there is not");
}

bool RankFile::read_line() {
  ++line_number_;
  // Without a line feed it is cut off.
  return static_cast<bool>(std::getline(file_, line_)) && !file_.eof();
}

void RankFile::refuse(std::string_view why) const {
  fail<UsageError>("'{}' is damaged: line {} {}", path_, line_number_, why);
}

std::int64_t RankFile::number(std::string_view text, std::int64_t least) const {
  const auto value = dist::parse_number<std::int64_t>(text);
  if (!value || *value < least || *value > std::numeric_limits<int>::max() * std::int64_t{1024})
    refuse(fmt::format("has '{}' for a number", text));
  return *value;
}

Shape RankFile::shape_of(std::string_view text) const {
  std::vector<std::int64_t> sizes;
  constexpr std::string_view digits = "0123456789";
  for (std::size_t at = 0; (at = text.find_first_of(digits, at)) != text.npos;) {
    const std::size_t end = std::min(text.find_first_not_of(digits, at), text.size());
    sizes.push_back(number(text.substr(at, end - at), 0));
    at = end;
  }
  try {
    const Shape shape(sizes);
    if (shape.to_string() == text) return shape;
  } catch (const ShapeError&) {  // too many of them, or too large
  }
  refuse(fmt::format("has '{}' for a shape", text));
}

void RankFile::check_of(const Record& record) const {
  if (!record.of_lanes()) {
    if (record.hashes.size() != 1) refuse("has several hashes of one value");
    return;
  }
  const auto parts = split(record.of, '/');
  if (parts.size() != 2) refuse(fmt::format("has '{}' for what it belongs to", record.of));
  const std::int64_t first = number(parts[0], 0), lanes = number(parts[1], 1);
  if (lanes > max_lanes || first + std::ssize(record.hashes) > lanes)
    refuse(fmt::format("has {} hashes from lane {} on", record.hashes.size(), record.of));
}

bool RankFile::next() {
  if (complete_ || !read_line()) return false;
  const auto fields = split(line_, '\t');
  if (fields[0] == "end" && fields.size() == 2) {
    if (number(fields[1], 0) != records_)
      refuse(fmt::format("counts {} records, there are {}", fields[1], records_));
    complete_ = true;
    return false;
  }
  if (fields.size() != 8 && fields.size() != 9) refuse("has not 8 fields");
  Record record;
  record.step = number(fields[0], 0);
  record.number = record.step == record_.step ? record_.number + 1 : 1;
  record.place = visible(std::string(fields[1]));  // what is shown may be anybody's
  record.operation = visible(std::string(fields[2]));
  record.name = visible(std::string(fields[3]));
  record.elements.dtype = visible(std::string(fields[4]));
  record.elements.shape = shape_of(fields[5]);
  record.of = fields[6];
  for (const std::string_view hash : split(fields[7], ',')) {
    if (hash.size() != 16 || !in_hex(hash)) refuse(fmt::format("has '{}' for a hash", hash));
    record.hashes.emplace_back(hash);
  }
  if (fields.size() == 9) record.elements.hex = fields[8];
  if (!in_hex(record.elements.hex)) refuse("has values that are not in hex");
  check_of(record);
  record_ = std::move(record);
  ++records_;
  return true;
}

}  // namespace lockstep::hashes
