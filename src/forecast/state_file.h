// SPDX-License-Identifier: Apache-2.0
// State files of runs that may be killed: numbers and lists in writing order, followed by a hash. Files appear
// atomically and durably; a damaged file, or one of another run, is treated as missing.
#pragma once
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

#include "base/mapped_file.h"
#include "io/atomic_file.h"
#include "train/content_hash.h"

namespace brim::forecast {

class StateWriter {
 public:
  // `owner` is the fingerprint of the run. Throws cannot_write, as do the members below.
  StateWriter(const std::filesystem::path& path, std::string_view owner);
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    write(&value, sizeof value);
  }
  template <class T>
  void list(const std::vector<T>& values) {
    length(values.size());
    part(values);
  }
  // A list too long to hold in memory: its length, then its parts.
  void length(uint64_t values) { put(values); }
  template <class T>
  void part(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    write(values.data(), values.size() * sizeof(T));
  }
  void text(std::string_view value) {
    put<uint64_t>(value.size());
    write(value.data(), value.size());
  }
  void commit();

 private:
  void write(const void* data, size_t bytes);
  void end_block();
  io::AtomicFile file_;
  train::ContentHash hash_;
  std::string block_;
};

class StateReader {
 public:
  // nullopt if the file is missing, damaged, or has another owner.
  static std::optional<StateReader> open(const std::filesystem::path& path, std::string_view owner);
  template <class T>
  T get() {
    T value;
    std::memcpy(&value, take(sizeof value), sizeof value);
    return value;
  }
  template <class T>
  std::vector<T> list() {
    return part<T>(count(sizeof(T)));
  }
  // Reads a list in parts.
  template <class T>
  size_t length() {
    return count(sizeof(T));
  }
  template <class T>
  std::vector<T> part(size_t n) {
    std::vector<T> values(n);
    if (n > 0) std::memcpy(values.data(), take(n * sizeof(T)), n * sizeof(T));
    return values;
  }
  std::string text();
  bool at_end() const { return content_.empty(); }

 private:
  StateReader(MappedFile file, std::string_view content) : file_(std::move(file)), content_(content) {}
  const char* take(size_t bytes);  // throws bad_data past the end, which an intact file of the same owner never reaches
  size_t count(size_t each);
  MappedFile file_;
  std::string_view content_;  // unread rest
};

}  // namespace brim::forecast
