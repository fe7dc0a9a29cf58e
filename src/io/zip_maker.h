// SPDX-License-Identifier: Apache-2.0
// Builds valid and invalid zip archives in memory for tests.
#pragma once
#include <zlib.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace brim::io {

struct ZipMaker {
  struct Member {
    std::string name, bytes;
    uint16_t method = 0, flags = 0;
    bool zip64 = false;
    int64_t wrong_offset = -1;  // written to the directory instead of the member's offset
    int64_t wrong_bytes = -1;   // written to the directory instead of its length
    int64_t wrong_crc = -1;
  };
  std::vector<Member> members;
  std::string comment;
  bool zip64_end = false;

  static std::string le(uint64_t value, int width) {
    std::string out;
    for (int i = 0; i < width; ++i) out += static_cast<char>(value >> (8 * i));
    return out;
  }

  std::string make() const {
    std::string file, directory;
    for (const Member& m : members) {
      const auto crc = m.wrong_crc >= 0
                           ? static_cast<uint64_t>(m.wrong_crc)
                           : crc32_z(0, reinterpret_cast<const unsigned char*>(m.bytes.data()), m.bytes.size());
      const uint64_t offset = m.wrong_offset >= 0 ? static_cast<uint64_t>(m.wrong_offset) : file.size();
      const uint64_t bytes = m.wrong_bytes >= 0 ? static_cast<uint64_t>(m.wrong_bytes) : m.bytes.size();
      const std::string common = le(m.flags, 2) + le(m.method, 2) + le(0, 4) + le(crc, 4);
      file += "PK\x03\x04" + le(20, 2) + common + le(bytes, 4) + le(bytes, 4) + le(m.name.size(), 2) + le(0, 2) +
              m.name + m.bytes;
      const std::string extra = m.zip64 ? le(1, 2) + le(24, 2) + le(bytes, 8) + le(bytes, 8) + le(offset, 8) : "";
      const auto narrow = [&](uint64_t v) { return le(m.zip64 ? 0xFFFFFFFF : v, 4); };
      directory += "PK\x01\x02" + le(20, 2) + le(20, 2) + common + narrow(bytes) + narrow(bytes) +
                   le(m.name.size(), 2) + le(extra.size(), 2) + le(0, 2) + le(0, 4) + le(0, 4) + narrow(offset) +
                   m.name + extra;
    }
    const uint64_t at = file.size(), count = members.size();
    file += directory;
    if (zip64_end) {
      const uint64_t end = file.size();
      file += "PK\x06\x06" + le(44, 8) + le(45, 2) + le(45, 2) + le(0, 4) + le(0, 4) + le(count, 8) + le(count, 8) +
              le(directory.size(), 8) + le(at, 8);
      file += "PK\x06\x07" + le(0, 4) + le(end, 8) + le(1, 4);
    }
    const uint64_t shown = zip64_end ? 0xFFFFFFFF : at;
    return file + "PK\x05\x06" + le(0, 4) + le(count, 2) + le(count, 2) + le(directory.size(), 4) + le(shown, 4) +
           le(comment.size(), 2) + comment;
  }
};

}  // namespace brim::io
