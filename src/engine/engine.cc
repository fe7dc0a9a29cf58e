// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>

#include "base/error.h"
#include "engine/entities.h"
#include "engine/label.h"
#include "engine/run_stats.h"
#include "engine/window_queue.h"
#include "ops/gemm_tuner.h"

namespace brim::engine {

namespace {

// Upper bound for the duration of an interactive batch, and the token count below which batches lose throughput on any
// device.
constexpr double kServingSeconds = 0.1;
constexpr int64_t kLeastServingTokens = 1024;

Error too_long(const char* what, int64_t tokens, int64_t longest) {
  return Error(ErrorCode::bad_data, fmt::format("the {} has {} tokens, the model supports {}", what, tokens, longest),
               {"set `long_text=truncate` or `long_text=window-mean`"});
}

Error too_short(int64_t max_length, int64_t special) {
  return Error(ErrorCode::usage,
               fmt::format("`max_length={}`: must be above the model's {} special tokens", max_length, special),
               {"use a larger value"});
}

// Adds the error of text `t` to `errors`, or throws it if `errors` is null. False if there is no error.
bool keep_error(size_t t, const std::optional<Error>& error, Engine::TextErrors* errors) {
  if (!error) return false;
  if (errors == nullptr) throw *error;
  errors->emplace_back(t, *error);
  return true;
}

// Limits of a window: special tokens before and after its content, and tokens in total.
struct WindowShape {
  int64_t prefix, suffix, longest;
  int64_t special() const { return prefix + suffix; }
  int64_t capacity() const { return longest - special(); }
};

// Shortens the text that begins at `begin` to one window.
void keep_one_window(TokenizedTexts& out, size_t begin, const WindowShape& shape, bool keep_end) {
  const auto [prefix, suffix, longest] = shape;
  const int64_t length = static_cast<int64_t>(out.ids.size() - begin), content = length - prefix - suffix;
  const int64_t first = keep_end ? content - shape.capacity() : 0;
  const auto ids = out.ids.begin() + static_cast<std::ptrdiff_t>(begin);
  if (first > 0) std::copy(ids + prefix + first, ids + prefix + first + shape.capacity(), ids + prefix);
  std::copy(ids + prefix + content, ids + length, ids + prefix + shape.capacity());
  out.ids.resize(begin + static_cast<size_t>(longest));
  out.windows.push_back({begin, static_cast<int32_t>(longest), static_cast<int32_t>(first)});
}

// Divides the text that begins at `begin` into windows. The last one is moved back so that it is full.
void make_windows(TokenizedTexts& out, size_t begin, const WindowShape& shape, int64_t step) {
  const auto [prefix, suffix, longest] = shape;
  const std::vector<int32_t> all(out.ids.begin() + static_cast<std::ptrdiff_t>(begin), out.ids.end());
  const int64_t last = static_cast<int64_t>(all.size()) - prefix - suffix - shape.capacity();
  out.ids.resize(begin);
  for (int64_t at = 0, first = -1; first < last; at += step) {
    first = std::min(at, last);
    out.windows.push_back({out.ids.size(), static_cast<int32_t>(longest), static_cast<int32_t>(first)});
    out.ids.insert(out.ids.end(), all.begin(), all.begin() + prefix);
    out.ids.insert(out.ids.end(), all.begin() + prefix + first, all.begin() + prefix + first + shape.capacity());
    out.ids.insert(out.ids.end(), all.end() - suffix, all.end());
  }
}

}  // namespace

Error no_entity_labels(const std::filesystem::path& dir) {
  return Error(ErrorCode::usage, fmt::format("{}: is a GLiNER model: `entities` is required", dir.string()),
               {"name the entities to find"});
}

int64_t Engine::longest_of(const TextOptions& options) const {
  return options.max_length > 0 ? std::min(options.max_length, plan_.max_length) : plan_.max_length;
}

// A tag needs context on both sides, so a tagger's windows overlap by default. Outputs with one vector per token must
// not overlap.
int64_t Engine::window_step(int64_t capacity, const TextOptions& options) const {
  const bool tags = options.tags || output() == model::Output::token_scores || output() == model::Output::token_logits;
  const int64_t requested = options.overlap >= 0 ? options.overlap : tags ? capacity / 4 : 0;
  const bool vectors = output() == model::Output::hidden || output() == model::Output::word_scores;
  return vectors ? capacity : capacity - std::min(requested, capacity / 2);
}

std::optional<Error> Engine::tokenize(std::string_view text, TokenizedTexts& out, const TextOptions& options) const {
  if (options.zero_shot != nullptr) {
    out.zero_shot = options.zero_shot;
    return options.zero_shot->tokenize(text, options, out);
  }
  if (gliner_) return no_entity_labels(model_dir());
  const size_t begin = out.ids.size();
  std::string storage;
  tokenizer_->encode_ids(sentence_text(text, options.prompt, storage), out.ids);
  int64_t length = static_cast<int64_t>(out.ids.size() - begin);
  if (length == 0) {  // empty text and no special tokens: compute at least one token
    out.ids.push_back(std::max(0, tokenizer_->unk_id()));
    length = 1;
  }
  TokenizedText t;
  t.first_window = out.windows.size();
  t.tokens = static_cast<int32_t>(length);
  const WindowShape shape = {static_cast<int64_t>(tokenizer_->prefix().size()),
                             static_cast<int64_t>(tokenizer_->suffix().size()), longest_of(options)};
  if (shape.capacity() <= 0) {
    out.ids.resize(begin);
    return too_short(options.max_length, shape.special());
  }
  if (length <= shape.longest) {
    out.windows.push_back({begin, static_cast<int32_t>(length), 0});
  } else if (options.long_text == LongText::error) {
    out.ids.resize(begin);
    return too_long("text", length, shape.longest);
  } else if (options.long_text == LongText::truncate) {
    t.truncated = true;
    keep_one_window(out, begin, shape, options.keep_end);
  } else {
    make_windows(out, begin, shape, window_step(shape.capacity(), options));
  }
  t.windows = out.windows.size() - t.first_window;
  if (!t.truncated || !options.keep_end) {
    TokenizedText::Window& first = out.windows[t.first_window];
    first.prompt_tokens = std::min(prompt_tokens(options.prompt), first.length);
  }
  out.texts.push_back(t);
  return std::nullopt;
}

std::optional<Error> Engine::take_ids(std::span<const int32_t> ids, TokenizedTexts& out,
                                      const TextOptions& options) const {
  const auto longest = static_cast<size_t>(plan_.max_length);
  if (ids.size() > longest && options.long_text == LongText::error)
    return too_long("text", static_cast<int64_t>(ids.size()), plan_.max_length);
  for (const int32_t id : ids)
    if (id < 0 || id >= shape().vocab)
      return Error(ErrorCode::bad_data,
                   fmt::format("token id {} is out of range: the vocabulary has {} entries", id, shape().vocab));
  TokenizedText t;
  t.first_window = out.windows.size();
  t.tokens = static_cast<int32_t>(ids.size());
  const size_t length = std::min(ids.size(), longest), last = ids.size() - length;
  t.truncated = last > 0 && options.long_text == LongText::truncate;
  const auto step = static_cast<size_t>(window_step(static_cast<int64_t>(length), options));
  for (size_t at = t.truncated && options.keep_end ? last : 0;; at = std::min(at + step, last)) {
    out.windows.push_back({out.ids.size(), static_cast<int32_t>(length), static_cast<int32_t>(at)});
    out.ids.insert(out.ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(at),
                   ids.begin() + static_cast<std::ptrdiff_t>(at + length));
    ++t.windows;
    if (t.truncated || at == last) break;
  }
  out.texts.push_back(t);
  return std::nullopt;
}

std::unique_ptr<const ZeroShotTask> Engine::prepare_labels(const ZeroShot& settings, const ZeroShotKeys& keys) const {
  if (output() != model::Output::sequence_logits)
    fail(ErrorCode::usage, "{}: {} requires a classifier opened with `raw_scores`", options_.model_dir.string(),
         keys.labels);
  if (auto problem = text::why_no_pairs(*tokenizer_, options_.model_dir, shape().types, plan_.max_length))
    throw *problem;
  auto task = std::make_unique<ZeroShotTask>(settings, config_.id2label, *tokenizer_, plan_.max_length,
                                             options_.model_dir, keys);
  task->engine = this;
  return task;
}

std::unique_ptr<const EntityTask> Engine::prepare_entities(const EntityLabels& settings, const EntityKeys& keys) const {
  if (!gliner_)
    fail(ErrorCode::usage, "{}: {} requires a GLiNER model (gliner_config.json)", options_.model_dir.string(),
         keys.labels);
  check_entity_labels(settings, keys);
  const EntityTask::Sizes sizes{shape().vocab, plan_.max_length, shape().word_width};
  auto task =
      std::make_unique<EntityTask>(settings, *gliner_, *tokenizer_, sizes, keys, encode_labels(settings.labels));
  task->engine = this;
  return task;
}

void Engine::park() {
  scheduler_->park(*host_);
  if (labels_engine_) labels_engine_->park();
}

void Engine::keep(bool on) {
  host_->kept = on;
  if (labels_engine_) labels_engine_->keep(on);
}

// Null if the encoder of texts reads the labels.
EntityTask::PreparedLabels Engine::encode_labels(const std::vector<std::string>& labels) const {
  if (!labels_engine_) return nullptr;
  const std::vector<std::string_view> texts(labels.begin(), labels.end());
  return gliner_->prepare(labels_engine_->score(labels_engine_->tokenized(texts)));
}

ThreadPool* Engine::host_pool() const {
  DeviceQueue& queue = scheduler_->queue();
  return queue.device().kind() == device::DeviceKind::cpu ? static_cast<device::CpuStream&>(queue.stream()).pool()
                                                          : nullptr;
}

std::optional<Error> Engine::why_no_pairs() const {
  if (zero_shot_) return Error(ErrorCode::usage, "pairs are not supported with zero-shot labels");
  if (output() == model::Output::hidden) return Error(ErrorCode::usage, "token vectors are not supported for pairs");
  if (is_per_token(output()))
    return Error(ErrorCode::bad_model, fmt::format("{}: taggers do not support pairs", options_.model_dir.string()));
  return text::why_no_pairs(*tokenizer_, options_.model_dir, shape().types, plan_.max_length);
}

std::optional<Error> Engine::tokenize(std::string_view text, std::optional<std::string_view> pair, TokenizedTexts& out,
                                      const TextOptions& options) const {
  if (!pair) return tokenize(text, out, options);
  if (options.zero_shot != nullptr) return Error(ErrorCode::usage, "pairs are not supported with zero-shot labels");
  if (auto problem = why_no_pairs()) return problem;
  const size_t begin = out.ids.size();
  const int64_t longest = longest_of(options);
  if (const auto special = static_cast<int64_t>(tokenizer_->pair()->special()); longest <= special)
    return too_short(options.max_length, special);
  TokenizedText t;
  t.first_window = out.windows.size();
  const int32_t prompt = prompt_tokens(options.prompt);
  const auto add_window = [&](size_t at) {
    const auto length = static_cast<int32_t>(out.ids.size() - at);
    out.windows.push_back({at, length, 0, t.truncated && options.keep_end ? 0 : std::min(prompt, length)});
    ++t.windows;
  };
  std::string storage, pair_storage;
  text = sentence_text(text, options.prompt, storage);
  pair = sentence_text(*pair, {}, pair_storage);
  if (options.long_text == LongText::truncate || options.long_text == LongText::error) {
    const int64_t tokens = tokenizer_->encode_pair(text, *pair, longest, options.keep_end, out.ids);
    if (tokens > longest && options.long_text == LongText::error) {
      out.ids.resize(begin);
      return too_long("pair", tokens, longest);
    }
    t.tokens = static_cast<int32_t>(tokens);
    t.truncated = tokens > longest;
    add_window(begin);
  } else {
    std::vector<int32_t> first, second;
    tokenizer_->content_ids(text, first);
    tokenizer_->content_ids(*pair, second);
    const size_t special = tokenizer_->pair()->special(), capacity = static_cast<size_t>(longest) - special;
    // The first text is repeated for every part of the second; it is truncated if it takes more than half of the
    // window.
    const size_t kept = std::min(first.size(), std::max(capacity / 2, capacity - std::min(capacity, second.size())));
    const size_t part = capacity - kept;
    t.tokens = static_cast<int32_t>(special + first.size() + second.size());
    t.truncated = kept < first.size();
    const auto step = static_cast<size_t>(window_step(static_cast<int64_t>(part), options));
    for (size_t at = 0;; at += step) {
      const size_t from = second.size() > part ? std::min(at, second.size() - part) : 0, window = out.ids.size();
      const std::span<const int32_t> a(first), b(second);
      tokenizer_->join_pair(a.first(kept), b.subspan(from, std::min(part, second.size() - from)), out.ids);
      add_window(window);
      if (part == 0 || from + part >= second.size()) break;
    }
  }
  out.texts.push_back(t);
  return std::nullopt;
}

std::vector<std::string> Engine::tune(double seconds_per_shape) {
  if (device().kind() != device::DeviceKind::cuda) return {};
  // Tweet-length texts: 1, 2, … 64 as in interactive calls, and a full batch as for files, so that every GEMM is
  // measured at its real size.
  const std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(26, plan_.max_length)),
                                 std::max(0, tokenizer_->unk_id()));
  std::vector<batch::PackedBatch> batches;
  for (const int64_t most :
       {int64_t{1}, int64_t{2}, int64_t{4}, int64_t{8}, int64_t{16}, int64_t{32}, int64_t{64}, plan_.max_sequences}) {
    batch::PackedBatch& batch = batches.emplace_back();
    while (batch.tokens() + static_cast<int64_t>(ids.size()) <= plan_.token_budget && batch.sequences() < most)
      batch.add({ids.data(), static_cast<int32_t>(ids.size()), 0}, shape().position_offset);
    batch.finish();
  }
  std::vector<std::string> lines;
  scheduler_->call([&] {
    host_->load();
    for (batch::PackedBatch& batch : batches) {
      ops::GemmTuning tuning(&batch == &batches.back() ? seconds_per_shape : seconds_per_shape / 4);
      scheduler_->queue().submit(*host_, batch, [](const batch::PackedBatch&, const float*, double) {});
      scheduler_->queue().finish();
      for (const ops::GemmChoice& c : tuning.done()) lines.push_back(gemm_choice_text(c));
    }
    ops::save_gemm_choices(scheduler_->queue().stream());
  });
  return lines;
}

void Engine::prepare_small() {
  if (device().kind() != device::DeviceKind::cuda) return;
  std::call_once(small_prepared_, [&] { scheduler_->call([&] { host_->want_small_batches(); }); });
}

std::unique_ptr<BulkQueue> Engine::bulk(BulkQueue::Collect collect) {
  return std::make_unique<BulkQueue>(*scheduler_, *host_, pack_limits().tokens, std::move(collect));
}

int64_t Engine::tokens_in(double seconds) const {
  const double tokens = plan_.tokens_per_second * seconds;
  return std::clamp(static_cast<int64_t>(tokens),
                    std::min(std::max(kLeastServingTokens, plan_.max_length), plan_.token_budget), plan_.token_budget);
}
int64_t Engine::serving_tokens() const {
  const int64_t tokens = tokens_in(kServingSeconds);
  return options_.batch_tokens > 0 ? std::min(tokens, std::max(options_.batch_tokens, plan_.max_length)) : tokens;
}

batch::PackLimits Engine::pack_limits() const {
  return {options_.bulk_seconds > 0 ? tokens_in(options_.bulk_seconds) : plan_.token_budget, plan_.max_sequences};
}

std::unique_ptr<InteractiveQueue> Engine::interactive(InteractiveQueue::Answer answer, double most_seconds,
                                                      int64_t most_bytes, Heads heads) {
  BRIM_CHECK(heads == Heads::own || !tags_.empty(), "two heads requested, the model has one");
  prepare_small();
  InteractiveQueue::Limits limits;
  limits.pack = {serving_tokens(), plan_.max_sequences};
  limits.position_offset = shape().position_offset;
  limits.pass = static_cast<size_t>(heads);
  const model::Output given = heads == Heads::own ? output() : model::Output::token_scores_and_logits;
  limits.width = output_width(shape(), given);
  limits.per_token = is_per_token(given);
  limits.average_tokens = heads == Heads::own && pools_on_host_;
  limits.tokens_per_second = plan_.tokens_per_second;
  limits.most_seconds = most_seconds;
  limits.most_bytes = most_bytes;
  return std::make_unique<InteractiveQueue>(*scheduler_, *host_, limits, std::move(answer));
}

void Engine::merge_windows(const float* results, size_t windows, float* out, LongText how, bool raw) const {
  const auto K = static_cast<size_t>(row_width());
  const bool scores = options_.raw_scores && output() == model::Output::sequence_logits && !raw && !shape().raw_scores;
  std::vector<float> window(K), whole(width() < row_width() ? K : 0);
  float* const kept = out;
  if (!whole.empty()) out = whole.data();
  for (size_t w = 0; w < windows; ++w) {
    const float* from = results + w * K;
    if (scores) {
      scores_of_logits({from, K}, shape().multi_label, window.data());
      from = window.data();
    }
    for (size_t k = 0; k < K; ++k)
      out[k] = w == 0 ? from[k] : how == LongText::window_max ? std::max(out[k], from[k]) : out[k] + from[k];
  }
  if (how != LongText::window_max && windows > 1)
    for (size_t k = 0; k < K; ++k) out[k] /= static_cast<float>(windows);
  if (sentence_.normalize) normalize({out, K});
  if (!whole.empty()) std::copy_n(out, width(), kept);
}

void Engine::merge_text(const TokenizedTexts& texts, size_t t, const float* results, float* out) const {
  const size_t windows = texts.texts[t].windows;
  if (texts.zero_shot != nullptr)
    texts.zero_shot->merge({results, windows * static_cast<size_t>(row_width())}, options_.long_text, out);
  else
    merge_windows(results, windows, out, options_.long_text, false);
}

std::vector<float> Engine::run_windows(const TokenizedTexts& texts) {
  prepare_small();
  const auto K = static_cast<size_t>(row_width());
  const bool per_token = is_per_token(output());
  std::vector<float> results((per_token ? texts.ids.size() : texts.windows.size()) * K);
  WindowQueue queue(*this, [&](const WindowResults& done) {
    for (size_t i = 0; i < done.size(); ++i) done.put(i, texts, done.ticket(i), results);
  });
  for (size_t i = 0; i < texts.windows.size(); ++i) queue.push(texts.sequence(i, i));
  // A single batch may run as a graph. This depends on the content alone, so that the same texts give the same bytes.
  queue.submit_all(Launch::graph);
  queue.finish();
  busy_seconds_ += queue.busy_seconds();
  return results;
}

std::optional<Error> Engine::check_finite(std::span<const float> results) const {
  if (all_finite(results)) [[likely]]
    return std::nullopt;
  host_->not_finite_texts.fetch_add(1, std::memory_order_relaxed);
  const std::string name = (model_dir() / "").parent_path().filename().string();  // handles a trailing slash
  const std::string check = fmt::format("check the weights of {} for NaN and infinity", name);
  return Error(ErrorCode::bad_model, "the model's output is not finite",
               {precision() == ops::Precision::fp32 ? check : "set `precision=fp32`, or " + check});
}

std::vector<float> Engine::score(const TokenizedTexts& tokens, TextErrors* errors) {
  BRIM_CHECK(!model::is_per_token(output()), "score() on a token model");
  const std::vector<float> windows = run_windows(tokens);
  const auto row = static_cast<size_t>(row_width()), K = static_cast<size_t>(width_of(tokens));
  std::vector<float> scores(tokens.texts.size() * K);
  for (size_t t = 0; t < tokens.texts.size(); ++t) {
    const std::span<const float> results = tokens.results_of(t, windows, row, false);
    if (keep_error(t, check_finite(results), errors)) continue;
    merge_text(tokens, t, results.data(), scores.data() + t * K);
  }
  return scores;
}

std::vector<std::vector<float>> Engine::score(std::span<const std::string_view> texts) {
  const std::vector<float> scores = score(tokenized(texts));
  std::vector<std::vector<float>> rows;
  for (auto at = scores.begin(); at != scores.end(); at += width()) rows.emplace_back(at, at + width());
  return rows;
}

std::vector<std::vector<Entity>> Engine::entities(std::span<const std::string_view> texts) {
  return entities(texts, tokenized(texts));
}

std::vector<std::vector<Entity>> Engine::entities(std::span<const std::string_view> texts, const TokenizedTexts& tokens,
                                                  TextErrors* errors) {
  BRIM_CHECK(model::is_per_token(output()), "entities() on a model without token classes");
  const std::vector<float> windows = run_windows(tokens);
  const auto fails = [&](size_t t) {
    const auto results = tokens.results_of(t, windows, static_cast<size_t>(width()), true);
    return keep_error(t, check_finite(results), errors);
  };
  std::vector<std::vector<Entity>> entities(texts.size());
  if (const EntityTask* task = tokens.zero_shot != nullptr ? tokens.zero_shot->entities() : nullptr) {
    std::vector<size_t> which;
    std::vector<std::string_view> raw;
    for (size_t t = 0; t < texts.size(); ++t) {
      if (fails(t)) continue;
      which.push_back(t);
      raw.push_back(texts[t]);
    }
    auto found = task->find(tokens, which, raw, windows.data(), host_pool());
    for (size_t i = 0; i < which.size(); ++i) entities[which[i]] = std::move(found[i]);
    return entities;
  }
  std::vector<float> scores;
  for (size_t t = 0; t < texts.size(); ++t) {
    if (fails(t)) continue;
    const text::Encoding encoding = tokenizer_->encode(texts[t]);
    token_scores(tokens, t, encoding, windows, scores);
    entities[t] = group_entities(texts[t], encoding, tokenizer_->kind(), scores.data(), labels(), aggregation());
  }
  return entities;
}

TokenizedTexts Engine::tokenized(std::span<const std::string_view> texts) const {
  TokenizedTexts tokens;
  for (const auto text : texts)
    if (auto error = tokenize(text, tokens)) throw *error;
  return tokens;
}

void Engine::token_scores(const TokenizedTexts& texts, size_t t, const text::Encoding& encoding,
                          const std::vector<float>& windows, const std::vector<std::string>& labels,
                          std::vector<float>& out) const {
  const size_t K = labels.size();
  out.assign(encoding.ids.size() * K, 0.0f);
  const size_t prefix = tokenizer_->prefix().size(), suffix = tokenizer_->suffix().size();
  const TokenizedText& text = texts.texts[t];
  size_t known = 0;  // content tokens covered by previous windows
  for (size_t w = text.first_window; w < text.first_window + text.windows; ++w) {
    const auto& window = texts.windows[w];
    const size_t content = static_cast<size_t>(window.length) - prefix - suffix;
    const auto first = static_cast<size_t>(window.first_content);
    // Tokens shared by two windows are split: the first half comes from the earlier window, where they are farther from
    // its edge.
    const size_t from = w == text.first_window ? first : (known + first + 1) / 2;
    std::copy_n(windows.begin() + static_cast<std::ptrdiff_t>((window.begin + prefix + from - first) * K),
                (first + content - from) * K, out.begin() + static_cast<std::ptrdiff_t>((prefix + from) * K));
    known = first + content;
  }
  // A token without scores must not get label 0 by accident: assign the outside tag if there is one.
  const auto outside = static_cast<size_t>(std::find(labels.begin(), labels.end(), "O") - labels.begin());
  if (outside == labels.size()) return;
  for (size_t i = 0; i < encoding.ids.size(); ++i)
    if (std::all_of(out.begin() + static_cast<std::ptrdiff_t>(i * K),
                    out.begin() + static_cast<std::ptrdiff_t>((i + 1) * K), [](float v) { return v == 0; }))
      out[i * K + outside] = 1;
}

}  // namespace brim::engine
