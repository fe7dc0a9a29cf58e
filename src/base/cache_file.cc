// SPDX-License-Identifier: Apache-2.0
#include "base/cache_file.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace brim {

std::string write_cache_file(const std::filesystem::path& path, std::string_view text) {
  std::error_code ignored;
  std::filesystem::create_directories(path.parent_path(), ignored);
  std::string fresh = path.string() + ".XXXXXX";
  const int fd = ::mkstemp(fresh.data());
  if (fd < 0) return std::strerror(errno);
  bool done = true;
  while (done && !text.empty()) {
    const ssize_t n = ::write(fd, text.data(), text.size());
    if (n > 0) text.remove_prefix(static_cast<size_t>(n));
    done = n > 0 || errno == EINTR;
  }
  int error = done ? 0 : errno;
  if (::close(fd) != 0 && error == 0) error = errno;
  if (error == 0 && std::rename(fresh.c_str(), path.c_str()) != 0) error = errno;
  if (error == 0) return "";
  ::unlink(fresh.c_str());
  return std::strerror(error);
}

}  // namespace brim
