// SPDX-License-Identifier: Apache-2.0
// Bidirectional map between tokens and ids: one block of bytes, an index by id, an open-addressing hash table.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace brim::text {

class Vocab {
 public:
  // Larger ids are rejected: no model has them, and a corrupt file must not cause an allocation of gigabytes.
  static constexpr int32_t kMostIds = 1 << 21;

  Vocab() = default;
  // Throws Error(bad_model) naming `file` if an id is negative, too large or repeated. The last of equal tokens wins (a
  // vocab.txt with a repeated line).
  Vocab(const std::vector<std::pair<std::string, int32_t>>& tokens, const std::filesystem::path& file);

  int32_t find(std::string_view token) const;  // -1 if missing
  std::string_view token(int32_t id) const {   // empty if missing
    if (id < 0 || id >= size()) return {};
    return std::string_view(bytes_).substr(begins_[static_cast<size_t>(id)], lengths_[static_cast<size_t>(id)]);
  }
  int32_t size() const { return static_cast<int32_t>(begins_.size()); }  // largest id plus one
  int32_t count() const { return count_; }                               // tokens

 private:
  static uint64_t hash(std::string_view token);
  std::string bytes_;
  std::vector<uint32_t> begins_, lengths_;
  std::vector<int32_t> slots_;  // id plus one; 0 is an empty slot
  int32_t count_ = 0;
};

}  // namespace brim::text
