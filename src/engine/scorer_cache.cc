// SPDX-License-Identifier: Apache-2.0
#include "engine/scorer_cache.h"

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "engine/label.h"
#include "engine/label_task.h"

namespace brim::engine {
namespace {

std::atomic<int64_t> cached_scorers{0};

// First value of a key: submitted texts and texts of a call have different results.
enum KeyKind : int64_t { submitted = 1, in_call = 2 };

void fill_row(Predictions& all, size_t row, const Prediction& from) {
  all.truncated[row] = from.truncated;
  if (!all.entities.empty()) {
    all.entities[row] = from.entities;
    return;
  }
  std::copy(from.scores.begin(), from.scores.end(), all.scores.begin() + static_cast<std::ptrdiff_t>(row * all.width));
  if (all.label_scores.empty()) return;
  const Choice choice = choose_label(from.scores);
  all.labels[row] = choice.label;
  all.label_scores[row] = choice.score;
}

Prediction row_of(const Predictions& scored, size_t row) {
  Prediction p;
  p.truncated = scored.truncated[row] != 0;
  if (!scored.entities.empty()) {
    p.entities = scored.entities[row];
  } else {
    const auto first = scored.scores.begin() + static_cast<std::ptrdiff_t>(row * scored.width);
    p.scores.assign(first, first + static_cast<std::ptrdiff_t>(scored.width));
  }
  return p;
}

}  // namespace

ScorerCache::ScorerCache(std::shared_ptr<ResultCache> cache) : cache_(std::move(cache)), scorer_(++cached_scorers) {}

void ScorerCache::add_text(std::string& key, std::string_view text, std::optional<std::string_view> pair,
                           std::string_view prompt, const LabelTask* labels) const {
  append_key(key, text);
  append_key(key, int64_t{pair.has_value()});
  append_key(key, pair.value_or(""));
  append_key(key, prompt);
  append_key(key, labels != nullptr ? labels->identity() : "");
}

std::string ScorerCache::key(const Request& r, const LabelTask* labels) const {
  std::string key;
  append_key(key, submitted);
  append_key(key, scorer_);
  const int64_t flags = r.keep_end | r.raw_scores << 1 | r.outside << 2 | r.entities << 3;
  append_key(key, flags | int64_t{static_cast<uint8_t>(*r.long_text)} << 8 |
                      int64_t{static_cast<uint8_t>(*r.aggregation)} << 16);
  append_key(key, r.overlap);
  append_key(key, r.max_length);
  add_text(key, r.text, r.pair, *r.prompt, labels);
  for (const int32_t id : r.ids) append_key(key, id);  // the last part, so it needs no length
  return key;
}

std::string ScorerCache::row_key(const Texts& texts, size_t row) const {
  std::string key;
  append_key(key, in_call);
  append_key(key, scorer_);
  add_text(key, texts.texts[row], texts.pairs.empty() ? std::nullopt : std::optional(texts.pairs[row]), texts.prompt,
           texts.labels);
  return key;
}

std::shared_ptr<const Prediction> ScorerCache::find(std::string_view key) {
  auto found = cache_->find(key);
  (found != nullptr ? hits_ : misses_).fetch_add(1, std::memory_order_relaxed);
  return found;
}

void ScorerCache::score(const Texts& given, const std::function<void(size_t)>& progress, const ScoreTexts& compute,
                        Predictions& all) {
  std::vector<size_t> rows;                        // computed
  std::vector<std::pair<size_t, size_t>> missing;  // row, and the index in `rows` of the first equal one
  std::vector<std::string_view> texts, pairs;
  std::map<std::pair<std::string_view, std::string_view>, size_t> indices;  // values index `rows`
  for (size_t row = 0; row < given.texts.size(); ++row) {
    const std::string_view pair = given.pairs.empty() ? std::string_view() : given.pairs[row];
    const auto [same, first] = indices.try_emplace({given.texts[row], pair}, rows.size());
    if (!first) {
      count_hit();
      missing.emplace_back(row, same->second);
      continue;
    }
    if (const auto known = find(row_key(given, row))) {
      indices.erase(same);
      fill_row(all, row, *known);
      continue;
    }
    missing.emplace_back(row, rows.size());
    rows.push_back(row);
    texts.push_back(given.texts[row]);
    if (!given.pairs.empty()) pairs.push_back(pair);
  }
  const size_t known = given.texts.size() - rows.size();
  if (progress && known > 0) progress(known);
  if (rows.empty()) return;
  std::function<void(size_t)> on_progress;
  if (progress) on_progress = [&](size_t done) { progress(known + done); };
  const Predictions scored = compute({texts, pairs, given.labels, given.prompt}, on_progress);
  all.tokens = scored.tokens;
  const auto error_of = [&](size_t i) {
    const auto found = std::ranges::lower_bound(scored.errors, i, {}, [](const auto& e) { return e.first; });
    return found != scored.errors.end() && found->first == i ? &found->second : nullptr;
  };
  for (const auto& [row, i] : missing) {
    if (const Error* error = error_of(i)) {
      all.errors.emplace_back(row, *error);
      continue;
    }
    Prediction p = row_of(scored, i);
    fill_row(all, row, p);
    if (row == rows[i]) cache_->put(row_key(given, row), std::move(p));
  }
}

}  // namespace brim::engine
