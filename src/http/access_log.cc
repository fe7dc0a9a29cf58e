// SPDX-License-Identifier: Apache-2.0
#include "http/access_log.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <utility>

#include "base/error.h"
#include "base/log.h"

namespace brim::http {
namespace {

constexpr size_t kMaxWaitingBytes = 16 << 20;

}  // namespace

AccessLog::AccessLog(const std::string& path) : path_(path) {
  descriptor_ =
      path == "-" ? ::dup(STDOUT_FILENO) : ::open(path.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0640);
  if (descriptor_ < 0) fail(ErrorCode::cannot_write, "{}: cannot write: {}", path, std::strerror(errno));
  struct stat info {};
  is_file_ = ::fstat(descriptor_, &info) == 0 && S_ISREG(info.st_mode);
  thread_ = std::thread([this] { run(); });
}

AccessLog::~AccessLog() {
  {
    std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  thread_.join();
  ::close(descriptor_);
}

void AccessLog::add(std::string_view line) {
  std::lock_guard lock(mutex_);
  if (waiting_.size() > kMaxWaitingBytes) {
    ++dropped_;
    return;
  }
  waiting_ += line;
}

void AccessLog::run() {
  std::string lines;
  std::unique_lock lock(mutex_);
  for (bool last = false; !last;) {
    changed_.wait_for(lock, std::chrono::milliseconds(200), [this] { return ending_; });
    last = ending_;
    lines.swap(waiting_);
    const uint64_t dropped = std::exchange(dropped_, 0);
    lock.unlock();
    if (dropped > 0) log_warning("{}: dropped {} lines of the access log", path_, dropped);
    write(lines);
    lines.clear();
    lock.lock();
  }
}

// A writable pipe takes PIPE_BUF bytes without blocking.
void AccessLog::write(std::string_view lines) {
  while (!lines.empty()) {
    if (!is_file_ && !wait_until_writable()) {
      log_warning("{}: dropped {} bytes of the access log that were not read", path_, lines.size());
      return;
    }
    const ssize_t n =
        ::write(descriptor_, lines.data(), is_file_ ? lines.size() : std::min<size_t>(lines.size(), PIPE_BUF));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) {
      if (!std::exchange(warned_, true))
        log_warning("{}: cannot write the access log: {}", path_, std::strerror(errno));
      return;
    }
    lines.remove_prefix(static_cast<size_t>(n));
  }
}

bool AccessLog::wait_until_writable() {
  for (;;) {
    pollfd entry{descriptor_, POLLOUT, 0};
    if (const int ready = ::poll(&entry, 1, 1000); ready > 0 || (ready < 0 && errno != EINTR)) return true;
    std::lock_guard lock(mutex_);
    if (ending_) return false;
  }
}

}  // namespace brim::http
