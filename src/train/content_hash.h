// SPDX-License-Identifier: Apache-2.0
// 128-bit content hash: two independent multiply-and-fold lanes over 8 bytes at a time. Identifies data sets and files
// and detects corruption; not collision resistant against an attacker.
#pragma once
#include <array>
#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>

#include "base/mapped_file.h"

namespace brim::train {

class ContentHash {
 public:
  void add(const void* data, size_t bytes);
  void add(std::string_view text);  // includes the length, so "ab"+"c" differs from "a"+"bc"
  void add_file(const std::filesystem::path& path);
  // If the values are in a mapped file, releases its pages after reading them.
  template <class T>
  void add_all(std::span<const T> values, const MappedFile* mapped = nullptr) {
    const uint64_t count = values.size();
    add(&count, sizeof count);
    add_pieces(values.data(), values.size_bytes(), mapped);
  }
  void add_pieces(const void* data, size_t bytes, const MappedFile* mapped);
  std::array<uint64_t, 2> value() const { return lanes_; }
  std::string hex() const;

 private:
  void mix(uint64_t word);
  std::array<uint64_t, 2> lanes_ = {0x243F6A8885A308D3ULL, 0x13198A2E03707344ULL};
};

}  // namespace brim::train
