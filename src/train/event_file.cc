// SPDX-License-Identifier: Apache-2.0
#include "train/event_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <cmath>

#include "base/error.h"
#include "io/descriptor.h"

namespace brim::train {
namespace {

// Fields of tensorflow/core/util/event.proto and summary.proto.
enum EventField : uint32_t { kWallTime = 1, kStep = 2, kFileVersion = 3, kSummary = 5, kSessionLog = 7 };
enum SummaryField : uint32_t { kValue = 1, kTag = 1, kSimpleValue = 2 };
constexpr uint32_t kSessionStatus = 1, kSessionStart = 1;
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

constexpr std::array<uint32_t, 256> crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ ((crc & 1) != 0 ? 0x82F63B78u : 0u);
    table[i] = crc;
  }
  return table;
}

uint32_t masked_crc32c(std::string_view bytes) {
  static constexpr auto kTable = crc_table();
  uint32_t crc = ~0u;
  for (const char c : bytes) crc = (crc >> 8) ^ kTable[(crc ^ static_cast<unsigned char>(c)) & 0xFF];
  return std::rotr(~crc, 15) + 0xA282EAD8u;
}

template <class T>
std::string little_endian(T value) {
  std::string out;
  for (size_t i = 0; i < sizeof(T); ++i) out += static_cast<char>(static_cast<uint64_t>(value) >> (8 * i) & 0xFF);
  return out;
}

std::string varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out += static_cast<char>((value & 0x7F) | 0x80);
  return out + static_cast<char>(value);
}

std::string key(uint32_t field, WireType type) { return varint(uint64_t{field} << 3 | type); }
std::string bytes_field(uint32_t field, std::string_view bytes) {
  return key(field, kBytes) + varint(bytes.size()) + std::string(bytes);
}

std::string event_at(int64_t step, const std::string& content) {
  const double now = std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  return key(kWallTime, kFixed64) + little_endian(std::bit_cast<uint64_t>(now)) + key(kStep, kVarint) +
         varint(static_cast<uint64_t>(step)) + content;
}

}  // namespace

std::string event_record(std::string_view payload) {
  const std::string length = little_endian<uint64_t>(payload.size());
  return length + little_endian(masked_crc32c(length)) + std::string(payload) + little_endian(masked_crc32c(payload));
}

EventFile::EventFile(const std::filesystem::path& directory, int64_t first_step) {
  std::error_code ec;
  std::filesystem::create_directories(directory, ec);
  if (ec) fail(ErrorCode::cannot_write, "{}: {}", directory.string(), ec.message());
  const auto seconds =
      std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch());
  // Several runs of a process within a second need different names.
  for (int copy = 0; fd_ < 0; ++copy) {
    path_ = directory / fmt::format("events.out.tfevents.{}.brim.{}.{}", seconds.count(), ::getpid(), copy);
    fd_ = ::open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd_ < 0 && errno != EEXIST) io::fail_write(path_.string(), "cannot create", errno);
  }
  try {
    put(event_at(0, bytes_field(kFileVersion, "brain.Event:2")));
    if (first_step > 0)
      put(event_at(first_step + 1, bytes_field(kSessionLog, key(kSessionStatus, kVarint) + varint(kSessionStart))));
  } catch (...) {
    ::close(fd_);
    throw;
  }
}

EventFile::~EventFile() { ::close(fd_); }

void EventFile::add(int64_t step, const std::vector<std::pair<std::string, double>>& values) {
  std::string summary;
  for (const auto& [tag, value] : values)
    if (std::isfinite(value))
      summary += bytes_field(kValue, bytes_field(kTag, tag) + key(kSimpleValue, kFixed32) +
                                         little_endian(std::bit_cast<uint32_t>(static_cast<float>(value))));
  if (!summary.empty()) put(event_at(step, bytes_field(kSummary, summary)));
}

void EventFile::put(const std::string& event) {
  io::WriteStop never;
  io::write_all(fd_, event_record(event), path_.string(), never);
}

}  // namespace brim::train
