// SPDX-License-Identifier: Apache-2.0
// A read-only mapping of a file that stays open. Accessing the mapping after another process truncated the file raises
// SIGBUS; read() reports an error instead.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/error.h"

struct stat;

namespace brim {

class MappedFile {
 public:
  MappedFile() = default;
  // Throws Error with `code` and a message that names the file if it is missing or unreadable.
  explicit MappedFile(const std::filesystem::path& path, ErrorCode code = ErrorCode::bad_model);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  size_t size() const { return size_; }
  const std::byte* data() const { return data_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  // Copies a range with pread(2). Fails if the file has become shorter.
  void read(size_t at, size_t bytes, void* out) const;
  // Fails if the file was modified or replaced since it was opened. A deleted file counts as unchanged.
  void check_unchanged() const;
  void expect_scattered_reads() const;  // disables read-ahead
  // Drops the whole pages of the range from this process; later accesses read them again. Default: the whole file.
  void release(size_t at = 0, size_t bytes = SIZE_MAX) const;
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  struct Stamp {
    uint64_t device = 0, inode = 0;
    int64_t size = 0, modified_ns = 0;
    bool operator==(const Stamp&) const = default;
  };
  static Stamp stamp_of(const struct ::stat& info);

  std::filesystem::path path_;
  ErrorCode code_ = ErrorCode::bad_model;
  Stamp stamp_;
  int fd_ = -1;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// Reads a whole small file. Throws like MappedFile.
std::string read_file(const std::filesystem::path& path, ErrorCode code = ErrorCode::bad_model);

}  // namespace brim
