// SPDX-License-Identifier: Apache-2.0
#include "engine/result_cache.h"

#include <array>
#include <bit>
#include <iterator>

#include "base/error.h"

namespace brim::engine {
namespace {

// Entry, hash node and bucket, reference counts, with the allocator's overhead.
constexpr int64_t kCacheEntryBytes = 256 + static_cast<int64_t>(sizeof(Prediction));
constexpr int64_t kLargestEntryShare = 16;  // a result that needs more than this part of the cache is not kept

int64_t size_of(const std::string& key, const Prediction& p) {
  size_t bytes = key.capacity() + p.label.capacity() + (p.scores.capacity() + p.embedding.capacity()) * sizeof(float);
  for (const Entity& entity : p.entities) bytes += sizeof(Entity) + entity.group.capacity() + entity.word.capacity();
  return static_cast<int64_t>(bytes) + kCacheEntryBytes;
}

}  // namespace

std::shared_ptr<const Prediction> ResultCache::find(std::string_view key) {
  const std::lock_guard lock(mutex_);
  const auto found = places_.find(key);
  if (found == places_.end()) return nullptr;
  entries_.splice(entries_.begin(), entries_, found->second);
  return found->second->prediction;
}

void ResultCache::put(std::string key, Prediction prediction) {
  BRIM_CHECK(!prediction.error, "an error in the cache");
  prediction.timing = {};
  const int64_t bytes = size_of(key, prediction);
  if (bytes > most_bytes_ / kLargestEntryShare) return;
  std::list<Entry> added, replaced;  // allocated and freed without the lock
  added.push_back({std::move(key), std::make_shared<const Prediction>(std::move(prediction)), bytes});
  const std::lock_guard lock(mutex_);
  if (const auto found = places_.find(added.front().key); found != places_.end()) {
    entries_.splice(entries_.begin(), entries_, found->second);  // computed twice at the same time
    return;
  }
  while (bytes_ + bytes > most_bytes_) {
    places_.erase(entries_.back().key);
    bytes_ -= entries_.back().bytes;
    replaced.splice(replaced.begin(), entries_, std::prev(entries_.end()));
  }
  places_.emplace(added.front().key, added.begin());
  bytes_ += bytes;
  entries_.splice(entries_.begin(), added);
}

int64_t ResultCache::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

void append_key(std::string& key, std::string_view text) {
  append_key(key, static_cast<int64_t>(text.size()));
  key += text;
}

void append_key(std::string& key, int64_t number) {
  const auto bytes = std::bit_cast<std::array<char, sizeof number>>(number);
  key.append(bytes.data(), bytes.size());
}

}  // namespace brim::engine
