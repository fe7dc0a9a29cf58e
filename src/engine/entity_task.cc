// SPDX-License-Identifier: Apache-2.0
#include "engine/entity_task.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/utf8.h"
#include "engine/zero_shot.h"
#include "io/quote_text.h"
#include "text/word_splitter.h"

namespace brim::engine {
namespace {

bool contains(const std::vector<int32_t>& ids, int32_t id) {
  return std::find(ids.begin(), ids.end(), id) != ids.end();
}

// Keeps the best label of each span, which may be in two windows; the first of equal scores.
void keep_best_labels(std::vector<SpanScore>& spans) {
  std::vector<size_t> order(spans.size()), kept;
  for (size_t i = 0; i < order.size(); ++i) order[i] = i;
  const auto key = [&](size_t i) { return std::pair(spans[i].first, spans[i].last); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return key(a) < key(b); });
  for (size_t i = 0; i < order.size(); ++i) {
    if (i == 0 || key(order[i]) != key(kept.back()))
      kept.push_back(order[i]);
    else if (spans[order[i]].score > spans[kept.back()].score)
      kept.back() = order[i];
  }
  std::sort(kept.begin(), kept.end());
  for (size_t i = 0; i < kept.size(); ++i) spans[i] = spans[kept[i]];
  spans.resize(kept.size());
}

}  // namespace

GlinerMarkers find_markers(const hub::GlinerConfig& config, const text::Tokenizer& tokenizer) {
  GlinerMarkers markers{tokenizer.id(config.label_marker), tokenizer.id(config.text_marker)};
  if (markers.label < 0) markers.label = config.label_marker_id;
  if (markers.label < 0)
    fail(ErrorCode::bad_model,
         "{}: \"ent_token\" {} is missing from the tokenizer, and \"class_token_index\" from the file", config.where,
         io::quote_text(config.label_marker));
  // The gliner package adds both to the tokenizer of the encoder, one after the other.
  if (markers.text < 0) markers.text = markers.label + 1;
  return markers;
}

void check_entity_labels(const EntityLabels& entities, const EntityKeys& keys) {
  check_label_names(entities.labels, EntityTask::kMostLabels, keys.labels);
  if (!(entities.threshold >= 0 && entities.threshold <= 1))
    fail(ErrorCode::usage, "{} {}: must be from 0 to 1", keys.threshold, entities.threshold);
}

std::vector<std::string> tags_of(const std::vector<std::string>& labels) {
  std::vector<std::string> tags;
  for (const std::string& label : labels)
    for (const char* prefix : {"B-", "I-"}) tags.push_back(prefix + label);
  return tags;
}

std::vector<int32_t> tags_of_words(std::span<const text::WordSpan> words, const std::vector<Entity>& entities,
                                   const std::vector<std::string>& labels) {
  std::vector<int32_t> tags(words.size(), -1);
  for (const Entity& entity : entities) {
    const auto label = std::find(labels.begin(), labels.end(), entity.group) - labels.begin();
    auto tag = static_cast<int32_t>(2 * label);
    for (size_t w = 0; w < words.size(); ++w) {
      if (words[w].end <= entity.start || words[w].begin >= entity.end || tags[w] >= 0) continue;
      tags[w] = tag;
      tag = static_cast<int32_t>(2 * label + 1);
    }
  }
  return tags;
}

bool NestedSpans::add(const SpanScore& span) {
  for (int32_t word = span.first + 1; word <= span.last; ++word)
    if (last_[static_cast<size_t>(word)] > span.last) return false;  // begins inside, ends behind
  for (int32_t word = span.first; word < span.last; ++word)
    if (first_[static_cast<size_t>(word)] < span.first) return false;  // ends inside, begins before
  int32_t &last = last_[static_cast<size_t>(span.first)], &first = first_[static_cast<size_t>(span.last)];
  last = std::max(last, span.last);
  first = std::min(first, span.first);
  return true;
}

EntityTask::EntityTask(const EntityLabels& settings, const GlinerHead& head, const text::Tokenizer& tokenizer,
                       Sizes sizes, const EntityKeys& keys, PreparedLabels prepared)
    : settings_(settings),
      head_(&head),
      tokenizer_(&tokenizer),
      prepared_(std::move(prepared)),
      vocabulary_(sizes.vocabulary),
      width_(sizes.width) {
  check_entity_labels(settings, keys);
  if (const auto most = static_cast<size_t>(width_) / 3;
      head.on_device() && head.config().token_level && settings.labels.size() > most)
    fail(ErrorCode::usage, Remedy{"name the labels when opening the model, or use a CPU"},
         "{}: {} labels, at most {} are planned for on a GPU", keys.labels, settings.labels.size(), most);
  replacement_ = std::max(0, tokenizer.unk_id());
  prompt_.assign(tokenizer.prefix().begin(), tokenizer.prefix().end());
  if (!prepared_) add_labels(keys);
  const auto taken = static_cast<int64_t>(prompt_.size() + tokenizer.suffix().size());
  if (taken >= sizes.window)
    fail(ErrorCode::usage, Remedy{"use fewer or shorter labels"},
         "{}: {} labels take {} tokens with their markers, leaving none of {} for the text", keys.labels,
         settings.labels.size(), taken, sizes.window);
  capacity_ = static_cast<size_t>(sizes.window - taken);
}

void EntityTask::add_labels(const EntityKeys& keys) {
  const GlinerMarkers markers = find_markers(head_->config(), *tokenizer_);
  marker_ = markers.label;
  std::vector<int32_t> ids;
  for (const std::string& label : settings_.labels) {
    tokenizer_->content_ids(label, ids);
    if (contains(ids, markers.label) || contains(ids, markers.text))
      fail(ErrorCode::usage, "{}: label \"{}\" contains a marker token of the model", keys.labels, label.substr(0, 80));
    label_tokens_.push_back(static_cast<int32_t>(prompt_.size()) + (head_->config().embed_marker ? 0 : 1));
    prompt_.push_back(markers.label);
    prompt_.insert(prompt_.end(), ids.begin(), ids.end());
  }
  prompt_.push_back(markers.text);
  label_prompt_ = static_cast<int64_t>(prompt_.size() - tokenizer_->prefix().size());
}

void EntityTask::merge(std::span<const float>, LongText, float*) const {
  fail(ErrorCode::internal, "entities have no scores per text");
}

void EntityTask::add_window(const TokenizedText& text, size_t first, size_t end, std::span<const int32_t> content,
                            TokenizedTexts& out) const {
  const TokenizedTexts::Word* words = out.words.data() + text.first_word;
  const size_t begin = out.ids.size();
  const int32_t from = first < end ? words[first].token : 0;
  const auto to = first < end ? words[end - 1].token + words[end - 1].tokens : 0;
  out.ids.insert(out.ids.end(), prompt_.begin(), prompt_.end());
  out.ids.insert(out.ids.end(), content.begin() + from, content.begin() + to);
  out.ids.insert(out.ids.end(), tokenizer_->suffix().begin(), tokenizer_->suffix().end());
  TokenizedText::Window window{begin, static_cast<int32_t>(out.ids.size() - begin), from};
  window.first_word = static_cast<int32_t>(first);
  window.words = static_cast<int32_t>(end - first);
  window.first_word_tokens = out.word_tokens.size();
  // The reference numbers only words with tokens, so a word that the tokenizer drops moves the vectors of later ones to
  // the word before; the last words have none.
  for (size_t w = first; w < end; ++w)
    if (words[w].tokens > 0)
      out.word_tokens.push_back({static_cast<int32_t>(prompt_.size()) + words[w].token - from, words[w].tokens});
  out.word_tokens.resize(window.first_word_tokens + end - first, {0, 0});
  out.windows.push_back(window);
}

// Replaces `content` by the tokens of the text's words, at most `capacity` per word, and appends the words to `out`.
void EntityTask::add_words(std::string_view text, size_t capacity, std::vector<int32_t>& content,
                           TokenizedTexts& out) const {
  thread_local std::vector<text::SplitWord> split;
  thread_local std::vector<int32_t> ids;
  text::split_words(text, split);
  content.clear();
  for (const text::SplitWord& word : split) {
    tokenizer_->content_ids(text.substr(word.begin, word.end - word.begin), ids);
    ids.resize(std::min(ids.size(), capacity));
    // Markers are plain text, not other labels. The tokenizers of bi-encoders have markers without a vector.
    for (int32_t& id : ids)
      if (id == marker_ || id >= vocabulary_) id = replacement_;
    out.words.push_back({word.begin, word.end, word.first, word.last, static_cast<int32_t>(content.size()),
                         static_cast<int32_t>(ids.size())});
    content.insert(content.end(), ids.begin(), ids.end());
  }
}

std::string EntityTask::identity() const {
  std::string all = fmt::format("{:a} {}", settings_.threshold, settings_.nested);
  for (const std::string& label : settings_.labels) all += fmt::format(" {} {}", label.size(), label);
  return all;
}

// Appends the windows of `text`, whose words [0, end) fit into the first one.
std::optional<Error> EntityTask::add_windows(TokenizedText& text, size_t end, size_t capacity,
                                             const TextOptions& options, std::span<const int32_t> content,
                                             TokenizedTexts& out) const {
  const size_t words = text.words, ids = out.ids.size();
  const TokenizedTexts::Word* word = out.words.data() + text.first_word;
  const bool parts = options.long_text == LongText::window_mean || options.long_text == LongText::window_max;
  size_t first = 0;
  text.truncated = end < words && !parts;
  if (text.truncated && options.keep_end)
    for (first = end = words; first > 0 && fits(word, first - 1, end, capacity);) --first;
  for (;;) {
    add_window(text, first, end, content, out);
    if (!parts || end == words) break;
    if (out.ids.size() - ids > kMostTokens) {
      out.ids.resize(ids);
      out.windows.resize(text.first_window);
      return Error(ErrorCode::bad_data, fmt::format("the text has more than {} tokens", kMostTokens),
                   Remedy{"split the text, or set `long_text=truncate`"});
    }
    const size_t before = end, length = end - first;
    const size_t shared = options.overlap < 0 ? length / 4 : static_cast<size_t>(options.overlap);
    first = before - std::min(shared, length / 2);
    while (end < words && fits(word, first, end + 1, capacity)) ++end;
    if (end == before) first = end++;  // the next word does not fit next to shared ones
  }
  text.windows = out.windows.size() - text.first_window;
  if (text.truncated && !options.keep_end) out.words.resize(text.first_word + (text.words = end));
  return std::nullopt;
}

// Whether words [first, end) fit into one window.
bool EntityTask::fits(const TokenizedTexts::Word* word, size_t first, size_t end, size_t capacity) const {
  const auto tokens = static_cast<size_t>(word[end - 1].token + word[end - 1].tokens - word[first].token);
  // Scores of words have the rows of tokens, so words that the tokenizer drops must not be more than those of the
  // prompt.
  return end - first <= static_cast<size_t>(head_->config().max_words) && tokens <= capacity &&
         end - first <= tokens + prompt_.size() + tokenizer_->suffix().size();
}

std::optional<Error> EntityTask::tokenize(std::string_view text, const TextOptions& options,
                                          TokenizedTexts& out) const {
  thread_local std::vector<int32_t> content;
  if (!is_valid_utf8(text)) return Error(ErrorCode::bad_data, "the text is not UTF-8");
  const size_t taken = prompt_.size() + tokenizer_->suffix().size();
  size_t capacity = capacity_;
  if (options.max_length > 0) {
    const auto most = static_cast<size_t>(options.max_length);
    if (most <= taken)
      return Error(ErrorCode::usage,
                   fmt::format("`max_length={}`: must be above the {} tokens of the labels", most, taken));
    capacity = std::min(capacity, most - taken);
  }
  TokenizedText t;
  t.first_window = out.windows.size();
  t.first_word = out.words.size();
  add_words(text, capacity, content, out);
  const size_t words = t.words = out.words.size() - t.first_word;
  t.tokens = static_cast<int32_t>(std::min<size_t>(taken + content.size(), std::numeric_limits<int32_t>::max()));
  const TokenizedTexts::Word* word = out.words.data() + t.first_word;
  size_t end = 0;
  while (end < words && fits(word, 0, end + 1, capacity)) ++end;
  std::optional<Error> error;
  if (end < words && options.long_text == LongText::error)
    error = Error(ErrorCode::bad_data, fmt::format("the text has {} words, {} fit next to the labels", words, end),
                  Remedy{"set `long_text=truncate` or `long_text=window-max`"});
  else
    error = add_windows(t, end, capacity, options, content, out);
  if (error)
    out.words.resize(t.first_word);
  else
    out.texts.push_back(t);
  return error;
}

batch::SequenceWords EntityTask::words_of(const TokenizedTexts& texts, size_t window) const {
  const TokenizedText::Window& w = texts.windows[window];
  return {std::span(texts.word_tokens).subspan(w.first_word_tokens, static_cast<size_t>(w.words)), label_tokens_,
          prepared_.get()};
}

void EntityTask::score_on_host(const TokenizedTexts& texts, std::span<const size_t> which, const float* hidden,
                               ThreadPool* pool, std::span<std::vector<SpanScore>> found) const {
  std::vector<HeadWindow> windows;
  for (const size_t w : which) {
    const batch::SequenceWords words = words_of(texts, w);
    const float* from = hidden + texts.windows[w].begin * static_cast<size_t>(head_->encoder_size());
    windows.push_back({from, words.labels, words.words});
  }
  const std::vector<size_t> ends = group_windows(windows, pool != nullptr ? pool->size() : 1);
  const auto run = [&](size_t group) {
    const size_t begin = group == 0 ? 0 : ends[group - 1], size = ends[group] - begin;
    head_->score(std::span(windows).subspan(begin, size), prepared_.get(), settings_.threshold,
                 found.subspan(begin, size));
  };
  if (pool != nullptr)
    pool->parallel_for(ends.size(), [&](size_t group, int) { run(group); });
  else
    for (size_t group = 0; group < ends.size(); ++group) run(group);
}

std::vector<std::vector<Entity>> EntityTask::find(const TokenizedTexts& texts, std::span<const size_t> which,
                                                  std::span<const std::string_view> raw, const float* rows,
                                                  ThreadPool* pool) const {
  std::vector<size_t> windows;
  for (const size_t t : which)
    for (size_t w = 0; w < texts.texts[t].windows; ++w) windows.push_back(texts.texts[t].first_window + w);
  std::vector<std::vector<SpanScore>> scores(windows.size());
  if (head_->on_device())
    for (size_t i = 0; i < windows.size(); ++i) {
      const TokenizedText::Window& window = texts.windows[windows[i]];
      const auto width = static_cast<size_t>(width_);
      head_->read_scores({rows + window.begin * width, static_cast<size_t>(window.words) * width}, width,
                         settings_.labels.size(), settings_.threshold, scores[i]);
    }
  else
    score_on_host(texts, windows, rows, pool, scores);
  std::vector<std::vector<Entity>> found;
  std::span<std::vector<SpanScore>> left(scores);
  for (size_t i = 0; i < which.size(); ++i) {
    const TokenizedText& text = texts.texts[which[i]];
    found.push_back(entities_of(texts, text, raw[i], left.first(text.windows)));
    left = left.subspan(text.windows);
  }
  return found;
}

// One past the last window of each group.
std::vector<size_t> EntityTask::group_windows(std::span<const HeadWindow> windows, int threads) {
  size_t all = 0;
  for (const HeadWindow& window : windows) all += window.words.size();
  const size_t most = std::clamp<size_t>(all / static_cast<size_t>(threads) + 1, kLeastWordsPerGroup, kWordsPerGroup);
  std::vector<size_t> ends;
  size_t words = 0;
  for (size_t w = 0; w < windows.size(); ++w) {
    const size_t more = windows[w].words.size();
    if (words > 0 && words + more > most) {
      ends.push_back(w);
      words = 0;
    }
    words += more;
  }
  if (!windows.empty()) ends.push_back(windows.size());
  return ends;
}

std::vector<Entity> EntityTask::entities_of(const TokenizedTexts& texts, const TokenizedText& text,
                                            std::string_view raw, std::span<std::vector<SpanScore>> scores) const {
  std::vector<SpanScore> spans;
  for (size_t w = 0; w < text.windows; ++w)
    for (SpanScore span : scores[w]) {
      span.first += texts.windows[text.first_window + w].first_word;
      span.last += texts.windows[text.first_window + w].first_word;
      spans.push_back(span);
    }
  select(spans, text.words);
  std::vector<Entity> entities;
  for (const SpanScore& span : spans) {
    const TokenizedTexts::Word &first = texts.words[text.first_word + static_cast<size_t>(span.first)],
                               &last = texts.words[text.first_word + static_cast<size_t>(span.last)];
    entities.push_back({settings_.labels[static_cast<size_t>(span.label)],
                        std::string(raw.substr(first.begin, last.end - first.begin)), span.score, first.first,
                        last.last});
  }
  return entities;
}

// Greedy, by descending score, as in the reference; spans in both of two overlapping windows count once.
void EntityTask::select(std::vector<SpanScore>& spans, size_t words) const {
  keep_best_labels(spans);
  std::stable_sort(spans.begin(), spans.end(),
                   [](const SpanScore& a, const SpanScore& b) { return a.score > b.score; });
  std::vector<bool> taken(words, false);
  std::vector<SpanScore> kept;
  NestedSpans nested(settings_.nested ? words : 0);
  for (const SpanScore& span : spans) {
    if (settings_.nested) {
      if (nested.add(span)) kept.push_back(span);
      continue;
    }
    const auto begin = taken.begin() + span.first, end = taken.begin() + span.last + 1;
    if (std::find(begin, end, true) != end) continue;
    std::fill(begin, end, true);
    kept.push_back(span);
  }
  std::stable_sort(kept.begin(), kept.end(), [](const SpanScore& a, const SpanScore& b) { return a.first < b.first; });
  spans = std::move(kept);
}

}  // namespace brim::engine
