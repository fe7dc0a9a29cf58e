// SPDX-License-Identifier: Apache-2.0
// Scores of one teacher on disk, by the content of the text, so that a later run, or one that continues after a kill,
// computes only the missing ones. Several processes may read and append at once. Does not score.
#pragma once
#include <compare>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace brim::train {

// Hash of a text, or of a pair of texts.
struct TextKey {
  uint64_t high = 0, low = 0;
  auto operator<=>(const TextKey&) const = default;
};
TextKey text_key(std::string_view text, const std::optional<std::string_view>& pair = {});

// A header, then records of fixed size: key, scores, checksum. Records are appended whole, under a lock; an incomplete
// record at the end (a killed process) is removed by the next append, a damaged one is ignored.
class SoftLabelCache {
 public:
  // Opens or creates `dir`/`name`.scores for `classes` scores per text. Without write access, logs a warning and keeps
  // nothing. Removes the least recently used files if all together exceed `limit_bytes`.
  SoftLabelCache(const std::filesystem::path& dir, const std::string& name, int64_t classes, int64_t limit_bytes);
  ~SoftLabelCache();
  SoftLabelCache(const SoftLabelCache&) = delete;
  SoftLabelCache& operator=(const SoftLabelCache&) = delete;

  // Calls `take` with the records appended since the last call, by any process.
  void read_new(const std::function<void(const TextKey&, const float* scores)>& take);
  void append(std::span<const TextKey> keys, std::span<const float> scores);  // [keys, classes]

 private:
  size_t record_bytes() const;
  void disable(const std::string& why);
  std::filesystem::path path_;
  int64_t classes_;
  int fd_ = -1;
  bool enabled_ = true;
  int64_t read_ = 0;
};

}  // namespace brim::train
