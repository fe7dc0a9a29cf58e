// SPDX-License-Identifier: Apache-2.0
#include "serve/queue_journal.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
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

// Of length and payload, so that a run of zeros is no record.
uint32_t checksum_of(std::string_view length, std::string_view payload) {
  uLong sum = crc32_z(crc32_z(0, nullptr, 0), reinterpret_cast<const Bytef*>(length.data()), length.size());
  return static_cast<uint32_t>(crc32_z(sum, reinterpret_cast<const Bytef*>(payload.data()), payload.size()));
}

std::string bytes_of_file(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) fail(ErrorCode::cannot_write, "{}: cannot be read", path.string());
  return {std::istreambuf_iterator<char>(in), {}};
}

// PATH.tail, or with a number where an earlier one is kept there. One that was kept and not cut off is not kept twice.
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

// Whether the open file is the one that has this name.
bool is_named(int fd, const std::filesystem::path& path) {
  struct stat open {
  }, named{};
  return ::fstat(fd, &open) == 0 && ::stat(path.c_str(), &named) == 0 && open.st_ino == named.st_ino &&
         open.st_dev == named.st_dev;
}

}  // namespace

QueueJournal::Content QueueJournal::read(std::string_view bytes) {
  Content content;
  while (bytes.size() - content.bytes >= kHeadBytes) {
    const std::string_view head = bytes.substr(content.bytes, kHeadBytes);
    const size_t length = little_endian(head);
    if (length > kMaxRecord || length > bytes.size() - content.bytes - kHeadBytes) break;
    const std::string_view payload = bytes.substr(content.bytes + kHeadBytes, length);
    if (checksum_of(head.substr(0, 4), payload) != little_endian(head.substr(4))) break;
    content.records.push_back(payload);
    content.bytes += kHeadBytes + length;
  }
  return content;
}

std::string QueueJournal::frame(std::string_view payload) {
  BRIM_CHECK(payload.size() <= kMaxRecord, "a record of {} bytes, at most {}", payload.size(), kMaxRecord);
  std::string framed;
  framed.reserve(kHeadBytes + payload.size());
  const auto put = [&](size_t value) {
    for (size_t i = 0; i < 4; ++i) framed += static_cast<char>(value >> (8 * i));
  };
  put(payload.size());
  put(checksum_of(framed, payload));
  return framed.append(payload);
}

QueueJournal::QueueJournal(std::filesystem::path path, std::string_view first) : path_(std::move(path)) {
  // A file without one whole record was made by a process that died at once: nothing in it was ever acknowledged.
  std::error_code ignored;
  if (!std::filesystem::exists(path_, ignored)) io::write_file_atomically(path_, frame(first));
  std::string content = bytes_of_file(path_);
  const Content whole = read(content);
  for (const std::string_view record : whole.records) opened_.emplace_back(record);
  bytes_ = whole.bytes;
  const std::string_view torn = std::string_view(content).substr(whole.bytes);
  std::filesystem::path tail;
  if (!torn.empty()) tail = keep_tail(path_, torn);
  open_to_append();
  if (!torn.empty()) {
    if (::ftruncate(fd_, static_cast<off_t>(bytes_)) != 0)
      io::fail_write(path_.string(), "cannot cut off a torn record", errno);
    log_warning("{}: its last {} bytes are no whole record and were cut off; they are kept as {}", path_.string(),
                torn.size(), tail.string());
  }
  if (opened_.empty()) {
    write_and_sync(frame(first), 0);
    bytes_ = kHeadBytes + first.size();
    opened_.emplace_back(first);
  }
}

QueueJournal::~QueueJournal() {
  if (fd_ >= 0) ::close(fd_);
}

void QueueJournal::forget_opened() {
  opened_.clear();
  opened_.shrink_to_fit();
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
    // Half a record would be cut off by the next opening anyway; without it the file stays readable by eye.
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
    // This thread writes for all that have come so far; those that come meanwhile are the next group.
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
  io::AtomicFile file(path_);
  for (const std::string& payload : payloads) file.write(frame(payload));
  const size_t bytes = file.position();
  try {
    file.commit();
    open_to_append();
  } catch (const Error& e) {
    // As long as the name means the file that is open, that one is whole and goes on.
    if (!is_named(fd_, path_)) failure_ = e.what();
    changed_.notify_all();
    throw;
  }
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

}  // namespace brim::serve
