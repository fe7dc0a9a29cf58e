// SPDX-License-Identifier: Apache-2.0
#include "base/test_syscalls.h"

#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <mutex>
#include <set>
#include <utility>

namespace brim {
namespace {

struct Log {
  std::mutex mutex;
  std::vector<FileCall> calls;
  std::function<void(const std::string&)> hook;
};
std::atomic<bool> active{false};
thread_local bool inside = false;  // set during calls made by the recording itself

Log& the_log() {
  static Log* log = new Log;  // server threads may outlive static objects
  return *log;
}

std::string path_of(int fd) {
  char name[4096];
  const ssize_t length = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), name, sizeof name);
  return length < 0 ? "" : std::string(name, static_cast<size_t>(length));
}

bool gives_name(const std::string& call) { return call == "rename" || call == "link"; }

// A temporary name: it need not survive a power failure.
bool renamed_later(const std::vector<FileCall>& calls, size_t link) {
  return std::any_of(calls.begin() + static_cast<std::ptrdiff_t>(link), calls.end(),
                     [&](const FileCall& c) { return c.call == "rename" && c.path == calls[link].target; });
}

bool recording() { return active && !inside; }

void note(const char* call, const std::string& path, const std::string& target = "") {
  const int error = errno;
  inside = true;
  {
    const std::lock_guard lock(the_log().mutex);
    if (active) the_log().calls.push_back({call, path, target});
  }
  inside = false;
  errno = error;
}

// A file opened with O_TMPFILE got a name: its earlier calls are listed under it.
void note_name(const std::string& unnamed, const std::string& path) {
  const int error = errno;
  inside = true;
  {
    const std::lock_guard lock(the_log().mutex);
    for (FileCall& call : the_log().calls)
      if (call.path == unnamed) call.path = path;
  }
  inside = false;
  errno = error;
}

void run_hook(const std::string& path) {
  inside = true;
  std::function<void(const std::string&)> hook;
  {
    const std::lock_guard lock(the_log().mutex);
    hook = the_log().hook;
  }
  if (hook) hook(path);
  inside = false;
}

// The C library's implementation.
template <class Fn>
Fn real(Fn, const char* name) {
  return reinterpret_cast<Fn>(::dlsym(RTLD_NEXT, name));
}

template <class Fn>
int sync_with(Fn real_sync, const char* name, int fd) {
  if (!recording()) return real_sync(fd);
  const std::string path = path_of(fd);
  run_hook(path);
  const int result = real_sync(fd);
  if (result == 0) note(name, path);
  return result;
}

}  // namespace

SyscallLog::SyscallLog() {
  the_log().calls.clear();
  the_log().hook = nullptr;
  active = true;
}

SyscallLog::~SyscallLog() {
  const std::lock_guard lock(the_log().mutex);
  active = false;
}

std::vector<FileCall> SyscallLog::calls() const {
  const std::lock_guard lock(the_log().mutex);
  return the_log().calls;
}

void SyscallLog::before_sync(std::function<void(const std::string&)> hook) {
  const std::lock_guard lock(the_log().mutex);
  the_log().hook = std::move(hook);
}

size_t find_call(const std::vector<FileCall>& calls, const std::string& call, const std::string& path, size_t from) {
  for (size_t i = from; i < calls.size(); ++i)
    if (calls[i].call == call && (gives_name(call) ? calls[i].target : calls[i].path).ends_with(path)) return i;
  return calls.size();
}

std::vector<std::string> unsynced(const std::vector<FileCall>& calls, size_t end, const std::string& root) {
  namespace fs = std::filesystem;
  const auto parent = [](const std::string& path) { return fs::path(path).parent_path().string(); };
  std::set<std::string> dirty, lost;
  end = std::min(end, calls.size());
  for (size_t i = 0; i < end; ++i) {
    const FileCall& c = calls[i];
    if (c.call == "write") dirty.insert(c.path);
    if (c.call == "mkdir") dirty.insert(parent(c.path));
    if (c.call == "fsync" || c.call == "fdatasync") dirty.erase(c.path);
    if (!gives_name(c.call)) continue;
    for (const std::string& path : std::set<std::string>(dirty))
      if (path == c.path || path.starts_with(c.path + "/")) {
        dirty.erase(path);
        lost.insert(c.target + ": named before " + path + " was synced");
      }
    if (c.call != "link" || !renamed_later(calls, i)) dirty.insert(parent(c.target));
  }
  // Removed temporary files need no sync.
  const auto lives = [&](const std::string& path) {
    std::error_code ignored;
    if (fs::exists(path, ignored)) return true;
    return std::any_of(calls.begin() + static_cast<std::ptrdiff_t>(end), calls.end(), [&](const FileCall& c) {
      return c.call == "rename" && (path == c.path || path.starts_with(c.path + "/"));
    });
  };
  for (const std::string& path : dirty)
    if (lives(path)) lost.insert(path);
  std::vector<std::string> below;
  for (const std::string& path : lost)
    if (path.starts_with(root)) below.push_back(path);
  return below;
}

}  // namespace brim

#define BRIM_INTERPOSED extern "C" __attribute__((visibility("default")))

BRIM_INTERPOSED ssize_t write(int fd, const void* data, size_t bytes) {
  static const auto next = brim::real(&::write, "write");
  const ssize_t written = next(fd, data, bytes);
  if (written > 0 && brim::recording()) brim::note("write", brim::path_of(fd));
  return written;
}

BRIM_INTERPOSED ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) {
  static const auto next = brim::real(&::pwrite, "pwrite");
  const ssize_t written = next(fd, data, bytes, at);
  if (written > 0 && brim::recording()) brim::note("write", brim::path_of(fd));
  return written;
}

BRIM_INTERPOSED ssize_t writev(int fd, const iovec* parts, int count) {
  static const auto next = brim::real(&::writev, "writev");
  const ssize_t written = next(fd, parts, count);
  if (written > 0 && brim::recording()) brim::note("write", brim::path_of(fd));
  return written;
}

BRIM_INTERPOSED int fsync(int fd) {
  static const auto next = brim::real(&::fsync, "fsync");
  return brim::sync_with(next, "fsync", fd);
}

BRIM_INTERPOSED int fdatasync(int fd) {
  static const auto next = brim::real(&::fdatasync, "fdatasync");
  return brim::sync_with(next, "fdatasync", fd);
}

BRIM_INTERPOSED int rename(const char* from, const char* to) noexcept {
  static const auto next = brim::real(&::rename, "rename");
  const int result = next(from, to);
  if (result == 0 && brim::recording()) brim::note("rename", from, to);
  return result;
}

BRIM_INTERPOSED int link(const char* from, const char* to) noexcept {
  static const auto next = brim::real(&::link, "link");
  const int result = next(from, to);
  if (result == 0 && brim::recording()) brim::note("link", from, to);
  return result;
}

BRIM_INTERPOSED int linkat(int from_dir, const char* from, int to_dir, const char* to, int flags) noexcept {
  static const auto next = brim::real(&::linkat, "linkat");
  char unnamed[4096];
  const ssize_t length = brim::recording() ? ::readlink(from, unnamed, sizeof unnamed) : -1;
  const int result = next(from_dir, from, to_dir, to, flags);
  if (result != 0 || !brim::recording()) return result;
  if (length > 0) brim::note_name(std::string(unnamed, static_cast<size_t>(length)), to);
  brim::note("link", length > 0 ? to : from, to);
  return result;
}

BRIM_INTERPOSED int mkdir(const char* path, mode_t mode) noexcept {
  static const auto next = brim::real(&::mkdir, "mkdir");
  const int result = next(path, mode);
  if (result == 0 && brim::recording()) brim::note("mkdir", path);
  return result;
}

BRIM_INTERPOSED ssize_t send(int fd, const void* data, size_t bytes, int flags) {
  static const auto next = brim::real(&::send, "send");
  if (brim::recording()) brim::note("send", std::string(static_cast<const char*>(data), std::min<size_t>(bytes, 12)));
  return next(fd, data, bytes, flags);
}

BRIM_INTERPOSED ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static const auto next = brim::real(&::sendmsg, "sendmsg");
  if (brim::recording() && message->msg_iovlen > 0) {
    const iovec& first = message->msg_iov[0];
    brim::note("send", std::string(static_cast<const char*>(first.iov_base), std::min<size_t>(first.iov_len, 12)));
  }
  return next(fd, message, flags);
}
