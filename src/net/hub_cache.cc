// SPDX-License-Identifier: Apache-2.0
#include "net/hub_cache.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <thread>

#include "base/error.h"
#include "io/atomic_file.h"
#include "io/descriptor.h"
#include "io/hub_names.h"

namespace brim::net {
namespace fs = std::filesystem;
namespace {

void make_directories(const fs::path& dir) {
  std::error_code error;
  fs::create_directories(dir, error);
  if (error) io::fail_write(dir.string(), "cannot create", error.value());
}

}  // namespace

HubCache::HubCache(const fs::path& root, const std::string& repository)
    : root_(root), home_(root / io::hub_cache_folder(repository)) {}

fs::path HubCache::lock_file(const std::string& etag) const {
  return root_ / ".locks" / home_.filename() / (etag + ".lock");
}

void HubCache::create_directories() const {
  for (const fs::path& dir : {home_ / "blobs", home_ / "refs", home_ / "snapshots", lock_file("").parent_path()})
    make_directories(dir);
}

void HubCache::link(const std::string& commit, const std::string& name, const std::string& etag) const {
  const fs::path pointer = snapshot(commit) / name;
  make_directories(pointer.parent_path());
  fs::path target;
  for (auto levels = std::count(name.begin(), name.end(), '/') + 2; levels > 0; --levels) target /= "..";
  target = target / "blobs" / etag;
  // A link cannot replace a file, so it is created under another name and renamed.
  const fs::path fresh = pointer.string() + "." + std::to_string(::getpid()) + ".link";
  std::error_code error;
  fs::remove(fresh, error);
  fs::create_symlink(target, fresh, error);
  if (!error) fs::rename(fresh, pointer, error);
  if (error) io::fail_write(pointer.string(), "cannot link", error.value());
}

void HubCache::write_ref(const std::string& revision, const std::string& commit) const {
  const fs::path ref = home_ / "refs" / revision;
  make_directories(ref.parent_path());
  io::write_file_atomically(ref, commit);
}

FileLock::FileLock(const fs::path& path, const std::atomic<bool>* stop, const std::function<void()>& on_wait) {
  fd_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
  if (fd_ < 0) io::fail_write(path.string(), "cannot open", errno);
  for (bool waited = false; ::flock(fd_, LOCK_EX | LOCK_NB) != 0; waited = true) {
    const int error = errno;
    const bool stopped = stop != nullptr && *stop;
    if (stopped || (error != EWOULDBLOCK && error != EINTR)) {
      ::close(fd_);
      if (stopped) fail(ErrorCode::interrupted, "interrupted");
      io::fail_write(path.string(), "cannot lock", error);
    }
    if (!waited) on_wait();
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
}

FileLock::~FileLock() { ::close(fd_); }

}  // namespace brim::net
