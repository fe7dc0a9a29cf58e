// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: reads arbitrary bytes as a .gz, .zst or plain stream (first byte: format and read size). Broken streams
// throw Error(bad_data), and the output must not depend on the read sizes.
#include <algorithm>
#include <cstdlib>
#include <string>
#include <utility>

#include "base/error.h"
#include "io/compress.h"

namespace brim::io::compress_fuzz {

// The stream's bytes up to a limit (a small file may decompress to terabytes), and whether it broke.
inline std::pair<std::string, bool> unpack(const std::string& name, const std::string& bytes, size_t piece,
                                           size_t ask) {
  std::string out;
  try {
    auto source = decompressed(memory_source(name, bytes, piece));
    std::string buffer(ask, '\0');
    while (out.size() < (1 << 20)) {
      const size_t n = source->read(buffer.data(), ask);
      if (n == 0) return {out, false};
      out.append(buffer, 0, n);
      if (source->position() < 0 || source->position() > source->size()) std::abort();
    }
    out.resize(1 << 20);
    return {out, false};
  } catch (const Error& error) {
    if (error.code() != ErrorCode::bad_data) std::abort();
    return {out, true};
  }
}

}  // namespace brim::io::compress_fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace brim::io::compress_fuzz;
  if (size == 0) return 0;
  const std::string bytes(reinterpret_cast<const char*>(data) + 1, size - 1);
  const char* const names[] = {"x.gz", "x.zst", "x"};
  const std::string name = names[data[0] % 3];
  const auto whole = unpack(name, bytes, SIZE_MAX, 1 << 16);
  const auto small = unpack(name, bytes, 1 + data[0] % 5, 1 + data[0] % 11);
  if (whole.second != small.second) std::abort();
  // Before reporting a broken stream, a decoder may have returned more or fewer bytes; one result must be a prefix of
  // the other.
  const size_t common = std::min(whole.first.size(), small.first.size());
  if (whole.first.compare(0, common, small.first, 0, common) != 0) std::abort();
  if (!whole.second && whole.first != small.first) std::abort();
  return 0;
}
