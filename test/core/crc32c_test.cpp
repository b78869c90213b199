// CRC-32C of the examples in RFC 3720, appendix B.4, which lists the bytes as they are sent.

#include "lockstep/core/system/crc32c.h"

#include <doctest/doctest.h>

#include <string>

using namespace lockstep;

TEST_CASE("crc32c: the examples of RFC 3720") {
  std::string rising, falling;
  for (int i = 0; i < 32; ++i) {
    rising += static_cast<char>(i);
    falling += static_cast<char>(31 - i);
  }
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aau);  // aa 36 91 8a
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
  CHECK(crc32c(rising) == 0x46dd794eu);
  CHECK(crc32c(falling) == 0x113fdb5cu);
  std::string read(48, '\0');  // an iSCSI command: READ (10)
  read[0] = '\x01', read[1] = '\xc0', read[16] = '\x14', read[22] = '\x04', read[27] = '\x14',
  read[31] = '\x18', read[32] = '\x28', read[40] = '\x02';
  CHECK(crc32c(read) == 0xd9963a56u);
  CHECK(crc32c("") == 0);
  static_assert(crc32c("123456789") == 0xe3069283u);  // the catalogues' check value
}
