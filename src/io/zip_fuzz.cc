// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: parses arbitrary bytes as a zip archive. Members must lie inside the file.
#include <cstdlib>

#include "base/error.h"
#include "io/zip.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    for (const brim::io::ZipMember& member : brim::io::parse_zip(file, "fuzz")) {
      const auto offset = static_cast<size_t>(member.bytes.data() - file.data());
      if (offset > size || member.bytes.size() > size - offset) std::abort();
      brim::io::check_crc(member, "fuzz");
    }
  } catch (const brim::Error& error) {
    if (error.code() != brim::ErrorCode::bad_model) std::abort();
  }
  return 0;
}
