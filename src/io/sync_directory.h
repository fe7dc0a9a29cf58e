// SPDX-License-Identifier: Apache-2.0
#pragma once
#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>

#include "io/descriptor.h"

namespace brim::io {

// Makes files and directories created in `dir` durable. Throws cannot_write.
inline void sync_directory(const std::filesystem::path& dir) {
  const int fd = ::open(dir.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return;  // writable but not readable: its entries exist, only their durability is unknown
  const int error = ::fsync(fd) == 0 ? 0 : errno;
  ::close(fd);
  // Some file systems cannot sync directories.
  if (error != 0 && error != EINVAL && error != EROFS && error != ENOTSUP)
    fail_write(dir.string(), "cannot sync", error);
}

}  // namespace brim::io
