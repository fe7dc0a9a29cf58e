// SPDX-License-Identifier: Apache-2.0
// Keeps tokenized data sets on disk, so that a second run on the same data starts immediately. The file name is a hash
// over data, tokenizer files, labels and relevant settings, so entries never become stale. A trailing content hash
// detects damaged files, which are rebuilt. The cache size is bounded, with LRU eviction. Does not tokenize.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>

#include "train/content_hash.h"
#include "train/dataset.h"

namespace brim::train {

class TokenCache {
 public:
  explicit TokenCache(std::filesystem::path dir, int64_t limit_bytes) : dir_(std::move(dir)), limit_(limit_bytes) {}

  // Returns the set as a mapped file. On a miss, `make` collects the rows and their tokens are streamed to the file. If
  // the cache cannot be written, logs a warning and keeps the set in memory, calling `make` again if needed.
  TrainSet get(const std::string& key, const std::function<void(TrainRows&)>& make);
  bool hit() const { return hit_; }  // whether the last get() was a hit
  std::filesystem::path path(const std::string& key) const { return dir_ / (key + ".tokens"); }

 private:
  std::optional<TrainSet> load(const std::filesystem::path& path, bool written_just_now) const;
  std::filesystem::path dir_;
  int64_t limit_;
  bool hit_ = false;
};

// Removes the least recently used files with this extension, except `kept`, until all are within `limit_bytes` together
// with `added` bytes.
void evict_least_recent(const std::filesystem::path& dir, const char* extension, const std::filesystem::path& kept,
                        int64_t limit_bytes, int64_t added = 0);

// Disk limit of a cache in `dir`: sets that do not fit in memory need the disk, so the limit grows with it.
int64_t cache_limit(const std::filesystem::path& dir);

// Adds the names and contents of a model's tokenizer files.
void hash_tokenizer(ContentHash& hash, const std::filesystem::path& dir);

// Hash of all inputs of collect_rows.
std::string token_cache_key(const std::vector<std::string>& files, const std::string& token_file,
                            const TrainSettings& settings, TrainTask task, const LabelSets& labels,
                            const std::filesystem::path& tokenizer_dir, int64_t max_length);

}  // namespace brim::train
