// SPDX-License-Identifier: Apache-2.0
#include "engine/score_columns.h"

#include <algorithm>
#include <atomic>

#include "base/utf8.h"
#include "engine/label.h"
#include "engine/pipeline.h"

namespace brim::engine {
namespace {

// Inputs below this size are scored on the caller's thread: starting a pipeline takes longer.
constexpr size_t kFewBytes = 32 << 10;
constexpr size_t kFewCosts = 4096;  // with labels of a call: texts multiplied by their cost

// Reads the caller's texts chunk by chunk without copying.
class TextSource : public rows::RowSource {
 public:
  // `pairs`: same size as `texts`, or empty.
  TextSource(std::span<const std::string_view> texts, std::span<const std::string_view> pairs, std::stop_token stop)
      : texts_(texts), pairs_(pairs), stop_(std::move(stop)) {}
  bool next_chunk(rows::RowChunk& chunk) override {
    if (next_ == texts_.size() || stop_.stop_requested()) return false;
    chunk.first_row = static_cast<int64_t>(next_);
    for (size_t bytes = 0; next_ < texts_.size() && bytes < bytes_ && chunk.size() < kRows; ++next_) {
      const std::string_view text = texts_[next_];
      const std::string_view pair = pairs_.empty() ? std::string_view() : pairs_[next_];
      if (!is_valid_utf8(text) || !is_valid_utf8(pair)) chunk.errors.push_back({chunk.size(), not_utf8()});
      chunk.texts.push_back(text);
      if (!pairs_.empty()) chunk.pairs.push_back(pair);
      chunk.records.push_back(text);
      chunk.lines.push_back(static_cast<int64_t>(next_) + 1);
      bytes += text.size() + pair.size() + 1;
    }
    return true;
  }
  void limit_chunks(size_t bytes) override { bytes_ = std::min(bytes_, std::max<size_t>(1, bytes)); }
  size_t chunk_bytes() const override { return bytes_; }

 private:
  static constexpr size_t kRows = 8192;
  std::span<const std::string_view> texts_, pairs_;
  std::stop_token stop_;
  size_t next_ = 0, bytes_ = size_t{512} << 10;
};

template <class T>
auto at(std::vector<T>& values, size_t place) {
  return values.begin() + static_cast<std::ptrdiff_t>(place);
}

}  // namespace

bool are_few(std::span<const std::string_view> texts, size_t cost) {
  if (texts.size() > 1 && cost > 1 && texts.size() > kFewCosts / cost) return false;
  size_t bytes = 0;
  for (size_t i = 0; i < texts.size() && bytes <= kFewBytes; ++i) bytes += texts[i].size() + 1;
  return bytes <= kFewBytes;
}

Error not_utf8() { return Error(ErrorCode::bad_data, "the text is not UTF-8"); }

Predictions Columns::finish(size_t done) {
  for (size_t row = done; row < p_.rows; ++row)
    p_.errors.emplace_back(row, Error(ErrorCode::cancelled, "stopped before this text was scored"));
  return std::move(p_);
}

Predictions score_many(Engine* model, int threads, std::span<const std::string_view> texts,
                       std::span<const std::string_view> pairs, std::stop_token stop,
                       const std::function<void(size_t)>& progress, Columns& columns, bool normalizes,
                       std::optional<std::string_view> prompt, const LabelTask* zero_shot) {
  std::atomic<bool> stopped{false};
  const std::stop_callback on_stop(stop, [&] { stopped = true; });
  PipelineOptions options;
  options.stop = &stopped;
  options.tokenizer_threads = threads;
  options.prompt = prompt;
  options.zero_shot = zero_shot;
  Predictions& p = columns.predictions();
  TextSource source(texts, pairs, stop);
  size_t done = 0;
  const auto collect = [&](ScoredChunk& chunk) {
    const auto first = static_cast<size_t>(chunk.rows.first_row);
    for (const rows::RowError& e : chunk.errors) p.errors.emplace_back(first + e.row, e.error);
    std::copy(chunk.truncated.begin(), chunk.truncated.end(), at(p.truncated, first));
    if (!p.entities.empty()) std::move(chunk.entities.begin(), chunk.entities.end(), at(p.entities, first));
    if (p.width > 0) std::copy(chunk.scores.begin(), chunk.scores.end(), at(p.scores, first * p.width));
    for (size_t row = 0; row < chunk.choices.size(); ++row) {
      p.labels[first + row] = chunk.choices[row].label;
      p.label_scores[first + row] = chunk.choices[row].score;
    }
    for (size_t row = 0; normalizes && row < chunk.rows.size(); ++row)
      normalize({&p.scores[(first + row) * p.width], p.width});
    done = first + chunk.rows.size();
    if (progress) progress(done);
  };
  p.tokens = run_pipeline({model}, source, collect, nullptr, options).all.tokens;
  return columns.finish(done);
}

}  // namespace brim::engine
