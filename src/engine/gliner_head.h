// SPDX-License-Identifier: Apache-2.0
// The head of a GLiNER model on the host, in fp32: scores spans of words for labels from the encoder's hidden states. A
// word's vector is pooled from its tokens and optionally passed through a bidirectional LSTM over the words. Does not
// tokenize or select entities (entity_task.h).
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "hub/gliner_config.h"
#include "hub/weights.h"

namespace brim::engine {

// Tokens of a word within its window; none if the tokenizer drops the word.
struct WordTokens {
  int32_t first, count;
};

// A window of a text as computed by the encoder.
struct HeadWindow {
  const float* hidden;              // [tokens, hidden size of the encoder]
  std::span<const int32_t> labels;  // the token that represents each label
  std::span<const WordTokens> words;
};

// A span of words whose score for a label exceeds the threshold.
struct SpanScore {
  int32_t first, last;  // words, inclusive
  int32_t label;
  float score;
};

class GlinerHead {
 public:
  // Throws bad_model if tensors are missing or do not match the configuration. `encoder_size`: its hidden size.
  static std::unique_ptr<const GlinerHead> load(const std::filesystem::path& dir, const hub::GlinerConfig& config,
                                                int64_t encoder_size);
  ~GlinerHead();

  const hub::GlinerConfig& config() const { return config_; }
  int64_t encoder_size() const { return encoder_size_; }
  // Appends the spans of each window to `found`, in the order of the reference implementation: by first word, then by
  // width and label (spans) or by label and last word (words). Thread-safe.
  void score(std::span<const HeadWindow> windows, float threshold, std::vector<std::vector<SpanScore>>& found) const;

  int64_t bytes() const { return bytes_; }  // size of the weights
  // Upper bound for the memory of a call with up to `words` words in all windows and `labels` labels each.
  static int64_t scratch_bytes(const hub::GlinerConfig& config, int64_t encoder_size, int64_t words, int64_t labels);

 private:
  struct Matrix;
  struct Mlp;
  struct Lstm;
  struct Rows;
  explicit GlinerHead(const hub::GlinerConfig& config);
  void load_spans(const hub::WeightSource& source);
  void load_words(const hub::WeightSource& source);
  Rows word_rows(std::span<const HeadWindow> windows) const;
  Rows label_rows(const HeadWindow& window) const;
  Rows project(const std::vector<const float*>& rows) const;
  void run_lstm(std::span<const HeadWindow> windows, Rows& words) const;
  void score_spans(std::span<const HeadWindow> windows, const Rows& words, float threshold,
                   std::vector<std::vector<SpanScore>>& found) const;
  void score_words(std::span<const HeadWindow> windows, const Rows& words, float threshold,
                   std::vector<std::vector<SpanScore>>& found) const;
  void join_words(std::span<const float> scores, size_t words, size_t labels, float threshold,
                  std::vector<SpanScore>& found) const;

  const hub::GlinerConfig config_;
  int64_t encoder_size_ = 0, bytes_ = 0;
  std::unique_ptr<Matrix> projection_;  // null if encoder and head have the same size
  std::vector<Lstm> lstm_;              // two per layer: forward, backward
  // Span models. The first product of a span is linear in its two ends, so it is computed once per word.
  std::unique_ptr<Mlp> start_, end_, label_;
  std::unique_ptr<Matrix> span_start_, span_end_, span_out_turned_;
  std::vector<float> span_out_bias_;
  // Word models.
  std::unique_ptr<Matrix> word_, word_label_, mix_word_, mix_label_, mix_both_, mix_out_;
};

}  // namespace brim::engine
