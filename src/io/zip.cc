// SPDX-License-Identifier: Apache-2.0
#include "io/zip.h"

#include <zlib.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "io/quote_text.h"

namespace brim::io {
namespace {

constexpr uint32_t kLocal = 0x04034b50, kCentral = 0x02014b50, kEnd = 0x06054b50;
constexpr uint32_t kEnd64 = 0x06064b50, kEnd64Locator = 0x07064b50;
constexpr uint32_t kIn64 = 0xFFFFFFFF;  // the value is in the ZIP64 field instead
constexpr const char* kDownloadAgain = "the file is damaged or truncated: download it again";

// Bounds-checked little-endian numbers at an offset.
class Bytes {
 public:
  Bytes(std::span<const std::byte> file, const std::string& where) : file_(file), where_(where) {}

  uint64_t number(uint64_t at, int width) const {
    const auto bytes = slice(at, static_cast<uint64_t>(width));
    uint64_t value = 0;
    for (int i = width - 1; i >= 0; --i) value = value << 8 | static_cast<uint64_t>(bytes[static_cast<size_t>(i)]);
    return value;
  }
  uint16_t u16(uint64_t at) const { return static_cast<uint16_t>(number(at, 2)); }
  uint32_t u32(uint64_t at) const { return static_cast<uint32_t>(number(at, 4)); }
  uint64_t u64(uint64_t at) const { return number(at, 8); }

  std::span<const std::byte> slice(uint64_t at, uint64_t count) const {
    if (at > file_.size() || count > file_.size() - at)
      fail(ErrorCode::bad_model, "{}: zip: bytes {}+{} are outside the file of {} bytes: {}", where_, at, count,
           file_.size(), kDownloadAgain);
    return file_.subspan(at, count);
  }
  std::string_view text(uint64_t at, uint64_t count) const {
    const auto bytes = slice(at, count);
    return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
  }
  uint64_t size() const { return file_.size(); }
  const std::string& where() const { return where_; }

 private:
  std::span<const std::byte> file_;
  const std::string& where_;
};

struct Directory {
  uint64_t members, bytes, offset;
};

// The end record lies within the last 64 KiB, followed only by a comment.
Directory find_directory(const Bytes& file) {
  const uint64_t lowest = file.size() > 22 + 65535 ? file.size() - 22 - 65535 : 0;
  for (uint64_t at = file.size() < 22 ? 0 : file.size() - 22; file.size() >= 22; --at) {
    if (file.u32(at) == kEnd && at + 22 + file.u16(at + 20) == file.size()) {
      Directory dir{file.u16(at + 10), file.u32(at + 12), file.u32(at + 16)};
      if (at >= 20 && file.u32(at - 20) == kEnd64Locator) {
        const uint64_t end64 = file.u64(at - 12);
        if (file.u32(end64) != kEnd64) break;
        dir = {file.u64(end64 + 32), file.u64(end64 + 40), file.u64(end64 + 48)};
      }
      return dir;
    }
    if (at == lowest) break;
  }
  fail(ErrorCode::bad_model, "{}: zip: end record not found: {}", file.where(), kDownloadAgain);
}

// The ZIP64 field holds, in this order, only the values that did not fit.
void read_zip64(const Bytes& file, uint64_t extra, uint64_t extra_bytes, uint64_t* unpacked, uint64_t* packed,
                uint64_t* offset) {
  const uint64_t end = extra + extra_bytes;
  while (extra + 4 <= end) {
    const uint16_t id = file.u16(extra), size = file.u16(extra + 2);
    const uint64_t field_end = extra + 4 + size;
    if (id == 1) {
      uint64_t at = extra + 4;
      for (uint64_t* value : {unpacked, packed, offset}) {
        if (*value != kIn64 || at + 8 > std::min(field_end, end)) continue;
        *value = file.u64(at);
        at += 8;
      }
      return;
    }
    extra = field_end;
  }
}

}  // namespace

bool looks_like_zip(std::span<const std::byte> file) {
  return file.size() >= 4 && file[0] == std::byte{'P'} && file[1] == std::byte{'K'} && file[2] == std::byte{3} &&
         file[3] == std::byte{4};
}

std::vector<ZipMember> parse_zip(std::span<const std::byte> bytes, const std::string& where) {
  const Bytes file(bytes, where);
  const Directory dir = find_directory(file);
  file.slice(dir.offset, dir.bytes);
  if (dir.members > dir.bytes / 46)
    fail(ErrorCode::bad_model, "{}: zip: a directory of {} members cannot have {} bytes: {}", where, dir.members,
         dir.bytes, kDownloadAgain);
  std::vector<ZipMember> members;
  std::vector<std::tuple<uint64_t, uint64_t, std::string_view>> ranges;  // begin, end, name
  uint64_t at = dir.offset;
  for (uint64_t i = 0; i < dir.members; ++i) {
    if (file.u32(at) != kCentral)
      fail(ErrorCode::bad_model, "{}: zip: directory entry {} is damaged: {}", where, i, kDownloadAgain);
    const uint16_t flags = file.u16(at + 8), method = file.u16(at + 10);
    uint64_t packed = file.u32(at + 20), unpacked = file.u32(at + 24), local = file.u32(at + 42);
    const uint16_t name_bytes = file.u16(at + 28), extra_bytes = file.u16(at + 30), comment_bytes = file.u16(at + 32);
    const std::string_view name = file.text(at + 46, name_bytes);
    read_zip64(file, at + 46 + name_bytes, extra_bytes, &unpacked, &packed, &local);
    if ((flags & 1) != 0) fail(ErrorCode::bad_model, "{}: zip member {} is encrypted", where, quote_text(name));
    if (method != 0)
      fail(ErrorCode::bad_model, "{}: zip member {} is compressed (method {}): save the file again with torch.save",
           where, quote_text(name), method);
    if (packed != unpacked)
      fail(ErrorCode::bad_model, "{}: zip member {} is stored without compression but has sizes {} and {}: {}", where,
           quote_text(name), packed, unpacked, kDownloadAgain);
    if (file.u32(local) != kLocal || file.text(local + 30, file.u16(local + 26)) != name)
      fail(ErrorCode::bad_model, "{}: zip member {} not found at its directory offset {}: {}", where, quote_text(name),
           local, kDownloadAgain);
    const uint64_t data = local + 30 + file.u16(local + 26) + file.u16(local + 28);
    members.push_back({name, file.slice(data, packed), file.u32(at + 16)});
    ranges.emplace_back(local, data + packed, name);
    at += 46u + name_bytes + extra_bytes + comment_bytes;
  }
  ranges.emplace_back(dir.offset, dir.offset + dir.bytes, "the directory");
  std::sort(ranges.begin(), ranges.end());
  for (size_t i = 1; i < ranges.size(); ++i)
    if (std::get<0>(ranges[i]) < std::get<1>(ranges[i - 1]))
      fail(ErrorCode::bad_model, "{}: zip: {} overlaps {}: {}", where, quote_text(std::get<2>(ranges[i])),
           quote_text(std::get<2>(ranges[i - 1])), kDownloadAgain);
  return members;
}

void check_crc(const ZipMember& member, const std::string& where) {
  if (member.crc == 0) return;  // torch can save without checksums
  const auto* bytes = reinterpret_cast<const unsigned char*>(member.bytes.data());
  const auto crc = static_cast<uint32_t>(crc32_z(crc32_z(0, nullptr, 0), bytes, member.bytes.size()));
  if (crc != member.crc)
    fail(ErrorCode::bad_model, "{}: zip member {}: checksum {:08x}, expected {:08x}: {}", where,
         quote_text(member.name), crc, member.crc, kDownloadAgain);
}

}  // namespace brim::io
