// SPDX-License-Identifier: Apache-2.0
// Keeps tokenized data sets on disk, so that a second run on the same data starts immediately. The file name is a hash
// over data, tokenizer files, labels and relevant settings, so entries never become stale. A trailing content hash
// detects damaged files, which are rebuilt. The cache size is bounded, with LRU eviction. Does not tokenize.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>

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
  void evict_to_fit(int64_t bytes) const;
  std::filesystem::path dir_;
  int64_t limit_;
  bool hit_ = false;
};

// Hash of all inputs of collect_rows.
std::string token_cache_key(const std::vector<std::string>& files, const std::string& token_file,
                            const TrainSettings& settings, TrainTask task, const LabelSets& labels,
                            const std::filesystem::path& tokenizer_dir, int64_t max_length);

}  // namespace brim::train
