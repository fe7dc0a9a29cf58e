// SPDX-License-Identifier: Apache-2.0
// brim::Scorer for an Engine. VADER is in rules_scorer.cc, opening in scorer_open.cc.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <mutex>
#include <unordered_map>

#include "base/clock.h"
#include "base/error.h"
#include "base/thread_pool.h"
#include "base/utf8.h"
#include "brim/brim.h"
#include "engine/encoder_scorer.h"
#include "engine/engine.h"
#include "engine/entities.h"
#include "engine/label.h"
#include "engine/score_columns.h"
#include "engine/scorer_access.h"
#include "engine/scorer_cache.h"

namespace brim {
namespace {

constexpr size_t kEncodedBytes = 48;  // per token kept with its spelling and position

// A submitted request.
struct PendingRequest : engine::PendingText {
  Completion* completion = nullptr;
  uint64_t ticket = 0;
  LongText long_text = LongText::truncate;
  bool raw_scores = false;
  bool both = false;                             // labels and entities from one pass
  std::shared_ptr<const ZeroShotLabels> labels;  // zero-shot labels of the request
  Aggregation aggregation = Aggregation::first;  // taggers only, like outside, text and encoding
  bool outside = false;
  std::string text;
  text::Encoding encoding;
  std::string key;                      // in the cache; empty: not kept there
  std::vector<uint64_t> equal_tickets;  // equal requests of the same call, which get the same answer
};

// Delivers the answers of one batch, grouped by completion.
void deliver(std::vector<std::pair<Completion*, Answer>>& answers) {
  std::stable_sort(answers.begin(), answers.end(),
                   [](const auto& a, const auto& b) { return std::less<Completion*>()(a.first, b.first); });
  std::vector<Answer> of_one;
  for (size_t i = 0; i < answers.size();) {
    Completion* completion = answers[i].first;
    of_one.clear();
    for (; i < answers.size() && answers[i].first == completion; ++i) of_one.push_back(std::move(answers[i].second));
    completion->done(of_one);
  }
}

class EncoderScorer final : public engine::EngineScorer {
 public:
  EncoderScorer(std::unique_ptr<engine::Engine> engine, const ScorerOptions& options)
      : EngineScorer(std::move(engine), options),
        width_(static_cast<size_t>(engine_->width())),
        cache_(engine_->scheduler().cache()) {
    kind_ = options.pooling                   ? ModelKind::embedder
            : is_per_token(engine_->output()) ? ModelKind::tagger
                                              : ModelKind::classifier;
    if (options.bulk_seconds > 0) engine_->prepare_small();  // more texts are expected: capture graphs before the first
  }
  ~EncoderScorer() override {
    if (process_ != ::getpid()) {  // in a child of fork() threads and device belong to the parent
      for (InteractiveSlot& slot : interactive_slots_) (void)slot.made.release();
      (void)engine_.release();
      return;
    }
    close();
  }

  ModelKind kind() const override { return kind_; }
  std::string model() const override { return engine_->model_dir().string(); }
  bool multi_label() const override { return engine_->multi_label(); }
  std::optional<Error> why_no_pairs() const override { return engine_->why_no_pairs(); }
  std::optional<Pooling> pooling() const override { return engine_->pooling(); }
  const std::vector<std::string>& labels() const override {
    return kind_ == ModelKind::embedder ? none_ : engine_->labels();
  }
  const std::vector<std::string>& score_names() const override {
    return kind_ == ModelKind::classifier ? engine_->labels() : none_;
  }
  std::string device() const override { return engine_->device().name(); }
  std::string pci_bus_id() const override { return engine_->device().pci_bus_id(); }
  std::string precision() const override { return precision_name(engine_->precision()); }
  std::string precision_reason() const override { return engine_->precision_reason(); }

  MemoryPlan plan() const override {
    const plan::Plan& plan = engine_->plan();
    MemoryPlan p;
    p.limit_bytes = plan.limit_bytes;
    p.peak_bytes = plan.peak_bytes;
    p.shared_bytes = plan.peak_bytes - total_bytes(plan.own_parts());
    p.bytes = engine::bytes_by_purpose(plan.bytes);
    p.tokens_per_batch = plan.token_budget;
    p.tokens_per_interactive_batch = engine_->serving_tokens();
    p.tokens_per_second = plan.tokens_per_second;
    return p;
  }

  int64_t max_length() const override { return engine_->plan().max_length; }

  ScorerLoad load() const override {
    ScorerLoad all{.tokens_per_second = engine_->plan().tokens_per_second, .lost = engine_->scheduler().lost()};
    all.not_finite_texts = engine_->host().not_finite_texts.load(std::memory_order_relaxed);
    const engine::DeviceQueue::OldestBatch batch = engine_->scheduler().queue().oldest();
    all.batch_seconds = batch.seconds;
    all.batch_predicted_seconds = batch.predicted_seconds;
    for (const InteractiveSlot& slot : interactive_slots_) {
      const engine::InteractiveQueue* ready = slot.ready.load(std::memory_order_acquire);
      if (ready == nullptr) continue;
      const ScorerLoad load = ready->load();
      all.texts += load.texts;
      all.tokens += load.tokens;
      all.bulk_tokens += load.bulk_tokens;
      all.wait_seconds += load.wait_seconds;
      all.tokens_per_second = load.tokens_per_second;
    }
    return all;
  }

  ClientWait wait_of(uint64_t client, int64_t tokens, bool bulk, engine::Deadline deadline) const override {
    ClientWait all;
    bool any = false;
    for (const InteractiveSlot& slot : interactive_slots_) {
      const engine::InteractiveQueue* ready = slot.ready.load(std::memory_order_acquire);
      if (ready == nullptr) continue;
      const ClientWait wait = ready->wait_of(client, std::exchange(any, true) ? 0 : tokens, bulk, deadline);
      all.own_tokens += wait.own_tokens;
      all.begin_seconds += wait.begin_seconds;
      all.end_seconds += wait.end_seconds;
    }
    if (!any) all.end_seconds = static_cast<double>(tokens) / std::max(1.0, engine_->plan().tokens_per_second);
    return all;
  }

  ScorerWork work() const override {
    const engine::ModelHost& host = engine_->host();
    const engine::ModelHost::Work done = engine_->scheduler().work_of(host);
    ScorerWork w;
    w.batches = done.batches;
    w.graph_batches = host.graph_batches.load(std::memory_order_relaxed);
    w.tokens = done.tokens;
    w.padding_tokens = host.padding_tokens.load(std::memory_order_relaxed);
    w.busy_seconds = done.busy_seconds;
    w.flops = forward_flops(engine_->shape(), static_cast<double>(done.tokens), done.sum_squares);
    w.flops_per_second = engine_->plan().device.rate(engine_->precision());
    w.batch_tokens = done.batch_tokens;
    w.batch_sequences = done.batch_sequences;
    w.batch_fill = done.batch_fill;
    w.prediction_error = done.prediction_error;
    w.cache_hits = cache_.hits();
    w.cache_misses = cache_.misses();
    w.loads = host.loads();
    w.load_seconds = host.load_seconds();
    w.idle = engine_->scheduler().idle();
    w.queue = reinterpret_cast<uintptr_t>(&engine_->scheduler());
    return w;
  }

  std::vector<TextToken> tokenize(std::string_view text) const override {
    const text::Encoding encoding = engine_->tokenizer().encode(text);
    const size_t prefix = engine_->tokenizer().prefix().size(), suffix = engine_->tokenizer().suffix().size();
    std::vector<TextToken> tokens;
    for (size_t i = 0; i < encoding.ids.size(); ++i)
      tokens.push_back({encoding.ids[i], encoding.tokens[i], encoding.offsets[i].first, encoding.offsets[i].second,
                        i < prefix || i + suffix >= encoding.ids.size()});
    return tokens;
  }

  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    return engine_->tokenizer().decode(ids, skip_special);
  }

  Residence residence() const override { return engine_->host().residence(); }
  void park() override { engine_->park(); }
  void load_weights() override { engine_->load_weights(); }
  void keep_loaded(bool keep) override { engine_->keep(keep); }
  bool close_device() override { return engine_->close_device(); }

  void submit(std::span<const Request> requests, Completion& completion) override {
    engine::PendingTexts texts, texts_of_both;
    texts.reserve(requests.size());
    std::vector<Answer> refused, known;
    std::unordered_map<std::string_view, PendingRequest*> waiting;  // requests of this call, by key
    for (const Request& request : requests) {
      auto pending = std::make_unique<PendingRequest>();
      std::optional<Error> error = check(request);
      pending->both = request.entities;
      pending->long_text = request.long_text.value_or(options_.long_text);
      Prediction none;
      if (!error && cache_ && !closed_) {
        pending->key = key_of(request);
        if (joins(waiting, pending->key, request)) continue;
        if (const auto found = cache_.find(pending->key)) {
          known.push_back({request.ticket, *found});
          continue;
        }
        pending->more_bytes = static_cast<int64_t>(pending->key.size());
      }
      if (!error) {
        engine::TextOptions how{pending->long_text, request.keep_end, request.overlap, pending->both};
        how.prompt = request.prompt.value_or(engine_->text_options().prompt);
        how.max_length = request.max_length;
        how.zero_shot = request.zero_shot ? &task_of(*request.zero_shot) : engine_->zero_shot();
        error = request.ids.empty() ? engine_->tokenize(request.text, request.pair, pending->tokens, how)
                                    : engine_->take_ids(request.ids, pending->tokens, how);
        const bool counted = request.ids.empty() || pending->long_text == LongText::error;
        if (error && error->code() == ErrorCode::bad_data && counted) {  // too long, which is rare
          none.tokens = static_cast<int32_t>(request.ids.empty() ? tokenize(request.text).size() : request.ids.size());
          if (request.pair) none.tokens += static_cast<int32_t>(tokenize(*request.pair).size());
        }
      }
      if (error) {
        // A pair for a model without pair support is an error of the request, not of the model.
        if (error->code() == ErrorCode::bad_model) error = Error(ErrorCode::usage, error->what());
        none.error = std::move(error);
        refused.push_back({request.ticket, std::move(none)});
        continue;
      }
      if (kind_ == ModelKind::tagger || pending->both) {
        pending->aggregation = request.aggregation.value_or(engine_->aggregation());
        pending->outside = request.outside;
        pending->text = request.text;
        if (!engine_->gliner()) pending->encoding = engine_->tokenizer().encode(request.text);
        pending->more_bytes +=
            static_cast<int64_t>(pending->text.size() + pending->encoding.ids.size() * kEncodedBytes);
      }
      pending->labels = request.zero_shot;
      pending->completion = &completion;
      pending->ticket = request.ticket;
      pending->deadline = request.deadline;
      pending->stop = request.stop;
      pending->bulk = request.bulk;
      pending->client = request.client;
      pending->raw_scores = request.raw_scores;
      if (!pending->key.empty()) waiting.emplace(pending->key, pending.get());
      (pending->both ? texts_of_both : texts).push_back(std::move(pending));
    }
    if (!refused.empty()) completion.done(refused);
    if (!known.empty()) completion.done(known);
    hand_over(std::move(texts), engine::Heads::own);
    hand_over(std::move(texts_of_both), engine::Heads::both);
  }

  Predictions score(std::span<const std::string_view> texts, std::stop_token stop,
                    const std::function<void(size_t)>& progress) override {
    return score_all(texts, {}, stop, progress);
  }

  std::shared_ptr<const ZeroShotLabels> prepare_labels(const ZeroShot& labels) const override {
    return engine_->prepare_labels(labels, {.labels = "candidate_labels", .pattern = "hypothesis_template"});
  }

  bool finds_entities_by_label() const override { return engine_->gliner() != nullptr; }
  std::shared_ptr<const ZeroShotLabels> prepare_entities(const EntityLabels& entities) const override {
    return engine_->prepare_entities(entities, {.labels = "labels", .threshold = "threshold"});
  }

  Predictions classify(std::span<const std::string_view> texts, const ZeroShotLabels& labels, std::stop_token stop,
                       const std::function<void(size_t)>& progress) override {
    if (auto error = check_labels(labels)) throw *error;
    return score_all(texts, {}, stop, progress, {}, &task_of(labels));
  }

  Predictions embed(std::span<const std::string_view> texts, std::string_view prompt, std::stop_token stop,
                    const std::function<void(size_t)>& progress) override {
    return embed_pairs(texts, {}, prompt, stop, progress);
  }

  Predictions embed_pairs(std::span<const std::string_view> texts, std::span<const std::string_view> pairs,
                          std::string_view prompt, std::stop_token stop,
                          const std::function<void(size_t)>& progress) override {
    if (kind_ != ModelKind::embedder) return Scorer::embed(texts, prompt, stop, progress);
    if (!is_valid_utf8(prompt)) fail(ErrorCode::usage, "the prompt is not UTF-8");
    if (!pairs.empty()) check_pairs(texts, pairs);
    return score_all(texts, pairs, stop, progress, prompt);
  }

  Predictions score_pairs(std::span<const std::string_view> texts, std::span<const std::string_view> pairs,
                          std::stop_token stop, const std::function<void(size_t)>& progress) override {
    check_pairs(texts, pairs);
    return score_all(texts, pairs, stop, progress);
  }

  void close() override {
    closed_ = true;
    std::lock_guard lock(interactive_mutex_);
    for (InteractiveSlot& slot : interactive_slots_)
      if (slot.made) slot.made->close();
  }

 private:
  static void check_pairs(std::span<const std::string_view> texts, std::span<const std::string_view> pairs) {
    if (texts.size() != pairs.size())
      fail(ErrorCode::usage, "{} texts but {} second texts", texts.size(), pairs.size());
  }

  std::optional<Error> check(const Request& request) const {
    const auto usage = [](const char* problem) { return Error(ErrorCode::usage, problem); };
    if (!is_valid_utf8(request.text) || !is_valid_utf8(request.pair.value_or(""))) return engine::not_utf8();
    if (request.raw_scores && !options_.raw_scores && kind_ == ModelKind::classifier)
      return usage("raw scores require a scorer opened with `raw_scores`");
    if (!request.ids.empty() && (kind_ == ModelKind::tagger || request.entities))
      return usage("token ids are not supported for entities");
    if (request.entities && engine_->tags().empty()) return usage("entities require a scorer opened with a tagger");
    if (request.entities && request.pair) return usage("entities are not supported for pairs");
    if ((request.zero_shot || engine_->zero_shot() != nullptr) && (request.entities || !request.ids.empty()))
      return usage("zero-shot labels are not supported with entities or token ids");
    return request.zero_shot ? check_labels(*request.zero_shot) : std::nullopt;
  }

  Predictions score_all(std::span<const std::string_view> texts, std::span<const std::string_view> pairs,
                        const std::stop_token& stop, const std::function<void(size_t)>& progress,
                        std::optional<std::string_view> prompt = {}, const engine::LabelTask* task = nullptr) {
    if (closed_) fail(ErrorCode::cancelled, "the scorer was closed");
    if (options_.pooling == Pooling::none)
      fail(ErrorCode::usage, "`pooling=none` is only supported for submitted texts");
    if (!cache_) return compute_all({texts, pairs, task}, stop, progress, prompt);
    engine::Columns columns = columns_of(texts.size(), task);
    const auto compute = [&](const engine::ScorerCache::Texts& rest, const std::function<void(size_t)>& on_progress) {
      return compute_all(rest, stop, on_progress, prompt);
    };
    cache_.score({texts, pairs, task, prompt.value_or(engine_->text_options().prompt)}, progress, compute,
                 columns.predictions());
    return columns.finish(texts.size());
  }

  engine::Columns columns_of(size_t texts, const engine::LabelTask* task) const {
    const size_t width = task != nullptr ? task->labels().size() : width_;
    return {texts, kind_ == ModelKind::tagger ? 0 : width, kind_ == ModelKind::classifier, kind_ == ModelKind::tagger};
  }

  Predictions compute_all(const engine::ScorerCache::Texts& given, const std::stop_token& stop,
                          const std::function<void(size_t)>& progress, std::optional<std::string_view> prompt) {
    const auto& [texts, pairs, task, own_prompt] = given;
    engine::Columns columns = columns_of(texts.size(), task);
    engine::TextOptions how = engine_->text_options();
    if (prompt) how.prompt = *prompt;
    if (task != nullptr) how.zero_shot = task;
    if (engine_->gliner() != nullptr && how.zero_shot == nullptr) throw engine::no_entity_labels(engine_->model_dir());
    const size_t cost = how.zero_shot != nullptr ? how.zero_shot->cost() : 1;
    if (engine::are_few(texts, cost) && engine::are_few(pairs))
      return score_few(texts, pairs, how, stop, columns, progress);
    return engine::score_many(engine_.get(), 0, texts, pairs, stop, progress, columns,
                              kind_ == ModelKind::embedder && options_.normalize, prompt, task);
  }

  std::string key_of(const Request& request) const {
    Request complete = request;
    complete.long_text = request.long_text.value_or(options_.long_text);
    complete.aggregation = request.aggregation.value_or(engine_->aggregation());
    complete.prompt = request.prompt.value_or(engine_->text_options().prompt);
    return cache_.key(complete, request.zero_shot ? &task_of(*request.zero_shot) : nullptr);
  }

  std::optional<Error> check_labels(const ZeroShotLabels& labels) const {
    const auto* task = dynamic_cast<const engine::LabelTask*>(&labels);
    if (task != nullptr && task->engine == engine_.get()) return std::nullopt;
    return Error(ErrorCode::usage, "the labels were prepared for another scorer");
  }
  static const engine::LabelTask& task_of(const ZeroShotLabels& labels) {
    return static_cast<const engine::LabelTask&>(labels);
  }
  static const engine::EntityTask* entities_of(const engine::LabelTask* task) {
    return task != nullptr ? task->entities() : nullptr;
  }

  // Adds the request to an equal one that is not submitted yet.
  bool joins(const std::unordered_map<std::string_view, PendingRequest*>& waiting, std::string_view key,
             const Request& request) {
    const auto found = waiting.find(key);
    if (found == waiting.end()) return false;
    PendingRequest& first = *found->second;
    if (first.deadline != request.deadline || first.stop != request.stop || first.bulk != request.bulk ||
        first.client != request.client)
      return false;
    first.equal_tickets.push_back(request.ticket);
    cache_.count_hit();
    return true;
  }

  // If the device is lost before its graphs are captured, all texts get that error.
  void hand_over(engine::PendingTexts texts, engine::Heads heads) {
    if (texts.empty()) return;
    engine::InteractiveQueue* slot = nullptr;
    try {
      slot = &interactive(heads);
    } catch (const Error& error) {
      if (error.code() == ErrorCode::usage) throw;  // in a child of fork()
      for (const auto& text : texts) text->error = error;
      return answer(texts);
    }
    slot->submit(std::move(texts));
  }

  engine::InteractiveQueue& interactive(engine::Heads heads) {
    InteractiveSlot& slot = interactive_slots_[static_cast<size_t>(heads)];
    if (engine::InteractiveQueue* ready = slot.ready.load(std::memory_order_acquire)) return *ready;
    std::lock_guard lock(interactive_mutex_);
    if (!slot.made) {
      slot.made = engine_->interactive([this](engine::PendingTexts& texts) { answer(texts); }, options_.queue_seconds,
                                       options_.queue_bytes, heads);
      if (closed_) slot.made->close();
      slot.ready.store(slot.made.get(), std::memory_order_release);
    }
    return *slot.made;
  }

  void answer(engine::PendingTexts& texts) {
    std::vector<std::pair<Completion*, Answer>> answers;
    answers.reserve(texts.size());
    for (const auto& text : texts) {
      auto& request = static_cast<PendingRequest&>(*text);
      Prediction prediction = answer_of(request);
      for (const uint64_t ticket : request.equal_tickets)
        answers.emplace_back(request.completion, Answer{ticket, prediction});
      answers.emplace_back(request.completion, Answer{request.ticket, std::move(prediction)});
    }
    deliver(answers);
  }

  // Errors in one text's result belong to that text: thrown here, they would count as a device failure and end
  // everything.
  Prediction answer_of(PendingRequest& request) {
    try {
      Prediction p = predict(request);
      if (!p.error && !request.key.empty()) cache_.put(std::move(request.key), p);
      return p;
    } catch (const std::exception& error) {
      Prediction p;
      p.error.emplace(ErrorCode::internal, error.what());
      return p;
    }
  }

  Prediction predict(PendingRequest& request) const {
    Prediction p;
    p.error = std::move(request.error);
    if (!p.error) p.error = engine_->check_finite(request.scores);
    const int64_t started = request.started_ns != 0 ? request.started_ns : request.done_ns;
    p.timing.waited = static_cast<double>(started - request.submitted_ns) * 1e-9;
    p.timing.computed = static_cast<double>(request.done_ns - started) * 1e-9;
    p.tokens = request.tokens.texts[0].tokens;
    if (p.error) return p;
    p.truncated = request.tokens.texts[0].truncated;
    if (request.both) predict_entities(request, p);
    if (const engine::EntityTask* entities = entities_of(request.tokens.zero_shot)) {
      const size_t first = 0;
      const std::string_view text = request.text;
      p.entities =
          std::move(entities->find(request.tokens, {&first, 1}, {&text, 1}, request.scores.data(), nullptr)[0]);
      return p;
    }
    if (kind_ == ModelKind::tagger) {
      std::vector<float> scores;
      engine_->token_scores(request.tokens, 0, request.encoding, request.scores, scores);
      p.entities = engine::group_entities(request.text, request.encoding, engine_->tokenizer().kind(), scores.data(),
                                          engine_->labels(), request.aggregation, request.outside);
      return p;
    }
    if (options_.pooling == Pooling::none) {
      p.vectors = static_cast<int32_t>(request.scores.size() / width_);
      p.embedding = std::move(request.scores);
      return p;
    }
    const engine::LabelTask* task = request.tokens.zero_shot;
    std::vector<float> merged(task != nullptr ? task->labels().size() : width_);
    if (task != nullptr)
      task->merge(request.scores, request.long_text, merged.data());
    else if (!request.both)
      engine_->merge_windows(request.scores.data(), request.tokens.windows.size(), merged.data(), request.long_text,
                             request.raw_scores);
    else if (request.raw_scores || engine_->shape().raw_scores)
      merged = request.scores;
    else
      engine::scores_of_logits(request.scores, engine_->multi_label(), merged.data());
    if (kind_ == ModelKind::embedder) {
      if (options_.normalize) engine::normalize(merged);
      p.vectors = 1;
      p.embedding = std::move(merged);
      return p;
    }
    const engine::Choice choice = engine::choose_label(merged);
    p.label = (task != nullptr ? task->labels() : engine_->labels())[static_cast<size_t>(choice.label)];
    p.score = choice.score;
    p.scores = std::move(merged);
    return p;
  }

  // Extracts the entities of a text with results of both heads; keeps only its first token's logits in `scores`.
  void predict_entities(PendingRequest& request, Prediction& p) const {
    const size_t tags = engine_->tags().size(), all = tags + width_, rows = request.scores.size() / all;
    std::vector<float> of_tokens(rows * tags), scores;
    for (size_t row = 0; row < rows; ++row) std::copy_n(&request.scores[row * all], tags, &of_tokens[row * tags]);
    engine_->token_scores(request.tokens, 0, request.encoding, of_tokens, engine_->tags(), scores);
    p.entities = engine::group_entities(request.text, request.encoding, engine_->tokenizer().kind(), scores.data(),
                                        engine_->tags(), request.aggregation);
    const size_t first = request.tokens.windows[0].begin * all + tags;
    request.scores = std::vector<float>(&request.scores[first], &request.scores[first] + width_);
  }

  void finish_row(Predictions& p, size_t row) const {
    float* scores = &p.scores[row * p.width];
    if (kind_ == ModelKind::embedder) {
      if (options_.normalize) engine::normalize({scores, p.width});
      return;
    }
    const engine::Choice choice = engine::choose_label({scores, p.width});
    p.labels[row] = choice.label;
    p.label_scores[row] = choice.score;
  }

  Predictions score_few(std::span<const std::string_view> texts, std::span<const std::string_view> pairs,
                        const engine::TextOptions& how, const std::stop_token& stop, engine::Columns& columns,
                        const std::function<void(size_t)>& progress) {
    if (stop.stop_requested()) return columns.finish(0);
    Predictions& p = columns.predictions();
    std::vector<std::string_view> good;
    std::vector<size_t> rows;
    engine::TokenizedTexts tokens;
    tokens.zero_shot = how.zero_shot;
    for (size_t i = 0; i < texts.size(); ++i) {
      std::optional<Error> error;
      std::optional<std::string_view> pair;
      if (!pairs.empty()) pair = pairs[i];
      if (!is_valid_utf8(texts[i]) || !is_valid_utf8(pair.value_or("")))
        error = engine::not_utf8();
      else
        error = engine_->tokenize(texts[i], pair, tokens, how);
      if (error) {
        p.errors.emplace_back(i, *error);
        continue;
      }
      p.truncated[i] = tokens.texts.back().truncated;
      good.push_back(texts[i]);
      rows.push_back(i);
    }
    p.tokens = static_cast<int64_t>(tokens.ids.size());
    engine::Engine::TextErrors failed;
    if (kind_ == ModelKind::tagger) {
      auto entities = engine_->entities(good, tokens, &failed);
      for (size_t t = 0; t < rows.size(); ++t) p.entities[rows[t]] = std::move(entities[t]);
    } else {
      const std::vector<float> scores = engine_->score(tokens, &failed);
      size_t next = 0;
      for (size_t t = 0; t < rows.size(); ++t) {
        if (next < failed.size() && failed[next].first == t) {
          ++next;
          continue;
        }
        std::copy_n(&scores[t * p.width], p.width, &p.scores[rows[t] * p.width]);
        finish_row(p, rows[t]);
      }
    }
    for (const auto& [t, error] : failed) p.errors.emplace_back(rows[t], error);
    std::sort(p.errors.begin(), p.errors.end(), [](const auto& a, const auto& b) { return a.first < b.first; });
    if (progress && !texts.empty()) progress(texts.size());
    return columns.finish(texts.size());
  }

  const size_t width_;
  ModelKind kind_;
  const std::vector<std::string> none_;
  engine::ScorerCache cache_;
  const int process_ = ::getpid();
  std::atomic<bool> closed_{false};
  std::mutex interactive_mutex_;
  struct InteractiveSlot {
    std::unique_ptr<engine::InteractiveQueue> made;  // created by the first submit(), which captures graphs
    std::atomic<engine::InteractiveQueue*> ready{nullptr};
  };
  std::array<InteractiveSlot, 2> interactive_slots_;  // indexed by engine::Heads
};

}  // namespace

std::shared_ptr<Scorer> engine::make_encoder_scorer(std::unique_ptr<Engine> engine, const ScorerOptions& options) {
  return std::make_shared<EncoderScorer>(std::move(engine), options);
}

}  // namespace brim
