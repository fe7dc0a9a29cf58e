// SPDX-License-Identifier: Apache-2.0
// Bounded cache from words to token ids for models with short pieces: an entry is one cache line and holds up to 11
// ids. Each slot has two entries; the newer one is checked first and evicts the older one.
#pragma once
#include <algorithm>
#include <cstdint>
#include <span>
#include <vector>

#include "text/short_key.h"

namespace brim::text {

class SubwordCache {
 public:
  static constexpr size_t kMostIds = 11;
  struct alignas(64) Entry {
    ShortKey key;
    uint32_t count = 0;
    int32_t ids[kMostIds] = {};
  };
  static_assert(sizeof(Entry) == 64);

  // 2^log2_pairs pairs of entries, 128 bytes per pair.
  explicit SubwordCache(int log2_pairs = 14) : entries_(size_t{2} << log2_pairs), shift_(64 - log2_pairs) {}

  const Entry* find(const ShortKey& key, uint64_t hash) const {
    const Entry* pair = &entries_[hash >> shift_ << 1];
    if (pair[0].key == key) return &pair[0];
    if (pair[1].key == key) return &pair[1];
    return nullptr;
  }
  void prefetch(uint64_t hash) const { __builtin_prefetch(&entries_[hash >> shift_ << 1]); }
  void store(const ShortKey& key, uint64_t hash, std::span<const int32_t> ids) {
    if (ids.size() > kMostIds) return;
    Entry* pair = &entries_[hash >> shift_ << 1];
    pair[1] = pair[0];
    pair[0].key = key;
    pair[0].count = static_cast<uint32_t>(ids.size());
    std::copy(ids.begin(), ids.end(), pair[0].ids);
  }

 private:
  std::vector<Entry> entries_;
  int shift_;
};

}  // namespace brim::text
