// SPDX-License-Identifier: Apache-2.0
// Tokens and their ids, both ways: one block of bytes, an index by id, an open-addressing table by hash.
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
  // Ids beyond this are refused: no model has them, and a lying file must not make us allocate gigabytes.
  static constexpr int32_t kMostIds = 1 << 21;

  Vocab() = default;
  // Throws Error(bad_model) naming `file` where an id is negative, too large, or given twice. Of equal tokens the last
  // one counts (a vocab.txt with a repeated line).
  Vocab(const std::vector<std::pair<std::string, int32_t>>& tokens, const std::filesystem::path& file);

  int32_t find(std::string_view token) const;  // -1 if there is none
  std::string_view token(int32_t id) const {   // empty if there is none
    if (id < 0 || id >= size()) return {};
    return std::string_view(bytes_).substr(begins_[static_cast<size_t>(id)], lengths_[static_cast<size_t>(id)]);
  }
  int32_t size() const { return static_cast<int32_t>(begins_.size()); }  // largest id plus one
  int32_t count() const { return count_; }                               // tokens

 private:
  static uint64_t hash(std::string_view token);
  std::string bytes_;
  std::vector<uint32_t> begins_, lengths_;
  std::vector<int32_t> slots_;  // id plus one; 0 is free
  int32_t count_ = 0;
};

}  // namespace brim::text
