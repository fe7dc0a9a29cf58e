// SPDX-License-Identifier: Apache-2.0
// Bounded per-thread cache from words to token ids. Two entries share a cache line; the newer one is checked first and
// evicts the older one.
// Words with more than 15 bytes or 3 tokens are not cached.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "text/short_key.h"

namespace brim::text {

class WordCache {
 public:
  static constexpr size_t kMostIds = 3;
  struct Entry {
    ShortKey key;
    uint32_t count = 0;
    int32_t ids[kMostIds] = {};
  };
  static_assert(sizeof(Entry) == 32);

  // 2^log2_lines lines of two entries, 64 bytes per line.
  explicit WordCache(int log2_lines = 15) : lines_(size_t{1} << log2_lines), shift_(64 - log2_lines) {}

  // Entry for a word, or nullptr. No word has an empty key.
  const Entry* find(const ShortKey& key) const { return find(key, key.hash()); }
  const Entry* find(const ShortKey& key, uint64_t hash) const {
    const Line& line = lines_[hash >> shift_];
    if (line.entries[0].key == key) return &line.entries[0];
    if (line.entries[1].key == key) return &line.entries[1];
    return nullptr;
  }
  void prefetch(uint64_t hash) const { __builtin_prefetch(&lines_[hash >> shift_]); }
  void store(const ShortKey& key, uint64_t hash, std::span<const int32_t> ids) {
    if (ids.size() > kMostIds) return;
    Line& line = lines_[hash >> shift_];
    line.entries[1] = line.entries[0];
    Entry& entry = line.entries[0];
    entry.key = key;
    entry.count = static_cast<uint32_t>(ids.size());
    for (size_t i = 0; i < ids.size(); ++i) entry.ids[i] = ids[i];
  }

 private:
  struct alignas(64) Line {
    Entry entries[2];
  };
  std::vector<Line> lines_;
  int shift_;
};

}  // namespace brim::text
