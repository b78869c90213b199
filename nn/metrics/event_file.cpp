#include "lockstep/nn/metrics/event_file.h"

#include <bit>

#include "lockstep/core/system/crc32c.h"

namespace lockstep::nn {
namespace {

/// `count` bytes of a number, the lowest first.
std::string little_endian(std::uint64_t number, int count) {
  std::string bytes;
  for (int i = 0; i < count; ++i) bytes += static_cast<char>(number >> (8 * i) & 0xff);
  return bytes;
}

std::string masked_checksum(std::string_view bytes) {
  return little_endian((std::rotr(crc32c(bytes), 15) + 0xa282ead8u) & 0xffffffffu, 4);
}

// ---- protobuf: a field is its number and its wire type, then what it holds ----

enum class Wire : std::uint8_t { varint = 0, bits64 = 1, bytes = 2, bits32 = 5 };

/// Seven bits in each byte, the lowest first; the highest bit says that more follow.
std::string varint(std::uint64_t number) {
  std::string bytes;
  for (; number >= 0x80; number >>= 7) bytes += static_cast<char>((number & 0x7f) | 0x80);
  return bytes += static_cast<char>(number);
}

std::string key(int field, Wire wire) {
  return varint(static_cast<std::uint64_t>(field) << 3 | static_cast<std::uint64_t>(wire));
}
std::string field_integer(int field, std::int64_t number) {
  return key(field, Wire::varint) + varint(static_cast<std::uint64_t>(number));
}
std::string field_double(int field, double number) {
  return key(field, Wire::bits64) + little_endian(std::bit_cast<std::uint64_t>(number), 8);
}
std::string field_float(int field, float number) {
  return key(field, Wire::bits32) + little_endian(std::bit_cast<std::uint32_t>(number), 4);
}
std::string field_bytes(int field, std::string_view bytes) {
  return key(field, Wire::bytes) + varint(bytes.size()) + std::string(bytes);
}

/// Event: wall_time is its field 1, step 2, file_version 3, summary 5, session_log 7.
std::string event(double wall_time, std::int64_t step, const std::string& what) {
  // A field that is 0 is left out, as protobuf does it.
  return field_double(1, wall_time) + (step == 0 ? "" : field_integer(2, step)) + what;
}

}  // namespace

std::string event_record(std::string_view data) {
  const std::string length = little_endian(data.size(), 8);
  return length + masked_checksum(length) + std::string(data) + masked_checksum(data);
}

std::string version_event(double wall_time) {
  return event(wall_time, 0, field_bytes(3, "brain.Event:2"));
}

std::string start_event(double wall_time, std::int64_t step) {
  constexpr int start = 1;  // SessionLog: status is its field 1, START has the number 1
  return event(wall_time, step, field_bytes(7, field_integer(1, start)));
}

std::string scalar_event(double wall_time, std::int64_t step, std::string_view tag, float value) {
  // Summary: a value is its field 1. Value: tag is its field 1, simple_value 2.
  const std::string one = field_bytes(1, tag) + field_float(2, value);
  return event(wall_time, step, field_bytes(5, field_bytes(1, one)));
}

}  // namespace lockstep::nn
