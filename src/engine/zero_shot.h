// SPDX-License-Identifier: Apache-2.0
// Zero-shot classification: an NLI model reads pairs of a text and a hypothesis per label ("This example is sports."),
// and the entailment logits of the pairs become the scores of the labels, as in transformers' pipeline. A pair is a
// window of the text. Does not run the model.
#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "brim/brim.h"
#include "engine/label_task.h"
#include "text/tokenizer.h"

namespace brim::engine {

// Classes of an NLI model, chosen like transformers does.
struct NliClasses {
  size_t entailment = 0, contradiction = 0, count = 0;
};
// By label names; nullopt if none starts with "entail" or there is only one label.
std::optional<NliClasses> find_nli_classes(const std::vector<std::string>& labels);
// The same, but throws bad_model if the model in `dir` is no NLI model. `key`: the setting that requires one.
NliClasses require_nli_classes(const std::vector<std::string>& labels, const std::filesystem::path& dir,
                               const char* key);

// The keys of the settings in messages.
struct ZeroShotKeys {
  const char* labels = "`labels`";
  const char* pattern = "`template`";
};

// Throws usage if labels or template are invalid: no label, more than kMostLabels, empty, repeated or not UTF-8; a
// template without exactly one {}.
void check_zero_shot(const ZeroShot& zero_shot, const ZeroShotKeys& keys = {});

// Throws usage with `key` if there is no label, more than `most`, or one that is empty, repeated or not UTF-8.
void check_label_names(const std::vector<std::string>& labels, size_t most, const char* key);

// Splits a list of labels and removes surrounding spaces. Empty labels are kept: check_zero_shot() rejects them.
std::vector<std::string> split_labels(std::string_view text, char separator);
// Reads one label per line; a byte order mark and the end of the last line are ignored. Throws usage with `key`.
std::vector<std::string> read_label_lines(const std::string& path, const char* key);

// Checked labels with their tokenized hypotheses. Immutable; must not outlive the tokenizer.
class ZeroShotTask final : public LabelTask {
 public:
  static constexpr size_t kMostLabels = 1000, kMostPairs = 65536;  // the latter per text

  // Throws usage for the settings (also if a hypothesis leaves no space for the text), bad_model if the model is no NLI
  // model. `labels` are the model's.
  ZeroShotTask(const ZeroShot& settings, const std::vector<std::string>& labels, const text::Tokenizer& tokenizer,
               int64_t max_length, const std::filesystem::path& dir, const ZeroShotKeys& keys = {});

  const std::vector<std::string>& labels() const override { return labels_; }
  // A single label has no others to compete with.
  bool multi_label() const override { return multi_label_ || labels_.size() == 1; }
  int64_t tokens_per_text() const override { return static_cast<int64_t>(hypothesis_tokens_); }
  std::string identity() const override { return identity_; }

  // Appends a text: a window for each of its parts and each label, part by part. Only the text is truncated.
  std::optional<Error> tokenize(std::string_view text, const TextOptions& options, TokenizedTexts& out) const override;
  void merge(std::span<const float> logits, LongText how, float* scores) const override;
  size_t cost() const override { return labels_.size(); }  // a pair per label

 private:
  std::vector<std::string> labels_;
  bool multi_label_;
  std::string identity_;
  NliClasses classes_;
  const text::Tokenizer* tokenizer_;
  int64_t longest_, special_;
  size_t longest_hypothesis_ = 0, hypothesis_tokens_ = 0;
  std::vector<std::vector<int32_t>> hypotheses_;  // without special tokens
};

}  // namespace brim::engine
