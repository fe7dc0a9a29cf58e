// SPDX-License-Identifier: Apache-2.0
#include "engine/word_staging.h"

#include <algorithm>

#include "base/error.h"
#include "engine/gliner_head.h"
#include "ops/word_scores.h"

namespace brim::engine {
namespace {

using batch::PackedBatch;
using batch::SequenceWords;

constexpr int64_t kAlignedInts = 4;  // each array begins at 16 bytes
constexpr int64_t kArrays = 6;       // per chunk

int64_t align_ints(int64_t ints) { return (ints + kAlignedInts - 1) / kAlignedInts * kAlignedInts; }

int64_t most_ints(int64_t tokens, int64_t windows, int64_t chunks) {
  return (3 + ops::kWordInts) * tokens + 2 * windows + chunks * (2 + kArrays * kAlignedInts);
}

int64_t tokens_of(const PackedBatch& batch, size_t begin, size_t end) {
  return batch.starts[end] - batch.starts[begin];
}

}  // namespace

int64_t WordStaging::batch_bytes(const model::BatchLimits& limits) {
  return static_cast<int64_t>(sizeof(int32_t)) * most_ints(limits.tokens, limits.sequences, limits.sequences);
}
int64_t WordStaging::chunk_bytes(int64_t tokens) {
  return static_cast<int64_t>(sizeof(int32_t)) * most_ints(tokens, most_windows(tokens), 1);
}

const std::vector<WordChunk>& WordStaging::stage(const PackedBatch& batch, int32_t* out) {
  chunks_.clear();
  const size_t n = batch.tickets.size();
  for (size_t begin = 0; begin < n;) {
    size_t end = begin + 1;
    while (end < n && tokens_of(batch, begin, end + 1) <= most_ &&
           batch.words[end].prepared == batch.words[begin].prepared)
      ++end;
    add_chunk(batch, begin, end, out);
    begin = end;
  }
  return chunks_;
}

// Rows of the words, then those of the labels.
void WordStaging::add_rows(const PackedBatch& batch, size_t begin, size_t end, WordChunk& chunk) {
  using Pooling = hub::GlinerConfig::Pooling;
  const bool all = pooling_ == Pooling::mean || pooling_ == Pooling::max;
  rows_.clear();
  starts_.assign(1, 0);
  for (size_t b = begin; b < end; ++b)
    for (const batch::WordTokens& word : batch.words[b].words) {
      const int32_t used = all ? word.count : std::min(word.count, 1);
      const int32_t first = pooling_ == Pooling::last ? word.first + word.count - used : word.first;
      BRIM_CHECK(first >= 0 && first + used <= batch.starts[b + 1] - batch.starts[b],
                 "a word has the tokens {} to {} of a sequence of {}", first, first + used,
                 batch.starts[b + 1] - batch.starts[b]);
      for (int32_t i = 0; i < used; ++i) rows_.push_back(batch.starts[b] + first + i);
      starts_.push_back(static_cast<int32_t>(rows_.size()));
    }
  chunk.word_rows = static_cast<int64_t>(rows_.size());
  for (size_t b = begin; b < end; ++b)
    for (const int32_t token : batch.words[b].labels) rows_.push_back(batch.starts[b] + token);
  chunk.rows = static_cast<int64_t>(rows_.size());
}

void WordStaging::add_chunk(const PackedBatch& batch, size_t begin, size_t end, int32_t* out) {
  WordChunk chunk;
  chunk.first_token = batch.starts[begin];
  chunk.tokens = tokens_of(batch, begin, end);
  chunk.prepared = batch.words[begin].prepared;
  add_rows(batch, begin, end, chunk);
  infos_.clear();
  pairs_.clear();
  order_.clear();
  first_words_.clear();
  int32_t pair = 0;
  const auto prepared =
      chunk.prepared == nullptr
          ? 0
          : static_cast<int32_t>(GlinerHead::vectors_of(*static_cast<const GlinerHead::Labels*>(chunk.prepared)).count);
  for (size_t b = begin; b < end; ++b) {
    const SequenceWords& sequence = batch.words[b];
    const auto first = static_cast<int32_t>(chunk.words), n = static_cast<int32_t>(sequence.words.size());
    const int32_t labels = prepared > 0 ? prepared : static_cast<int32_t>(sequence.labels.size());
    for (int32_t w = 0; w < n; ++w) {
      const int32_t row = batch.starts[b] - batch.starts[begin] + w;
      infos_.insert(infos_.end(), {first + n, static_cast<int32_t>(chunk.labels), labels, row});
      pairs_.push_back(pair);
      pair += labels;
    }
    BRIM_CHECK(n <= tokens_of(batch, b, b + 1), "{} words in a sequence of {} tokens", n, tokens_of(batch, b, b + 1));
    first_words_.push_back(first);
    if (n > 0) order_.push_back(static_cast<int32_t>(b - begin));
    chunk.words += n;
    if (prepared == 0) chunk.labels += labels;
  }
  pairs_.push_back(pair);
  if (prepared > 0) chunk.labels = prepared;
  const auto length = [&](int32_t i) {
    return static_cast<int32_t>(batch.words[begin + static_cast<size_t>(i)].words.size());
  };
  std::stable_sort(order_.begin(), order_.end(), [&](int32_t a, int32_t b) { return length(a) > length(b); });
  chunk.windows = static_cast<int64_t>(order_.size());
  chunk.begin = chunks_.empty() ? 0 : chunks_.back().begin + chunks_.back().ints;
  const auto append = [&](const std::vector<int32_t>& values) {
    const int64_t at = chunk.ints;
    std::copy(values.begin(), values.end(), out + chunk.begin + at);
    chunk.ints = align_ints(at + static_cast<int64_t>(values.size()));
    return at;
  };
  append(rows_);
  chunk.starts = append(starts_);
  chunk.infos = append(infos_);
  chunk.pairs = append(pairs_);
  starts_.clear();
  for (const int32_t i : order_) starts_.push_back(first_words_[static_cast<size_t>(i)]);
  chunk.first_words = append(starts_);
  starts_.clear();
  for (const int32_t i : order_) starts_.push_back(length(i));
  chunk.lengths = append(starts_);
  chunks_.push_back(chunk);
}

}  // namespace brim::engine
