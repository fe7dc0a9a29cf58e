// SPDX-License-Identifier: Apache-2.0
// Entities by name with a GLiNER model: the encoder reads the labels, each after a marker, and the words of a text, or
// in a bi-encoder only the words; the head (gliner_head.h) scores spans of words for each label; the best spans that do
// not overlap are kept, greedily. Does not run the encoders.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/thread_pool.h"
#include "engine/gliner_head.h"
#include "engine/label_task.h"
#include "text/words.h"

namespace brim::engine {

// The keys of the settings in messages.
struct EntityKeys {
  const char* labels = "`entities`";
  const char* threshold = "`threshold`";
};

// A GLiNER model was opened without labels, and a text has none.
Error no_entity_labels(const std::filesystem::path& dir);

// Throws usage if labels or threshold are invalid: no label, more than kMostLabels, empty, repeated or not UTF-8; a
// threshold outside 0 to 1.
void check_entity_labels(const EntityLabels& entities, const EntityKeys& keys = {});

// Ids of the tokens before each label and before the text.
struct GlinerMarkers {
  int32_t label, text;
};
// Throws bad_model if neither the tokenizer nor the configuration has the first.
GlinerMarkers find_markers(const hub::GlinerConfig& config, const text::Tokenizer& tokenizer);

// Tags of words for entities of these labels: B-label, I-label, and so on.
std::vector<std::string> tags_of(const std::vector<std::string>& labels);
// Indices into tags_of(labels) of words that overlap entities; -1: none.
std::vector<int32_t> tags_of_words(std::span<const text::WordSpan> words, const std::vector<Entity>& entities,
                                   const std::vector<std::string>& labels);

// Spans that do not cross each other: apart, or one inside the other. Spans that begin at the same word never cross, so
// comparing with the longest and the shortest per word suffices; with a threshold of 0 there may be many.
class NestedSpans {
 public:
  explicit NestedSpans(size_t words) : last_(words, -1), first_(words, static_cast<int32_t>(words)) {}
  bool add(const SpanScore& span);  // false: crosses one that was added

 private:
  std::vector<int32_t> last_, first_;  // by first word: the largest last one; by last word: the smallest first one
};

class EntityTask final : public LabelTask {
 public:
  static constexpr size_t kMostLabels = 1000;
  // Words scored by one call of the head, unless a window has more: fewer if there are idle threads.
  static constexpr int64_t kWordsPerGroup = 256, kLeastWordsPerGroup = 64;
  // Hidden states of all tokens are kept until the head has read them: cost of a text without labels, the tokens of a
  // usual text, and all tokens of texts that wait for the head, which plans include.
  static constexpr size_t kCost = 64, kUsualTokens = 32;
  static constexpr int64_t kWaitingTokens = 5500, kBytesPerToken = 512;  // beside the hidden state

  // In all windows of a text: hidden states of up to 65,536 tokens (201 MB at 768 channels) wait for the head.
  static constexpr size_t kMostTokens = 65536;

  using PreparedLabels = std::shared_ptr<const GlinerHead::Labels>;
  // Rows of the encoder's embedding table, tokens per window, and scores per word of a head on a device.
  struct Sizes {
    int64_t vocabulary, window, width = 0;
  };
  // Throws usage for the settings, also if the labels leave no space for a text. `prepared`: of a bi-encoder's head,
  // from the same labels; null if the encoder reads them with each text.
  EntityTask(const EntityLabels& settings, const GlinerHead& head, const text::Tokenizer& tokenizer, Sizes sizes,
             const EntityKeys& keys = {}, PreparedLabels prepared = nullptr);

  const std::vector<std::string>& labels() const override { return settings_.labels; }
  bool multi_label() const override { return true; }
  int64_t tokens_per_text() const override { return label_prompt_; }
  std::string identity() const override;
  std::optional<Error> tokenize(std::string_view text, const TextOptions& options, TokenizedTexts& out) const override;
  void merge(std::span<const float> logits, LongText how, float* scores) const override;
  // Only scores of a head on a device return.
  size_t cost() const override { return (head_->on_device() ? 1 : kCost) * (1 + prompt_.size() / kUsualTokens); }
  batch::SequenceWords words_of(const TokenizedTexts& texts, size_t window) const override;
  const EntityTask* entities() const override { return this; }

  // Entities of texts `which` of `texts`, whose strings are `raw`, from the hidden states of all tokens, or from the
  // scores of a head on a device, row by row as the ids. `pool` may be null.
  std::vector<std::vector<Entity>> find(const TokenizedTexts& texts, std::span<const size_t> which,
                                        std::span<const std::string_view> raw, const float* rows,
                                        ThreadPool* pool) const;

 private:
  void add_labels(const EntityKeys& keys);
  static std::vector<size_t> group_windows(std::span<const HeadWindow> windows, int threads);
  void score_on_host(const TokenizedTexts& texts, std::span<const size_t> windows, const float* hidden,
                     ThreadPool* pool, std::span<std::vector<SpanScore>> found) const;
  std::vector<Entity> entities_of(const TokenizedTexts& texts, const TokenizedText& text, std::string_view raw,
                                  std::span<std::vector<SpanScore>> scores) const;
  void select(std::vector<SpanScore>& spans, size_t words) const;
  void add_words(std::string_view text, size_t capacity, std::vector<int32_t>& content, TokenizedTexts& out) const;
  bool fits(const TokenizedTexts::Word* word, size_t first, size_t end, size_t capacity) const;
  std::optional<Error> add_windows(TokenizedText& text, size_t end, size_t capacity, const TextOptions& options,
                                   std::span<const int32_t> content, TokenizedTexts& out) const;
  void add_window(const TokenizedText& text, size_t first, size_t end, std::span<const int32_t> content,
                  TokenizedTexts& out) const;

  EntityLabels settings_;
  const GlinerHead* head_;
  const text::Tokenizer* tokenizer_;
  const PreparedLabels prepared_;
  size_t capacity_ = 0;                // content tokens per window
  int64_t label_prompt_ = 0;           // tokens of the labels with their markers in prompt_
  std::vector<int32_t> prompt_;        // tokens before the words
  std::vector<int32_t> label_tokens_;  // index of the token that represents each label
  const int64_t vocabulary_, width_;
  int32_t marker_ = -1, replacement_ = -1;
};

}  // namespace brim::engine
