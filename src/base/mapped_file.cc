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

MappedFile::MappedFile(const std::filesystem::path& path, ErrorCode code) : path_(path) {
  // O_NONBLOCK: opening a named pipe without a writer would wait for one.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
  if (fd < 0) fail(code, "{}: cannot open: {}", path.string(), std::strerror(errno));
  struct stat info {};
  if (::fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
    ::close(fd);
    fail(code, "{}: not a regular file but {}; put the file itself there", path.string(), file_kind(info.st_mode));
  }
  size_ = static_cast<size_t>(info.st_size);
  if (size_ > 0) {
    void* p = ::mmap(nullptr, size_, PROT_READ, MAP_PRIVATE, fd, 0);
    const int error = errno;
    ::close(fd);
    if (p == MAP_FAILED) fail(code, "{}: cannot map {} bytes: {}", path.string(), size_, std::strerror(error));
    data_ = static_cast<const std::byte*>(p);
  } else {
    ::close(fd);
  }
}

MappedFile::~MappedFile() {
  if (data_ != nullptr) ::munmap(const_cast<std::byte*>(data_), size_);
}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  if (this != &other) {
    std::swap(path_, other.path_);
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
  }
  return *this;
}

void MappedFile::expect_scattered_reads() const {
  if (data_ != nullptr) ::madvise(const_cast<std::byte*>(data_), size_, MADV_RANDOM);  // advice: nothing depends on it
}

void MappedFile::release(size_t at, size_t bytes) const {
  static const auto page = static_cast<size_t>(::sysconf(_SC_PAGESIZE));
  const size_t begin = (at + page - 1) / page * page;
  const size_t end = bytes >= size_ - std::min(at, size_) ? size_ : (at + bytes) / page * page;
  if (begin < end) ::madvise(const_cast<std::byte*>(data_) + begin, end - begin, MADV_DONTNEED);
}

std::string read_file(const std::filesystem::path& path, ErrorCode code) {
  return std::string(MappedFile(path, code).text());
}

}  // namespace brim
