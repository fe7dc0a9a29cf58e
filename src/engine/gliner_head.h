// SPDX-License-Identifier: Apache-2.0
// The head of a GLiNER model: scores spans of words for labels from the encoder's hidden states. A word's vector is
// pooled from its tokens and optionally passed through a bidirectional LSTM over the words. Computes on the host; on a
// GPU, word_head.h does, and this only holds the weights. Does not tokenize or select entities (entity_task.h).
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <vector>

#include "batch/packed_batch.h"
#include "engine/gliner_weights.h"
#include "hub/gliner_config.h"
#include "ops/linear.h"

namespace brim::engine {

using batch::WordTokens;

// A window of a text as computed by the encoder.
struct HeadWindow {
  const float* hidden;              // [tokens, hidden size of the encoder]
  std::span<const int32_t> labels;  // the token that represents each label; empty if they were prepared
  std::span<const WordTokens> words;
};

// A span of words whose score for a label exceeds the threshold.
struct SpanScore {
  int32_t first, last;  // words, inclusive
  int32_t label;
  float score;
};

// Vectors of labels for a head on a device. `id` is never used again.
struct DeviceLabels {
  uint64_t id = 0;
  int64_t count = 0;
  std::vector<float> vectors;  // [count, labels_size]
};

class GlinerHead {
 public:
  struct Labels;  // bi-encoders: all that the head computes from labels alone, or their vectors for a device

  // Throws bad_model if tensors are missing or do not match the configuration. `encoder_size`, `labels_size`: hidden
  // sizes of the encoders; the second is 0 if the model is no bi-encoder. `precision`: fp32 or bf16.
  static std::unique_ptr<const GlinerHead> load(const std::filesystem::path& dir, const hub::GlinerConfig& config,
                                                int64_t encoder_size, int64_t labels_size, ops::Precision precision);
  // The weights for a head on a device; score() must not be called.
  static std::unique_ptr<const GlinerHead> load_for_device(const std::filesystem::path& dir,
                                                           const hub::GlinerConfig& config, int64_t encoder_size,
                                                           int64_t labels_size);
  ~GlinerHead();

  const hub::GlinerConfig& config() const { return config_; }
  int64_t encoder_size() const { return encoder_size_; }
  bool on_device() const { return device_weights_ != nullptr; }
  std::shared_ptr<const GlinerWeights> device_weights() const { return device_weights_; }
  static const DeviceLabels& vectors_of(const Labels& labels);
  static std::shared_ptr<const Labels> device_labels(int64_t count, std::vector<float> vectors);
  // `vectors`: [labels, labels_size], the mean of the hidden states of each label.
  std::shared_ptr<const Labels> prepare(std::span<const float> vectors) const;
  // Appends the spans of each window, with their best labels, to `found`, in the order of the reference implementation:
  // by first word, then by width (spans) or by label and last word (words). `labels` is null if the windows have them.
  // Thread-safe.
  void score(std::span<const HeadWindow> windows, const Labels* labels, float threshold,
             std::span<std::vector<SpanScore>> found) const;

  // The same from the scores of a window's words by a head on a device, [words, width].
  void read_scores(std::span<const float> scores, size_t width, size_t labels, float threshold,
                   std::vector<SpanScore>& found) const;

  int64_t bytes() const { return bytes_; }  // size of the weights
  // Upper bound for the memory of a call with up to `words` words in all windows and `labels` labels each.
  int64_t scratch_bytes(int64_t words, int64_t labels) const;

 private:
  struct Matrix;
  struct Mlp;
  struct Lstm;
  struct Rows;
  struct LabelRows;
  struct LabelSlice;
  struct WordProducts;
  struct Packer;
  explicit GlinerHead(const hub::GlinerConfig& config);
  void pack(GlinerWeights weights);
  static Rows gather(const std::vector<const float*>& rows, int64_t size, const Matrix* projection);
  static Rows first_columns(const Rows& rows, int64_t columns);
  static std::unique_ptr<const Matrix> by_label(const LabelRows& rows, int64_t first, int64_t count);
  Rows word_rows(std::span<const HeadWindow> windows) const;
  LabelRows label_rows(const Rows& projected) const;
  LabelRows label_rows(std::span<const HeadWindow> windows) const;
  void run_lstm(std::span<const HeadWindow> windows, Rows& words) const;
  WordProducts products_of_ends(const Rows& words) const;
  WordProducts products_of_words(const Rows& words) const;
  // Words [base, base + W) of the products are those of the window.
  void score_spans(const WordProducts& words, int64_t base, int64_t W, const LabelSlice& labels, float threshold,
                   std::vector<SpanScore>& found) const;
  void score_words(const WordProducts& words, int64_t base, int64_t W, const LabelSlice& labels, float threshold,
                   std::vector<SpanScore>& found) const;
  // Scores of a word for a label begin at scores[word * stride + 3 * label].
  static void join_words(const float* scores, size_t stride, size_t words, size_t labels, float threshold,
                         std::vector<SpanScore>& found);

  const hub::GlinerConfig config_;
  int64_t encoder_size_ = 0, labels_size_ = 0, bytes_ = 0;
  ops::Precision precision_ = ops::Precision::fp32;
  std::shared_ptr<const GlinerWeights> device_weights_;     // null on the host
  std::unique_ptr<Matrix> projection_, labels_projection_;  // null if encoder and head have the same size
  std::vector<Lstm> lstm_;                                  // two per layer: forward, backward
  // Span models.
  std::unique_ptr<Mlp> start_, end_, label_;
  std::unique_ptr<Matrix> span_start_, span_end_, span_out_turned_;
  std::vector<float> span_out_bias_;
  // Word models.
  std::unique_ptr<Matrix> word_, word_label_, mix_word_, mix_label_, mix_both_, mix_out_;
};

}  // namespace brim::engine
