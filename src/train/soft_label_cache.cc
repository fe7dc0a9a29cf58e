// SPDX-License-Identifier: Apache-2.0
#include "train/soft_label_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/error.h"
#include "base/log.h"
#include "train/content_hash.h"
#include "train/token_cache.h"

namespace brim::train {
namespace {

namespace fs = std::filesystem;
constexpr char kScoresMagic[8] = {'B', 'R', 'I', 'M', 'S', 'O', 'F', '1'};  // digit: version of the layout
constexpr const char* kExtension = ".scores";
constexpr size_t kReadBytes = size_t{4} << 20;

struct ScoresHeader {
  char magic[8];
  int64_t classes;
};

uint64_t record_checksum(const char* record, size_t bytes) {
  ContentHash hash;
  hash.add(record, bytes);
  return hash.value()[0];
}

// Held for one read or append. File systems without locks are used without.
class FileLock {
 public:
  FileLock(int fd, int kind) : fd_(fd) {
    while (::flock(fd_, kind) != 0 && errno == EINTR) {
    }
  }
  ~FileLock() { ::flock(fd_, LOCK_UN); }
  FileLock(const FileLock&) = delete;
  FileLock& operator=(const FileLock&) = delete;

 private:
  int fd_;
};

bool write_at(int fd, const char* data, size_t bytes, int64_t at) {
  while (bytes > 0) {
    const ssize_t n = ::pwrite(fd, data, bytes, at);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n;
    at += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

size_t read_at(int fd, char* out, size_t bytes, int64_t at) {
  size_t done = 0;
  while (done < bytes) {
    const ssize_t n = ::pread(fd, out + done, bytes - done, at + static_cast<int64_t>(done));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return done;
}

int64_t file_size_of(int fd) {
  struct ::stat info {};
  return ::fstat(fd, &info) == 0 ? info.st_size : 0;
}

}  // namespace

TextKey text_key(std::string_view text, const std::optional<std::string_view>& pair) {
  ContentHash hash;
  hash.add(text);
  if (pair) hash.add(*pair);
  return {hash.value()[0], hash.value()[1]};
}

SoftLabelCache::SoftLabelCache(const fs::path& dir, const std::string& name, int64_t classes, int64_t limit_bytes)
    : path_(dir / (name + kExtension)), classes_(classes) {
  std::error_code ec;
  fs::create_directories(dir, ec);
  evict_least_recent(dir, kExtension, path_, limit_bytes);
  fd_ = ::open(path_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd_ < 0) {
    disable(std::strerror(errno));
    return;
  }
  FileLock lock(fd_, LOCK_EX);
  ScoresHeader wanted{};
  std::memcpy(wanted.magic, kScoresMagic, sizeof kScoresMagic);
  wanted.classes = classes;
  ScoresHeader found{};
  if (file_size_of(fd_) >= static_cast<int64_t>(sizeof found)) {
    (void)read_at(fd_, reinterpret_cast<char*>(&found), sizeof found, 0);
    if (std::memcmp(&found, &wanted, sizeof wanted) != 0) disable("is not a cache of these scores");
  } else if (::ftruncate(fd_, 0) != 0 || !write_at(fd_, reinterpret_cast<const char*>(&wanted), sizeof wanted, 0)) {
    disable(std::strerror(errno));
  }
  read_ = sizeof wanted;
  fs::last_write_time(path_, fs::file_time_type::clock::now(), ec);  // marks it as recently used
}

SoftLabelCache::~SoftLabelCache() {
  if (fd_ >= 0) ::close(fd_);
}

size_t SoftLabelCache::record_bytes() const {
  return sizeof(TextKey) + static_cast<size_t>(classes_) * sizeof(float) + sizeof(uint64_t);
}

void SoftLabelCache::disable(const std::string& why) {
  log_warning("{}: {}; scores of teachers are not cached", path_.string(), why);
  enabled_ = false;
}

void SoftLabelCache::read_new(const std::function<void(const TextKey&, const float*)>& take) {
  if (!enabled_) return;
  FileLock lock(fd_, LOCK_SH);
  const size_t record = record_bytes(), body = record - sizeof(uint64_t);
  std::vector<char> block(std::max<size_t>(1, kReadBytes / record) * record);
  std::vector<float> scores(static_cast<size_t>(classes_));
  for (;;) {
    const size_t whole = read_at(fd_, block.data(), block.size(), read_) / record;
    for (size_t i = 0; i < whole; ++i) {
      const char* at = block.data() + i * record;
      uint64_t sum = 0;
      std::memcpy(&sum, at + body, sizeof sum);
      if (sum != record_checksum(at, body)) continue;
      TextKey key;
      std::memcpy(&key, at, sizeof key);
      std::memcpy(scores.data(), at + sizeof key, scores.size() * sizeof(float));
      take(key, scores.data());
    }
    read_ += static_cast<int64_t>(whole * record);
    if (whole * record < block.size()) return;
  }
}

void SoftLabelCache::append(std::span<const TextKey> keys, std::span<const float> scores) {
  if (!enabled_ || keys.empty()) return;
  const size_t record = record_bytes(), body = record - sizeof(uint64_t), row = static_cast<size_t>(classes_);
  std::string bytes(keys.size() * record, '\0');
  for (size_t i = 0; i < keys.size(); ++i) {
    char* at = bytes.data() + i * record;
    std::memcpy(at, &keys[i], sizeof(TextKey));
    std::memcpy(at + sizeof(TextKey), scores.data() + i * row, row * sizeof(float));
    const uint64_t sum = record_checksum(at, body);
    std::memcpy(at + body, &sum, sizeof sum);
  }
  FileLock lock(fd_, LOCK_EX);
  const auto header = static_cast<int64_t>(sizeof(ScoresHeader));
  const int64_t size = std::max(file_size_of(fd_), header), end = size - (size - header) % static_cast<int64_t>(record);
  if (::ftruncate(fd_, end) == 0 && write_at(fd_, bytes.data(), bytes.size(), end)) return;
  const std::string why = std::strerror(errno);
  (void)!::ftruncate(fd_, end);
  disable(why);
}

}  // namespace brim::train
