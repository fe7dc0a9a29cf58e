// SPDX-License-Identifier: Apache-2.0
#include "monitor/live.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <string>
#include <utility>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"

namespace brim::monitor {
namespace {

constexpr uint64_t kLiveMagic = 0x4556494C4D495242;  // "BRIMLIVE"
constexpr uint64_t kLiveVersion = 5;
constexpr size_t kWords = 1024, kLongestName = 127;
static_assert(std::atomic<uint64_t>::is_always_lock_free);

// Layout of the file. The JSON of the record is in atomic words, so a reader sees old or new words and detects it by
// `sequence`. Words are stored with release and loaded with acquire: seeing one word of an update makes its odd
// sequence number visible too, so no fences are needed.
struct LiveFile {
  uint64_t magic, version;
  uint64_t process_start;          // from /proc/<pid>/stat; detects a reused pid
  std::atomic<uint64_t> sequence;  // odd during an update
  std::atomic<uint64_t> bytes;     // length of the JSON
  std::array<std::atomic<uint64_t>, kWords> words;
};

int64_t unix_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::system_clock::now().time_since_epoch())
      .count();
}

// Field 22 of /proc/<pid>/stat, in ticks since boot; 0 if unreadable.
uint64_t process_start(int64_t pid) {
  std::ifstream in(fmt::format("/proc/{}/stat", pid));
  std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
  const size_t after_name = text.rfind(')');
  if (after_name == std::string::npos) return 0;
  size_t at = after_name + 2;
  for (int field = 3; field < 22 && at != std::string::npos; ++field) at = text.find(' ', at) + 1;
  return at < text.size() ? std::strtoull(text.c_str() + at, nullptr, 10) : 0;
}

bool alive(int64_t pid, uint64_t started) {
  if (::kill(static_cast<pid_t>(pid), 0) != 0 && errno == ESRCH) return false;
  const uint64_t now = process_start(pid);
  return now == 0 || started == 0 || now == started;
}

// Creates or verifies a directory owned by this user only: in /tmp another user could have created it first.
bool private_dir(const std::filesystem::path& dir) {
  if (::mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) return false;
  struct stat st {};
  return ::lstat(dir.c_str(), &st) == 0 && S_ISDIR(st.st_mode) && st.st_uid == ::getuid();
}

struct Mapping {
  int fd = -1;
  const LiveFile* file = nullptr;
  explicit Mapping(const std::filesystem::path& path)
      : fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)) {
    struct stat st {};
    if (fd < 0 || ::fstat(fd, &st) != 0 || !S_ISREG(st.st_mode) || st.st_size != static_cast<off_t>(sizeof(LiveFile)))
      return;
    void* memory = ::mmap(nullptr, sizeof(LiveFile), PROT_READ, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) file = static_cast<const LiveFile*>(memory);
  }
  ~Mapping() {
    if (file != nullptr) ::munmap(const_cast<LiveFile*>(file), sizeof(LiveFile));
    if (fd >= 0) ::close(fd);
  }
};

std::optional<RunRecord> read_record(const LiveFile& file) {
  std::array<uint64_t, kWords> words = {};
  for (int attempt = 0; attempt < 1000; ++attempt) {  // bounded: a writer that died leaves it odd
    const uint64_t before = file.sequence.load(std::memory_order_acquire);
    if (before == 0) return std::nullopt;  // not published yet
    if (before % 2 == 1) continue;
    const uint64_t bytes = file.bytes.load(std::memory_order_acquire);
    if (bytes > sizeof words) return std::nullopt;  // the file may come from another program
    for (size_t i = 0; i < (bytes + 7) / 8; ++i) words[i] = file.words[i].load(std::memory_order_acquire);
    if (file.sequence.load(std::memory_order_relaxed) != before) continue;
    try {
      return record_from_json(std::string(reinterpret_cast<const char*>(words.data()), bytes));
    } catch (const Error&) {
      return std::nullopt;
    }
  }
  return std::nullopt;
}

// Long paths are truncated at the front, never within a character.
void shorten(std::string& text) {
  if (text.size() <= kLongestName) return;
  text.erase(0, text.size() - kLongestName);
  while (!text.empty() && (static_cast<unsigned char>(text.front()) & 0xC0) == 0x80) text.erase(0, 1);
}

}  // namespace

LivePublisher::LivePublisher(const std::filesystem::path& dir) : start_unix_ns_(unix_ns()) {
  const std::filesystem::path home = dir.empty() ? runtime_dir() : dir;
  if (!private_dir(home)) {
    log_debug("{}: not a private directory; `brim monitor` will not show this run", home.string());
    return;
  }
  path_ = home / fmt::format("{}.live", ::getpid());
  ::unlink(path_.c_str());  // left by a killed process that had the same pid
  const int fd = ::open(path_.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
  // posix_fallocate, because otherwise the first store on a full file system would crash the program
  if (fd >= 0 && ::posix_fallocate(fd, 0, sizeof(LiveFile)) == 0) {
    void* memory = ::mmap(nullptr, sizeof(LiveFile), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (memory != MAP_FAILED) memory_ = memory;
  }
  if (fd >= 0) ::close(fd);
  if (memory_ == nullptr) {
    log_debug("{}: cannot publish live metrics: {}", path_.string(), std::strerror(errno));
    if (fd >= 0) ::unlink(path_.c_str());
    return;
  }
  auto* file = static_cast<LiveFile*>(memory_);
  file->process_start = process_start(::getpid());
  file->version = kLiveVersion;
  file->magic = kLiveMagic;
}

LivePublisher::~LivePublisher() {
  if (memory_ == nullptr) return;
  ::munmap(memory_, sizeof(LiveFile));
  ::unlink(path_.c_str());
}

void LivePublisher::publish(RunRecord record) {
  if (memory_ == nullptr) return;
  const int64_t now = unix_ns();
  record.pid = ::getpid();
  record.start_unix_ns = start_unix_ns_;
  record.updated_unix_ns = now;
  if (const auto share = record.share_done(); share && !first_share_) {
    first_share_ = share;
    first_share_ns_ = now;
  } else if (share > first_share_) {
    const double seconds = 1e-9 * static_cast<double>(now - first_share_ns_);
    record.seconds_left = std::max(0.0, seconds * (1 - *share) / (*share - *first_share_));
  }
  shorten(record.model);
  const std::string text = to_json(record);
  std::array<uint64_t, kWords> words = {};
  if (text.size() > sizeof words) return;
  std::memcpy(words.data(), text.data(), text.size());
  auto* file = static_cast<LiveFile*>(memory_);
  const uint64_t sequence = file->sequence.load(std::memory_order_relaxed);
  file->sequence.store(sequence + 1, std::memory_order_relaxed);
  file->bytes.store(text.size(), std::memory_order_release);
  for (size_t i = 0; i < (text.size() + 7) / 8; ++i) file->words[i].store(words[i], std::memory_order_release);
  file->sequence.store(sequence + 2, std::memory_order_release);
}

std::optional<RunRecord> read_live_file(const std::filesystem::path& path) {
  const Mapping mapping(path);
  if (mapping.file == nullptr || mapping.file->magic != kLiveMagic || mapping.file->version != kLiveVersion)
    return std::nullopt;
  return read_record(*mapping.file);
}

std::vector<RunRecord> read_live(const std::filesystem::path& dir) {
  std::vector<RunRecord> runs;
  std::error_code ec;
  for (const auto& entry : std::filesystem::directory_iterator(dir.empty() ? runtime_dir() : dir, ec)) {
    if (entry.path().extension() != ".live") continue;
    const std::string stem = entry.path().stem().string();
    int64_t pid = 0;
    if (const auto [end, error] = std::from_chars(stem.data(), stem.data() + stem.size(), pid);
        error != std::errc() || end != stem.data() + stem.size() || pid <= 0)
      continue;
    const Mapping mapping(entry.path());
    const bool ours = mapping.file != nullptr && mapping.file->magic == kLiveMagic;
    if (!alive(pid, ours ? mapping.file->process_start : 0)) {
      ::unlink(entry.path().c_str());
      continue;
    }
    if (!ours || mapping.file->version != kLiveVersion) continue;
    if (auto record = read_record(*mapping.file)) runs.push_back(std::move(*record));
  }
  std::sort(runs.begin(), runs.end(),
            [](const RunRecord& a, const RunRecord& b) { return a.start_unix_ns < b.start_unix_ns; });
  return runs;
}

}  // namespace brim::monitor
