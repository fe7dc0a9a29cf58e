// SPDX-License-Identifier: Apache-2.0
// Tokenized data sets kept on disk, so that a second run on the same data starts at once. A file's name is the hash of
// everything its content depends on (data, tokenizer files, labels, the settings that matter), so nothing is ever
// stale; its last bytes are its own hash, so damage is noticed and the set made anew. The folder's size is bounded:
// what was not used for longest goes first.
#pragma once
#include <filesystem>
#include <functional>
#include <optional>

#include "train/dataset.h"

namespace brim::train {

class TokenCache {
 public:
  explicit TokenCache(std::filesystem::path dir, int64_t limit_bytes) : dir_(std::move(dir)), limit_(limit_bytes) {}

  // The set as a mapped file. If there is none, `make` collects the rows, whose tokens go to the file as they come. A
  // cache that cannot be written costs a warning, not the run: the set then stays in memory, made again if need be.
  TrainSet get(const std::string& key, const std::function<void(TrainRows&)>& make);
  bool hit() const { return hit_; }  // of the last get()
  std::filesystem::path path(const std::string& key) const { return dir_ / (key + ".tokens"); }

 private:
  std::optional<TrainSet> load(const std::filesystem::path& path, bool written_just_now) const;
  void make_room(int64_t bytes) const;
  std::filesystem::path dir_;
  int64_t limit_;
  bool hit_ = false;
};

// What collect_rows' result depends on.
std::string token_cache_key(const std::vector<std::string>& files, const std::string& token_file,
                            const TrainSettings& settings, TrainTask task, const LabelSets& labels,
                            const std::filesystem::path& tokenizer_dir, int64_t max_length);

}  // namespace brim::train
