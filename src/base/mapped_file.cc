// SPDX-License-Identifier: Apache-2.0
#include "base/mapped_file.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

namespace brim {

namespace {

const char* file_kind(mode_t mode) {
  return S_ISDIR(mode) ? "a directory" : S_ISFIFO(mode) ? "a named pipe" : "a device";
}

}  // namespace

MappedFile::Stamp MappedFile::stamp_of(const struct ::stat& info) {
  return {static_cast<uint64_t>(info.st_dev), static_cast<uint64_t>(info.st_ino), static_cast<int64_t>(info.st_size),
          static_cast<int64_t>(info.st_mtim.tv_sec) * 1'000'000'000 + info.st_mtim.tv_nsec};
}

MappedFile::MappedFile(const std::filesystem::path& path, ErrorCode code) : path_(path), code_(code) {
  // O_NONBLOCK: opening a named pipe without a writer would block.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) fail(code, "{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    fail(code, "{}: is {}, not a regular file", path.string(), file_kind(info.st_mode));
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    if (p == MAP_FAILED) {
      ::close(fd);
      fail(error == ENOMEM ? ErrorCode::does_not_fit : code, "{}: cannot map {} bytes: {}", path.string(), size_,
           std::strerror(error));
    }
    data_ = static_cast<const std::byte*>(p);
  }
  fd_ = fd;
  stamp_ = stamp_of(info);
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
  if (fd_ >= 0) ::close(fd_);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    std::swap(path_, other.path_);
    std::swap(code_, other.code_);
    std::swap(stamp_, other.stamp_);
    std::swap(fd_, other.fd_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  return *this;
}

void MappedFile::read(size_t at, size_t bytes, void* out) const {
  BRIM_CHECK(at <= size_ && bytes <= size_ - at, "{}: reading {} bytes at offset {} of {}", path_.string(), bytes, at,
             size_);
  for (size_t done = 0; done < bytes;) {
    const ssize_t got = ::pread(fd_, static_cast<char*>(out) + done, bytes - done, static_cast<off_t>(at + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) fail(code_, "{}: cannot read: {}", path_.string(), std::strerror(errno));
    if (got == 0)
      fail(code_, Remedy{"replace files by renaming, never by overwriting"},
           "{}: truncated to {} bytes while being read ({} before)", path_.string(), at + done, size_);
    done += static_cast<size_t>(got);
  }
}

void MappedFile::check_unchanged() const {
  struct stat open_file {};
  struct stat named {};
  const bool written = ::fstat(fd_, &open_file) == 0 && stamp_of(open_file) != stamp_;
  const bool replaced = !written && ::stat(path_.c_str(), &named) == 0 && stamp_of(named) != stamp_;
  if (written || replaced)
    fail(code_, Remedy{"load it again; replace a model by renaming its directory, never by overwriting files"},
         "{}: {} while it was being read", path_.string(), written ? "modified" : "replaced");
}

void MappedFile::expect_scattered_reads() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_RANDOM);  // only a hint
}

void MappedFile::release(size_t at, size_t bytes) const {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (at + page - 1) / page * page;
  const size_t end = bytes >= size_ - std::min(at, size_) ? size_ : (at + bytes) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

std::string read_file(const std::filesystem::path& path, ErrorCode code) {
  const MappedFile file(path, code);
  std::string text(file.size(), '\0');
  file.read(0, text.size(), text.data());
  return text;
}

}  // namespace brim
