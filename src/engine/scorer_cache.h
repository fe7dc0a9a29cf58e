// SPDX-License-Identifier: Apache-2.0
// A scorer's part of the result cache: keys of its requests, lookups and their counts. Does not score texts.
#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "brim/brim.h"
#include "engine/result_cache.h"

namespace brim::engine {

class LabelTask;

class ScorerCache {
 public:
  // `cache`: null: no results are kept.
  explicit ScorerCache(std::shared_ptr<ResultCache> cache);
  explicit operator bool() const { return cache_ != nullptr; }

  // Key of a submitted request: this scorer, the text and all options that change the result. `request` has no unset
  // options.
  std::string key(const Request& request, const LabelTask* labels) const;
  std::shared_ptr<const Prediction> find(std::string_view key);  // counts a hit or a miss
  void put(std::string key, const Prediction& prediction) { cache_->put(std::move(key), prediction); }
  void count_hit() { hits_.fetch_add(1, std::memory_order_relaxed); }

  // Texts of a call like Scorer::score().
  struct Texts {
    std::span<const std::string_view> texts, pairs;  // equal sizes, or no pairs
    const LabelTask* labels = nullptr;
    std::string_view prompt = {};
  };
  using ScoreTexts = std::function<Predictions(const Texts&, const std::function<void(size_t)>& progress)>;
  // Fills the rows of `all` from the cache, the others with `compute`, which gets equal texts once, and keeps their
  // results.
  void score(const Texts& texts, const std::function<void(size_t)>& progress, const ScoreTexts& compute,
             Predictions& all);

  int64_t hits() const { return hits_.load(std::memory_order_relaxed); }
  int64_t misses() const { return misses_.load(std::memory_order_relaxed); }

 private:
  std::string row_key(const Texts& texts, size_t row) const;
  void add_text(std::string& key, std::string_view text, std::optional<std::string_view> pair, std::string_view prompt,
                const LabelTask* labels) const;

  const std::shared_ptr<ResultCache> cache_;
  const int64_t scorer_;  // never reused, so that a reloaded model finds no results of its predecessor
  std::atomic<int64_t> hits_{0}, misses_{0};
};

}  // namespace brim::engine
