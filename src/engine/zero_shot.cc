// SPDX-License-Identifier: Apache-2.0
#include "engine/zero_shot.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <unordered_set>

#include "base/mapped_file.h"
#include "base/units.h"
#include "base/utf8.h"

namespace brim::engine {
namespace {

bool starts_with_entail(std::string_view label) {
  constexpr std::string_view kStart = "entail";
  if (label.size() < kStart.size()) return false;
  return std::equal(kStart.begin(), kStart.end(), label.begin(),
                    [](char a, char b) { return a == (b >= 'A' && b <= 'Z' ? b - 'A' + 'a' : b); });
}

bool is_blank(std::string_view text) { return text.find_first_not_of(" \t\r\n\v\f") == std::string_view::npos; }

void check_template(const std::string& pattern, const char* key) {
  const size_t at = pattern.find("{}");
  const auto braces = std::count_if(pattern.begin(), pattern.end(), [](char c) { return c == '{' || c == '}'; });
  if (at == std::string::npos || braces != 2)
    fail(ErrorCode::usage, Remedy{"mark the position of the label, as in \"This example is {}.\""},
         "{} \"{}\": must contain {{}} exactly once and no other braces", key, pattern);
  if (!is_valid_utf8(pattern)) fail(ErrorCode::usage, "{}: is not UTF-8", key);
}

}  // namespace

std::vector<std::string> split_labels(std::string_view text, char separator) {
  constexpr std::string_view kBlank = " \t\r\n\v\f";
  std::vector<std::string> labels;
  for (size_t at = 0; at <= text.size();) {
    const size_t end = std::min(text.find(separator, at), text.size());
    std::string_view label = text.substr(at, end - at);
    label.remove_prefix(std::min(label.find_first_not_of(kBlank), label.size()));
    labels.emplace_back(label.substr(0, label.find_last_not_of(kBlank) + 1));
    at = end + 1;
  }
  return labels;
}

std::vector<std::string> read_label_lines(const std::string& path, const char* key) {
  std::error_code ignored;
  if (!std::filesystem::is_regular_file(path, ignored)) fail(ErrorCode::usage, "{} {}: not a file", key, path);
  std::string text = read_file(path);
  constexpr std::string_view kMark = "\xEF\xBB\xBF";
  if (text.starts_with(kMark)) text.erase(0, kMark.size());
  if (!text.empty() && text.back() == '\n') text.pop_back();
  if (text.empty()) fail(ErrorCode::usage, "{} {}: is empty; write one label per line", key, path);
  return split_labels(text, '\n');
}

std::optional<NliClasses> find_nli_classes(const std::vector<std::string>& labels) {
  const auto found = std::find_if(labels.begin(), labels.end(), starts_with_entail);
  if (found == labels.end() || labels.size() < 2) return std::nullopt;
  NliClasses classes;
  classes.count = labels.size();
  classes.entailment = static_cast<size_t>(found - labels.begin());
  classes.contradiction = classes.entailment == 0 ? labels.size() - 1 : 0;
  return classes;
}

NliClasses require_nli_classes(const std::vector<std::string>& labels, const std::filesystem::path& dir,
                               const char* key) {
  if (const auto classes = find_nli_classes(labels)) return *classes;
  fail(ErrorCode::bad_model, Remedy{"choose a model trained for natural language inference (NLI)"},
       "{}: {} requires an NLI model with a label entailment, but its labels are {}", (dir / "config.json").string(),
       key, fmt::join(labels, ", "));
}

void check_label_names(const std::vector<std::string>& labels, size_t most, const char* key) {
  if (labels.empty()) fail(ErrorCode::usage, "{}: at least one label is required", key);
  if (labels.size() > most)
    fail(ErrorCode::usage, "{}: {} labels, at most {} are supported", key,
         format_count(static_cast<int64_t>(labels.size())), format_count(static_cast<int64_t>(most)));
  std::unordered_set<std::string_view> seen;
  for (size_t i = 0; i < labels.size(); ++i) {
    if (!is_valid_utf8(labels[i])) fail(ErrorCode::usage, "{}: label {} is not UTF-8", key, i + 1);
    if (is_blank(labels[i])) fail(ErrorCode::usage, "{}: label {} is empty", key, i + 1);
    if (!seen.insert(labels[i]).second) fail(ErrorCode::usage, "{}: duplicate label \"{}\"", key, labels[i]);
  }
}

void check_zero_shot(const ZeroShot& zero_shot, const ZeroShotKeys& keys) {
  check_label_names(zero_shot.labels, ZeroShotTask::kMostLabels, keys.labels);
  check_template(zero_shot.text_template, keys.pattern);
}

ZeroShotTask::ZeroShotTask(const ZeroShot& settings, const std::vector<std::string>& labels,
                           const text::Tokenizer& tokenizer, int64_t max_length, const std::filesystem::path& dir,
                           const ZeroShotKeys& keys)
    : labels_(settings.labels), multi_label_(settings.multi_label), tokenizer_(&tokenizer), longest_(max_length) {
  check_zero_shot(settings, keys);
  classes_ = require_nli_classes(labels, dir, keys.labels);
  special_ = static_cast<int64_t>(tokenizer.pair()->special());
  const size_t at = settings.text_template.find("{}");
  identity_ = fmt::format("{} {} {}", multi_label_, settings.text_template.size(), settings.text_template);
  for (const std::string& label : labels_) {
    identity_ += fmt::format(" {} {}", label.size(), label);
    std::string hypothesis = settings.text_template;
    hypothesis.replace(at, 2, label);
    auto& ids = hypotheses_.emplace_back();
    tokenizer.content_ids(hypothesis, ids);
    if (special_ + static_cast<int64_t>(ids.size()) >= longest_)
      fail(ErrorCode::usage, "{}: label \"{}\" takes {} tokens with its template, leaving none of {} for the text",
           keys.labels, label.substr(0, 80), special_ + static_cast<int64_t>(ids.size()), longest_);
    longest_hypothesis_ = std::max(longest_hypothesis_, ids.size());
    hypothesis_tokens_ += ids.size();
  }
}

std::optional<Error> ZeroShotTask::tokenize(std::string_view text, const TextOptions& options,
                                            TokenizedTexts& out) const {
  thread_local std::vector<int32_t> content;
  tokenizer_->content_ids(text, content);
  const int64_t longest = options.max_length > 0 ? std::min(options.max_length, longest_) : longest_;
  const int64_t taken = special_ + static_cast<int64_t>(longest_hypothesis_);
  if (longest <= taken)
    return Error(ErrorCode::usage,
                 fmt::format("`max_length={}`: must be above the {} tokens of the longest label", longest, taken));
  const size_t size = content.size(), capacity = static_cast<size_t>(longest - special_);
  const bool windows = options.long_text == LongText::window_mean || options.long_text == LongText::window_max;
  const size_t part = capacity - longest_hypothesis_;  // text tokens that fit with every label
  if (options.long_text == LongText::error && size > part)
    return Error(ErrorCode::bad_data,
                 fmt::format("the text has {} tokens, at most {} fit next to the longest label", size, part),
                 Remedy{"set `long_text=truncate`"});
  const size_t step = part - std::min(static_cast<size_t>(std::max(0, options.overlap)), part / 2);
  const size_t parts = windows && size > part ? 1 + (size - part + step - 1) / step : 1;
  if (parts * labels_.size() > kMostPairs)
    return Error(ErrorCode::bad_data,
                 fmt::format("the text needs {} pairs of {} tokens, the limit is {}", parts * labels_.size(), longest,
                             kMostPairs),
                 Remedy{"set `long_text=truncate`"});
  TokenizedText t;
  t.first_window = out.windows.size();
  t.windows = parts * labels_.size();
  t.tokens = static_cast<int32_t>(
      std::min<size_t>(labels_.size() * (size + static_cast<size_t>(special_)) + hypothesis_tokens_,
                       std::numeric_limits<int32_t>::max()));
  t.truncated = !windows && size > part;
  const std::span<const int32_t> ids(content);
  for (size_t p = 0; p < parts; ++p) {
    for (const auto& hypothesis : hypotheses_) {
      // Truncated texts are cut per label, like transformers' only_first; the parts of a text are equal for all labels.
      const size_t kept = std::min(size, windows ? part : capacity - hypothesis.size());
      const size_t first = windows ? std::min(p * step, size - kept) : options.keep_end ? size - kept : 0;
      const size_t begin = out.ids.size();
      tokenizer_->join_pair(ids.subspan(first, kept), hypothesis, out.ids);
      out.windows.push_back({begin, static_cast<int32_t>(out.ids.size() - begin), 0});
    }
  }
  out.texts.push_back(t);
  return std::nullopt;
}

void ZeroShotTask::merge(std::span<const float> logits, LongText how, float* scores) const {
  const size_t N = labels_.size(), K = classes_.count, parts = logits.size() / (N * K);
  std::vector<double> of_part(N);
  for (size_t p = 0; p < parts; ++p) {
    const float* rows = logits.data() + p * N * K;
    double most = -std::numeric_limits<double>::infinity(), sum = 0;
    for (size_t n = 0; n < N; ++n) most = std::max(most, static_cast<double>(rows[n * K + classes_.entailment]));
    for (size_t n = 0; n < N; ++n) {
      const double entailment = rows[n * K + classes_.entailment], contradiction = rows[n * K + classes_.contradiction];
      of_part[n] = multi_label() ? 1 / (1 + std::exp(contradiction - entailment)) : std::exp(entailment - most);
      sum += of_part[n];
    }
    for (size_t n = 0; n < N; ++n) {
      const auto score = static_cast<float>(multi_label() ? of_part[n] : of_part[n] / sum);
      scores[n] = p == 0 ? score : how == LongText::window_max ? std::max(scores[n], score) : scores[n] + score;
    }
  }
  if (how != LongText::window_max && parts > 1)
    for (size_t n = 0; n < N; ++n) scores[n] /= static_cast<float>(parts);
}

}  // namespace brim::engine
