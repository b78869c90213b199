#pragma once
/// The bytes of TensorBoard's event files: pure functions.
///
/// A file is a list of records (TFRecord):
///
///   length of the data   u64      numbers are little-endian
///   its checksum         u32
///   data                 an Event of event.proto, in protobuf's encoding
///   its checksum         u32
///
/// Source: tensorflow/core/lib/io/record_writer.cc, core/util/event.proto and
/// core/framework/summary.proto of TensorFlow, and protobuf.dev/programming-guides/encoding. The
/// first record must be the version's.

#include <cstdint>
#include <string>
#include <string_view>

namespace lockstep::nn {

/// `data` as a record. A checksum is a CRC-32C, turned by 15 bits, plus a constant.
std::string event_record(std::string_view data);

/// Events. Times are seconds since 1970.
std::string version_event(double wall_time);
/// A run begins, or goes on, at this step: what earlier files say of it and later steps is void.
std::string start_event(double wall_time, std::int64_t step);
std::string scalar_event(double wall_time, std::int64_t step, std::string_view tag, float value);

}  // namespace lockstep::nn
