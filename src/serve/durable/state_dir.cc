// SPDX-License-Identifier: Apache-2.0
#include "serve/durable/state_dir.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/error.h"
#include "io/descriptor.h"
#include "io/sync_directory.h"

namespace brim::serve {
namespace {

void make_private_folder(const std::filesystem::path& path) {
  std::error_code error;
  std::filesystem::create_directories(path.parent_path(), error);
  if (::mkdir(path.c_str(), 0700) == 0)
    io::sync_directory(path.parent_path());
  else if (errno != EEXIST)
    io::fail_write(path.string(), "cannot create", errno);
  if (!std::filesystem::is_directory(path, error)) fail(ErrorCode::cannot_write, "{}: not a directory", path.string());
}

}  // namespace

StateDir::StateDir(std::filesystem::path path, const std::string& remedy)
    : path_(std::filesystem::absolute(path).lexically_normal()) {
  if (!path_.has_filename()) path_ = path_.parent_path();
  make_private_folder(path_);
  const std::filesystem::path file = path_ / "lock";
  lock_ = ::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
  if (lock_ < 0) io::fail_write(file.string(), "cannot create", errno);
  if (::flock(lock_, LOCK_EX | LOCK_NB) != 0 &&
      errno == EWOULDBLOCK) {  // other errors: the file system does not support locks
    ::close(lock_);
    fail(ErrorCode::cannot_write, Remedy{remedy}, "{}: in use by another server", path_.string());
  }
}

StateDir::~StateDir() { ::close(lock_); }

std::filesystem::path StateDir::folder(const std::string& name) const {
  make_private_folder(path_ / name);
  return path_ / name;
}

}  // namespace brim::serve
