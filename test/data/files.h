#pragma once
/// Small IDX files.

#include <zlib.h>

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <string>
#include <vector>

#include "support/temporary_folder.h"

namespace lockstep::data {

using Bytes = std::vector<std::uint8_t>;

using test::TemporaryFolder;

/// Writes a file of that name into the folder.
inline std::filesystem::path write(const TemporaryFolder& folder, const std::string& name,
                                   const Bytes& bytes) {
  const std::filesystem::path file = folder / name;
  std::ofstream(file, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  return file;
}

/// An IDX file of element type `code` (08: u8, ...), whose elements are given as they lie in the
/// file.
inline Bytes idx_bytes(std::uint8_t code, std::initializer_list<std::uint32_t> sizes,
                       const Bytes& elements) {
  Bytes bytes{0, 0, code, static_cast<std::uint8_t>(sizes.size())};
  for (std::uint32_t size : sizes)
    for (int shift : {24, 16, 8, 0}) bytes.push_back(static_cast<std::uint8_t>(size >> shift));
  bytes.insert(bytes.end(), elements.begin(), elements.end());
  return bytes;
}

inline Bytes gzip(const Bytes& bytes) {
  z_stream stream{};
  deflateInit2(&stream, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY);
  Bytes packed(deflateBound(&stream, bytes.size()));
  stream.next_in = const_cast<Bytef*>(bytes.data());
  stream.avail_in = static_cast<uInt>(bytes.size());
  stream.next_out = packed.data();
  stream.avail_out = static_cast<uInt>(packed.size());
  deflate(&stream, Z_FINISH);
  packed.resize(stream.total_out);
  deflateEnd(&stream);
  return packed;
}

/// first, first + step, ... (modulo 256).
inline Bytes ramp(std::size_t count, int first = 0, int step = 1) {
  Bytes bytes(count);
  for (std::size_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::uint8_t>(first + static_cast<int>(i) * step);
  return bytes;
}

}  // namespace lockstep::data
