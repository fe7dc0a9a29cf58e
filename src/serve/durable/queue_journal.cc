// SPDX-License-Identifier: Apache-2.0
#include "serve/durable/queue_journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <optional>
#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "io/atomic_file.h"
#include "io/descriptor.h"

namespace brim::serve {
namespace {

constexpr size_t kHeadBytes = 8;
constexpr size_t kMaxRecord = size_t{1} << 30;

uint32_t little_endian(std::string_view bytes) {
  uint32_t value = 0;
  for (size_t i = 0; i < 4; ++i) value |= static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])) << (8 * i);
  return value;
}

uLong crc(std::string_view bytes, uLong sum = 0) {
  if (bytes.empty()) return sum;
  return crc32_z(sum, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size());
}

// Covers the length too, so a run of zeros is not a record.
uint32_t checksum_of(std::string_view length, std::string_view payload) {
  return static_cast<uint32_t>(crc(payload, crc(length)));
}

std::string length_field(size_t length) {
  std::string field;
  for (size_t i = 0; i < 4; ++i) field += static_cast<char>(length >> (8 * i));
  return field;
}

// Length of the payload that the header at `at` announces; empty if it does not fit into the file.
std::optional<size_t> announced_length(std::string_view bytes, size_t at) {
  if (bytes.size() - at < kHeadBytes) return std::nullopt;
  const size_t length = little_endian(bytes.substr(at));
  if (length > kMaxRecord || length > bytes.size() - at - kHeadBytes) return std::nullopt;
  return length;
}

// Checksums of any part of a file without reading that part: trying every offset as the start of a record would
// otherwise take quadratic time.
class PartChecksums {
 public:
  explicit PartChecksums(std::string_view bytes) : bytes_(bytes) {
    uLong sum = 0;
    for (size_t at = 0; at < bytes.size(); at += kStep) {
      upto_.push_back(sum);
      sum = crc(bytes.substr(at, kStep), sum);
    }
    upto_.push_back(sum);
  }

  uLong of(size_t at, size_t length) const {
    return upto(at + length) ^ crc32_combine(upto(at), 0, static_cast<z_off_t>(length));
  }

 private:
  static constexpr size_t kStep = 256;
  uLong upto(size_t end) const { return crc(bytes_.substr(end / kStep * kStep, end % kStep), upto_[end / kStep]); }

  const std::string_view bytes_;
  std::vector<uLong> upto_;
};

// Offset of the first intact record at or after `at`; the end of the file if there is none.
size_t find_record(std::string_view bytes, size_t at, const PartChecksums& checksums) {
  for (; bytes.size() - at >= kHeadBytes; ++at) {
    const auto length = announced_length(bytes, at);
    if (!length) continue;
    const uLong payload = checksums.of(at + kHeadBytes, *length);
    const uLong whole = crc32_combine(crc(bytes.substr(at, 4)), payload, static_cast<z_off_t>(*length));
    if (whole == little_endian(bytes.substr(at + 4))) return at;
  }
  return bytes.size();
}

// Follows the length fields; 1 if they do not end exactly at the end of `bytes`.
size_t count_records(std::string_view bytes) {
  size_t count = 0;
  for (size_t at = 0; at < bytes.size(); ++count) {
    const auto length = announced_length(bytes, at);
    if (!length) return 1;
    at += kHeadBytes + *length;
  }
  return count;
}

// True if `bytes` is one record whose length field alone is wrong.
bool has_wrong_length(std::string_view bytes) {
  if (bytes.size() < kHeadBytes) return false;
  const std::string_view payload = bytes.substr(kHeadBytes);
  return checksum_of(length_field(payload.size()), payload) == little_endian(bytes.substr(4));
}

// A torn write ends before the announced length, or in zeros if the file grew before its data arrived.
bool is_torn(std::string_view tail) { return !announced_length(tail, 0) || tail.back() == '\0'; }

std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::cannot_write, "{}: cannot read", path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

// Writes `bytes` to PATH.tail, or PATH.tail.N if earlier tails are kept. The same tail is not kept twice.
std::filesystem::path keep_tail(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::path tail = path.string() + ".tail";
  std::error_code ignored;
  for (int n = 2; std::filesystem::exists(tail, ignored); ++n) {
    if (bytes_of_file(tail) == bytes) return tail;
    tail = fmt::format("{}.tail.{}", path.string(), n);
  }
  io::write_file_atomically(tail, bytes);
  return tail;
}

// Corrects the length field of the last record in place, so that records appended after it do not hide its end.
void write_length(const std::filesystem::path& path, size_t offset, size_t length) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) io::fail_write(path.string(), "cannot open", errno);
  const std::string field = length_field(length);
  const bool written = ::pwrite(fd, field.data(), field.size(), static_cast<off_t>(offset)) == 4;
  const int error = written && ::fdatasync(fd) == 0 ? 0 : errno;
  ::close(fd);
  if (error != 0) io::fail_write(path.string(), "cannot correct a length field", error);
}

// True if `path` still names the open file.
bool is_named(int fd, const std::filesystem::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

}  // namespace

QueueJournal::Content QueueJournal::read(std::string_view bytes) {
  Content content;
  std::optional<PartChecksums> checksums;  // needed for damaged files only
  size_t at = 0;
  while (at < bytes.size()) {
    if (const auto length = announced_length(bytes, at)) {
      const std::string_view payload = bytes.substr(at + kHeadBytes, *length);
      if (checksum_of(bytes.substr(at, 4), payload) == little_endian(bytes.substr(at + 4))) {
        content.records.push_back(payload);
        at += kHeadBytes + *length;
        content.bytes = at;
        continue;
      }
    }
    if (!checksums) checksums.emplace(bytes);
    const size_t next = find_record(bytes, at + 1, *checksums);
    const std::string_view bad = bytes.substr(at, next - at);
    JournalDamage damage{content.records.size(), at, count_records(bad), has_wrong_length(bad), std::string(bad)};
    at = next;
    if (damage.recovered) {
      damage.records = 1;
      content.records.push_back(bad.substr(kHeadBytes));
      content.bytes = at;
    } else if (next == bytes.size()) {
      if (is_torn(bad)) break;
      content.damaged_tail = true;
    }
    content.damage.push_back(std::move(damage));
  }
  return content;
}

std::string QueueJournal::frame(std::string_view payload) {
  BRIM_CHECK(payload.size() <= kMaxRecord, "record of {} bytes, at most {}", payload.size(), kMaxRecord);
  std::string framed = length_field(payload.size());
  framed.reserve(kHeadBytes + payload.size());
  framed += length_field(checksum_of(framed, payload));
  return framed.append(payload);
}

QueueJournal::QueueJournal(std::filesystem::path path, std::string_view first) : path_(std::move(path)) {
  std::error_code ignored;
  if (!std::filesystem::exists(path_, ignored)) io::write_file_atomically(path_, frame(first));
  const std::string content = bytes_of_file(path_);
  Content whole = read(content);
  for (const std::string_view record : whole.records) opened_.emplace_back(record);
  damage_ = std::move(whole.damage);
  bytes_ = whole.bytes;
  damage_removed_ = whole.damaged_tail;
  damage_in_file_ = damage_.size() > (whole.damaged_tail ? 1u : 0u);
  if (!damage_.empty() && damage_.back().recovered && damage_.back().before + 1 == opened_.size())
    write_length(path_, damage_.back().offset, opened_.back().size());
  open_to_append();
  if (whole.bytes < content.size()) cut_tail(std::string_view(content).substr(whole.bytes));
  if (!opened_.empty()) return;
  // Creation is atomic, so a file without any intact record has lost its content.
  if (damage_.empty()) damage_.push_back({0, 0, 1, false, content});
  damage_removed_ = true;
  write_and_sync(frame(first), 0);
  bytes_ = kHeadBytes + first.size();
}

void QueueJournal::cut_tail(std::string_view tail) {
  const std::filesystem::path kept = keep_tail(path_, tail);
  if (::ftruncate(fd_, static_cast<off_t>(bytes_)) != 0) io::fail_write(path_.string(), "cannot truncate", errno);
  log_warning("{}: removed an incomplete record of {} bytes from the end (saved as {})", path_.string(), tail.size(),
              kept.string());
}

QueueJournal::~QueueJournal() {
  if (fd_ >= 0) ::close(fd_);
}

void QueueJournal::forget_opened() {
  opened_ = {};
  damage_ = {};
}

void QueueJournal::open_to_append() {
  const int fd = ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC | O_NOFOLLOW);
  if (fd < 0) io::fail_write(path_.string(), "cannot open", errno);
  if (fd_ >= 0) ::close(fd_);
  fd_ = fd;
}

void QueueJournal::write_and_sync(std::string_view bytes, size_t at) {
  try {
    io::WriteStop never;
    write_all(fd_, bytes, path_.string(), never);
    if (::fdatasync(fd_) != 0) io::fail_write(path_.string(), "cannot sync", errno);
  } catch (...) {
    // The next start would remove a partial record anyway, but with a warning.
    [[maybe_unused]] const int ignored = ::ftruncate(fd_, static_cast<off_t>(at));
    throw;
  }
}

uint64_t QueueJournal::append(std::string_view payload) {
  const std::string framed = frame(payload);
  const std::lock_guard lock(mutex_);
  if (!failure_.empty()) fail(ErrorCode::cannot_write, "{}", failure_);
  waiting_ += framed;
  return ++appended_;
}

void QueueJournal::commit(uint64_t record) {
  std::unique_lock lock(mutex_);
  while (durable_ < record) {
    if (!failure_.empty()) fail(ErrorCode::cannot_write, "{}", failure_);
    if (syncing_) {
      changed_.wait(lock);
      continue;
    }
    // This thread writes all records appended so far; later ones form the next group.
    syncing_ = true;
    const std::string group = std::exchange(waiting_, {});
    const uint64_t last = appended_;
    const size_t at = bytes_;
    lock.unlock();
    std::string failure;
    try {
      write_and_sync(group, at);
    } catch (const Error& e) {
      failure = e.what();
    }
    lock.lock();
    syncing_ = false;
    if (failure.empty()) {
      durable_ = last;
      bytes_ += group.size();
    } else {
      failure_ = failure;
    }
    changed_.notify_all();
  }
}

void QueueJournal::rewrite(const std::vector<std::string>& payloads) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return !syncing_; });
  if (!failure_.empty()) fail(ErrorCode::cannot_write, "{}", failure_);
  if (damage_in_file_)
    log_warning("{}: damaged; compaction keeps the original as {}", path_.string(),
                keep_original(path_, "damaged").string());
  io::AtomicFile file(path_);
  for (const std::string& payload : payloads) file.write(frame(payload));
  const size_t bytes = file.position();
  try {
    file.commit();
    open_to_append();
  } catch (const Error& e) {
    // If the rename did not happen, the open file is still complete and stays in use.
    if (!is_named(fd_, path_)) failure_ = e.what();
    changed_.notify_all();
    throw;
  }
  damage_in_file_ = false;
  bytes_ = bytes;
  waiting_.clear();
  durable_ = appended_;
  changed_.notify_all();
}

bool QueueJournal::failed() const {
  const std::lock_guard lock(mutex_);
  return !failure_.empty();
}

size_t QueueJournal::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

std::filesystem::path keep_original(const std::filesystem::path& path, const std::string& suffix) {
  for (int n = 1;; ++n) {
    const std::string name = path.string() + "." + suffix + (n == 1 ? "" : "." + std::to_string(n));
    std::error_code error;
    if (std::filesystem::equivalent(path, name, error)) return name;  // kept by an attempt that failed later
    if (std::filesystem::exists(std::filesystem::symlink_status(name, error))) continue;
    if (::link(path.c_str(), name.c_str()) == 0) return name;
    if (errno == EEXIST) continue;
    if (errno != EPERM && errno != EOPNOTSUPP && errno != EMLINK) io::fail_write(name, "cannot create", errno);
    io::write_file_atomically(name, bytes_of_file(path));  // a file system without hard links
    return name;
  }
}

}  // namespace brim::serve
