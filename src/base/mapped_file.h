// SPDX-License-Identifier: Apache-2.0
// A file mapped read-only. Weights are read through it, so a model's pages are shared between processes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string_view>

#include "base/error.h"

namespace brim {

class MappedFile {
 public:
  MappedFile() = default;
  // A missing or unreadable file throws Error with `code` and a message that names it.
  explicit MappedFile(const std::filesystem::path& path, ErrorCode code = ErrorCode::bad_model);
  ~MappedFile();
  MappedFile(MappedFile&& other) noexcept { *this = std::move(other); }
  MappedFile& operator=(MappedFile&& other) noexcept;

  const std::filesystem::path& path() const { return path_; }
  size_t size() const { return size_; }
  const std::byte* data() const { return data_; }
  std::span<const std::byte> bytes() const { return {data_, size_}; }
  void expect_scattered_reads() const;  // pages are read one by one, without their neighbours
  // Whole pages of the part are no longer this process's; they are read again where they are needed. All: the default.
  void release(size_t at = 0, size_t bytes = SIZE_MAX) const;
  std::string_view text() const { return {reinterpret_cast<const char*>(data_), size_}; }

 private:
  std::filesystem::path path_;
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
};

// The whole of a small file. Throws like MappedFile.
std::string read_file(const std::filesystem::path& path, ErrorCode code = ErrorCode::bad_model);

}  // namespace brim
