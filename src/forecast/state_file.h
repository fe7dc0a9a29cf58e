// SPDX-License-Identifier: Apache-2.0
// What a run that may be killed keeps on disk: numbers and lists in the order they were put, with a hash at the end. A
// file appears only when it is whole and durable; one that is damaged, or belongs to another run, counts as absent.
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
  // `owner`: fingerprint of the run. Throws cannot_write, here and below.
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
  // A list too long to be held at once: its length, then its parts.
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
  // Nothing where there is no such file, where it is damaged, or where it is another owner's.
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
  // A list in parts.
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

 private:
  StateReader(MappedFile file, std::string_view content) : file_(std::move(file)), content_(content) {}
  const char* take(size_t bytes);  // throws bad_data past the end, which a whole file of the same owner does not have
  size_t count(size_t each);
  MappedFile file_;
  std::string_view content_;  // what was not read yet
};

}  // namespace brim::forecast
