// SPDX-License-Identifier: Apache-2.0
#include "io/descriptor.h"

#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "base/clock.h"

namespace brim::io {
namespace {

constexpr size_t kMostBytes = size_t{1} << 30;  // one write(2) moves at most 2 GiB minus a page
constexpr int64_t kStopGraceNs = 800'000'000;

bool is_regular(int fd) {
  struct stat info {};
  return ::fstat(fd, &info) == 0 && S_ISREG(info.st_mode);
}

// Waits for space in a pipe. PIPE_BUF bytes then fit without blocking.
void await_room(int fd, const std::string& name, WriteStop& stop) {
  while (!wait_until_ready(fd, POLLOUT, stop.requested != nullptr ? kStopLookMs : -1)) {
    if (!stop.requested->load()) continue;
    if (stop.seen_ns == 0) stop.seen_ns = now_ns();
    if (now_ns() - stop.seen_ns > kStopGraceNs)
      fail(ErrorCode::interrupted, "{}: interrupted while the reader was blocked; unread rows are lost", name);
  }
}

}  // namespace

bool wait_until_ready(int fd, short events, int ms) {
  pollfd waiting{fd, events, 0};
  return ::poll(&waiting, 1, ms) > 0;
}

void write_all(int fd, std::string_view bytes, const std::string& name, WriteStop& stop) {
  const bool may_block = stop.requested != nullptr && !is_regular(fd);
  while (!bytes.empty()) {
    if (may_block) await_room(fd, name, stop);
    const ssize_t n = ::write(fd, bytes.data(), std::min<size_t>(bytes.size(), may_block ? PIPE_BUF : kMostBytes));
    if (n >= 0) {
      bytes.remove_prefix(static_cast<size_t>(n));
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {  // made non-blocking by a program that shares it
      await_room(fd, name, stop);
    } else if (errno == EPIPE) {
      throw OutputClosed(name);
    } else if (errno != EINTR) {
      fail_write(name, "cannot write", errno);
    }
  }
}

void fail_write(const std::string& name, const char* what, int error) {
  const char* advice = error == ENOSPC || error == EDQUOT ? ": free some space or choose another output" : "";
  fail(ErrorCode::cannot_write, "{}: {}: {}{}", name, what, std::strerror(error), advice);
}

void refuse_foreign_file(const std::string& path, const std::string& why) {
  fail(ErrorCode::cannot_write, Remedy{"move it away or choose another output"}, "{}: {}", path, why);
}

int open_own_file(const std::string& path, int flags) {
  const int fd = ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (fd < 0 && errno == ELOOP) refuse_foreign_file(path, "is a symbolic link");
  if (fd < 0 && errno != ENXIO) return -1;  // ENXIO: a FIFO without a reader, or a socket
  struct stat info {};
  const bool known = fd >= 0 && ::fstat(fd, &info) == 0, regular = known && S_ISREG(info.st_mode);
  if (regular && info.st_nlink <= 1) return fd;  // 0: removed in the meantime
  if (fd >= 0) ::close(fd);
  refuse_foreign_file(path, regular ? "has other hard links" : "is not a regular file");
}

}  // namespace brim::io
