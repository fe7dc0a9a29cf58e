// SPDX-License-Identifier: Apache-2.0
// Opens engines: reads files while the device opens, plans all models together, allocates memory and loads weights.
// Does not run batches.
#include <algorithm>
#include <cstdlib>
#include <future>
#include <mutex>

#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/timeline.h"
#include "base/units.h"
#include "device/built_with_cuda.h"
#include "engine/engine.h"
#include "engine/gliner_plan.h"
#include "engine/label.h"
#include "engine/precision.h"
#include "engine/run_stats.h"
#include "hub/gliner_config.h"
#include "hub/model_dir.h"
#include "memory/ledger.h"
#include "ops/gemm_tuner.h"
#include "plan/card_measure.h"

namespace brim::engine {

using memory::Ledger;

namespace {

// Bounds for texts: at most this many tokens per byte, special ones included, and at most one sequence per byte; and
// the usual ratio.
constexpr int64_t kMostTokensPerByte = 4, kUsualBytesPerToken = 4;
// Inputs of at most this many tokens use our own GEMM kernels: opening the GEMM library takes 86 ms, and 2,048 tokens
// take 2.7 ms longer without it (RoBERTa-base on an H200).
constexpr int64_t kTokensWithoutLibrary = 16384;

bool is_short(int64_t most_tokens) { return most_tokens > 0 && most_tokens <= kTokensWithoutLibrary; }
bool is_half(ops::Precision p) { return p == ops::Precision::bf16 || p == ops::Precision::fp16; }

}  // namespace

// A model whose files and options are read, before it is planned together with others.
struct Engine::OpenRequest {
  std::unique_ptr<Engine> engine;
  plan::PlanRequest request;
  bool labels = false;  // the encoder of labels of the request before it
};

namespace {

// Opens the encoder of labels of a GLiNER bi-encoder, with the same device, limit and precision.
EngineOptions labels_options(const EngineOptions& of_texts) {
  EngineOptions o;
  o.model_dir = hub::labels_encoder_dir(of_texts.model_dir);
  o.device = of_texts.device;
  o.precision = of_texts.precision;
  o.threads = of_texts.threads;
  o.memory_limit = of_texts.memory_limit;
  o.deterministic = of_texts.deterministic;
  o.pooling = Pooling::mean;
  return o;
}

// Output of a model's first pass; with two heads that of the classifier alone.
model::Output first_output(const plan::PlanRequest& r, bool raw_scores) {
  if (r.output != model::Output::token_scores_and_logits) return r.output;
  return raw_scores ? model::Output::sequence_logits : model::Output::sequence_scores;
}

// Forward passes of a plan. A plan for two heads is solved for the combined pass, which needs more memory than the
// classifier alone; the classifier's pass comes first and becomes the plan's output.
std::vector<model::ForwardPlan> forwards_of(const plan::PlanRequest& r, plan::Plan& p, bool raw_scores) {
  const auto pass = [&](model::Output output) {
    return plan_forward(r.shape, p.precision, r.device.kind, r.device.isa, r.device.threads, p.limits(), output);
  };
  p.output = first_output(r, raw_scores);
  if (p.output == r.output) return {pass(p.output)};
  return {pass(p.output), pass(r.output)};
}

}  // namespace

Engine::~Engine() {
  if (host_) scheduler_->remove(*host_);
}

namespace {

// On a GPU the cache is in host memory, which the device's limit does not cover.
int64_t cache_on_device(const EngineOptions& options, const device::Device& device) {
  return device.kind() == device::DeviceKind::cpu ? options.cache_bytes : 0;
}

}  // namespace

std::unique_ptr<Engine> Engine::open(const EngineOptions& options) { return std::move(open_together({options})[0]); }

namespace {

bool card_expected(const device::DeviceChoice& choice) {
  return choice.kind != device::DeviceChoice::Kind::cpu && device::built_with_cuda() && device::nvidia_driver_present();
}

}  // namespace

std::vector<std::unique_ptr<Engine>> Engine::open_together(const std::vector<EngineOptions>& options,
                                                           plan::Residency residency) {
  if (options.empty()) return {};
  // Opening a GPU takes a third of a second: read the files and libraries of the first batch in the meantime.
  const bool card = card_expected(options[0].device);
  std::future<void> libraries;
  const bool spares_library = std::ranges::all_of(options, [](const EngineOptions& o) {
    return !o.deterministic && is_short(kMostTokensPerByte * o.input_bytes) &&
           is_half(o.precision.precision.value_or(ops::Precision::bf16));
  });
  if (card)
    libraries = std::async(std::launch::async, [=] {
      if (!spares_library) ops::preload_gemm_library();
      open_card_counters();
    });
  std::future<std::vector<OpenRequest>> files =
      std::async(card ? std::launch::async : std::launch::deferred, [&] { return read_all(options); });
  std::shared_ptr<device::Device> device = device::open_device(options[0].device, options[0].threads);
  log_debug("{}: opened", device->name());
  const int64_t limit = options[0].memory_limit.on(device->memory(), device->name());
  Ledger::of(*device).set_limit(limit);
  const int64_t left = limit - cache_on_device(options[0], *device);
  if (left <= 0)
    fail(ErrorCode::does_not_fit, Remedy{"set a smaller cache"}, "a cache of {} leaves nothing of the limit of {}",
         format_bytes(options[0].cache_bytes), format_bytes(limit));
  auto engines = open_on(device, files.get(), left, residency);
  // The memory use of driver and libraries is known now. If it exceeds the plan, plan again before a batch runs.
  const plan::Plan& plan = engines[0]->plan();
  if (!plan::found_larger_context(*device, plan.precision, plan.device.context_bytes, held_bytes(*device),
                                  "replanning"))
    return engines;
  engines.clear();
  return open_on(device, read_all(options), left, residency);
}

std::vector<Engine::OpenRequest> Engine::read_all(const std::vector<EngineOptions>& options) {
  std::vector<OpenRequest> all;
  for (const EngineOptions& o : options) {
    all.push_back(read_files(o));
    if (!all.back().engine->is_bi_encoder()) continue;
    all.push_back(read_files(labels_options(o)));
    all.back().labels = true;
  }
  log_debug("read the files of {}", format_count(static_cast<int64_t>(all.size()), "model"));
  return all;
}

std::vector<std::unique_ptr<Engine>> Engine::open_on(std::shared_ptr<device::Device> device,
                                                     std::vector<OpenRequest> prepared, int64_t limit_bytes,
                                                     plan::Residency residency) {
  std::vector<std::unique_ptr<Engine>> engines, models;
  std::vector<plan::PlanRequest> requests;
  for (OpenRequest& one : prepared) {
    resolve(one, *device, limit_bytes);
    engines.push_back(std::move(one.engine));
    requests.push_back(std::move(one.request));
  }
  plan::TurnPlans turns;
  std::vector<std::vector<model::ForwardPlan>> forwards;
  QueueSize size;
  {
    ScopedZone zone(Zone::plan);
    turns = solve_turns(requests, residency);
    for (size_t i = 0; i < engines.size(); ++i) {
      plan::Plan& p = turns.plans[i];
      // For measuring the effect of overlap: fewer batches in flight than planned.
      if (const auto depth = env("BRIM_STAGING_DEPTH"))
        p.staging_depth = std::clamp(std::atoi(depth->c_str()), 1, p.staging_depth);
      const plan::PlanRequest& r = requests[i];
      forwards.push_back(forwards_of(r, p, engines[i]->options_.raw_scores));
      size.cover(p, forwards.back(), r.shape);
    }
  }
  Ledger& ledger = Ledger::of(*device);
  for (const plan::Plan& p : turns.plans) hold_context(ledger, p.device);
  const EngineOptions& first = engines[0]->options_;
  bool spares_library = !first.deterministic;
  for (size_t i = 0; i < engines.size(); ++i)
    spares_library = spares_library && is_short(requests[i].most_tokens) && is_half(turns.plans[i].precision);
  const auto scheduler = std::make_shared<Scheduler>(std::make_unique<DeviceQueue>(device, size, spares_library));
  if (device->kind() != device::DeviceKind::cpu) scheduler->set_parked_limit(first.parked_bytes);
  if (first.deterministic) scheduler->queue().fix_algorithms();
  if (first.cache_bytes > 0) {
    memory::Reservation reserved;
    if (const int64_t bytes = cache_on_device(first, *device); bytes > 0)
      reserved = ledger.reserve(memory::Tag::context, "result cache", bytes);
    scheduler->set_cache(std::make_shared<ResultCache>(first.cache_bytes, std::move(reserved)));
  }
  log_debug("planned, batch memory allocated");
  for (size_t i = 0; i < engines.size(); ++i) {
    Engine& engine = *engines[i];
    engine.scheduler_ = scheduler;
    engine.plan_ = turns.plans[i];
    scheduler->add_capacity({requests[i].shape, engine.plan_, forwards[i], requests[i].base, requests[i].adapter_ranks,
                             requests[i].head_bytes, requests[i].head_weight_bytes});
    engine.host_ =
        std::make_unique<ModelHost>(engine.options_.files(), engine.options_.tagger_dir, engine.facts_,
                                    requests[i].shape, engine.plan_, std::move(forwards[i]), scheduler->queue(),
                                    engine.one_batch(requests[i].most_tokens), engine.adapter_of_base(requests[i]));
    if (engine.word_head_) engine.host_->set_word_head(*engine.word_head_);
    scheduler->add(*engine.host_);
    if (turns.all_resident || i == 0) engine.host_->load();
    engine.plan_.gemm_choices = ops::gemm_choices(scheduler->queue().stream());
  }
  for (size_t i = 0; i < engines.size(); ++i)
    if (prepared[i].labels)
      models.back()->attach_labels(std::move(engines[i]));
    else
      models.push_back(std::move(engines[i]));
  return models;
}

// Reports then count the plans of both, and labels can be encoded.
void Engine::attach_labels(std::unique_ptr<Engine> labels) {
  int64_t more = plan::planned_bytes({&plan_, &labels->plan_}) - plan_.peak_bytes;
  for (const memory::LedgerEntry& part : labels->plan_.own_parts()) {
    plan_.add(part.tag, "encoder of labels", part.bytes);
    more -= part.bytes;
  }
  if (more > 0) plan_.add(memory::Tag::activations, "encoder of labels", more);
  labels_engine_ = std::move(labels);
  if (options_.entities) zero_shot_ = prepare_entities(*options_.entities);
}

std::unique_ptr<Engine> Engine::open_beside(const Engine& other, const EngineOptions& options, bool other_stays) {
  const std::shared_ptr<Scheduler>& scheduler = other.scheduler_;
  device::Device& device = scheduler->queue().device();
  OpenRequest prepared = read_files(options);
  scheduler->open_device();  // needed for its profile
  resolve(prepared, device, Ledger::of(device).limit_bytes() - scheduler->cache_bytes_on_device());
  std::optional<Scheduler::CapacityProfile> profile =
      scheduler->find_capacity(prepared.request, first_output(prepared.request, options.raw_scores));
  if (!profile) {
    ScopedZone zone(Zone::plan);
    profile = plan_within(scheduler->queue(), prepared.request, options.raw_scores);
    scheduler->add_capacity(*profile);
  }
  std::unique_ptr<Engine> engine = std::move(prepared.engine);
  engine->scheduler_ = scheduler;
  engine->plan_ = profile->plan;
  engine->host_ = std::make_unique<ModelHost>(options.files(), options.tagger_dir, engine->facts_, profile->shape,
                                              engine->plan_, std::move(profile->forwards), scheduler->queue(), 0,
                                              engine->adapter_of_base(prepared.request));
  if (engine->word_head_) engine->host_->set_word_head(*engine->word_head_);
  scheduler->add(*engine->host_);
  // Graphs are captured during the load, when requests for other models run between two captures, not with the first
  // text.
  scheduler->call([&] {
    if (other.host_->wants_small_batches()) engine->host_->want_small_batches();
  });
  scheduler->load(*engine->host_, other_stays ? other.host_.get() : nullptr);
  if (engine->is_bi_encoder())
    engine->attach_labels(open_beside(*engine, labels_options(engine->options_), other_stays));
  return engine;
}

Scheduler::CapacityProfile Engine::plan_within(DeviceQueue& queue, plan::PlanRequest request, bool raw_scores) {
  const device::Device& device = queue.device();
  const int64_t limit = request.limit_bytes;
  const auto plan_under = [&](int64_t bytes) -> std::optional<Scheduler::CapacityProfile> {
    request.limit_bytes = bytes;
    Scheduler::CapacityProfile profile{
        request.shape,      solve(request),           {}, request.base, request.adapter_ranks,
        request.head_bytes, request.head_weight_bytes};
    plan::Plan& p = profile.plan;
    p.staging_depth = std::min(p.staging_depth, std::max(1, queue.size().depth));
    profile.forwards = forwards_of(request, p, raw_scores);
    QueueSize needed;
    needed.cover(p, profile.forwards, request.shape);
    if (!queue.size().holds(needed, device.kind())) return std::nullopt;
    // Loading memory beyond the queue's share counts as the model's own.
    if (needed.loading_bytes > queue.size().loading_bytes)
      p.add(memory::Tag::activations, "loading more", needed.loading_bytes - queue.size().loading_bytes);
    p.limit_bytes = limit;
    return profile;
  };
  std::optional<Scheduler::CapacityProfile> best = plan_under(limit);
  if (best == std::nullopt) {
    // A smaller limit means smaller batches: find the largest that the queue supports.
    int64_t fits = least_limit(request), too_large = limit;
    best = plan_under(fits);
    while (best && too_large - fits > too_large / 16) {
      const int64_t middle = fits + (too_large - fits) / 2;
      if (auto profile = plan_under(middle)) {
        best = std::move(profile);
        fits = middle;
      } else {
        too_large = middle;
      }
    }
  }
  if (!best)
    fail(ErrorCode::does_not_fit, Remedy{"restart with this model"},
         "a text of {} tokens does not fit in the batch memory sized for the models already open", request.max_length);
  const int64_t alone = Ledger::of(queue.device()).context_bytes() + queue.bytes() +
                        total_bytes(best->plan.own_parts()) + total_bytes(best->plan.base_parts());
  if (alone > limit)
    fail(ErrorCode::does_not_fit,
         "does not fit in {} together with the batch memory of the models already open: {} needed", format_bytes(limit),
         format_bytes(alone));
  return *best;
}

namespace {

void rename_labels(std::vector<std::string>& labels, const std::map<std::string, std::string>& names,
                   const std::filesystem::path& dir) {
  if (names.empty()) return;
  std::vector<std::string> renamed = labels;
  for (const auto& [own, name] : names) {
    const auto found = std::find(labels.begin(), labels.end(), own);
    if (found == labels.end())
      fail(ErrorCode::usage, "`labels`: {} has no label {}; its labels: {}", dir.string(), own,
           fmt::join(labels, ", "));
    renamed[static_cast<size_t>(found - labels.begin())] = name;
  }
  labels = std::move(renamed);
  for (auto label = labels.begin(); label != labels.end(); ++label)
    if (std::find(labels.begin(), label, *label) != label)
      fail(ErrorCode::usage, "`labels`: two labels of {} would have the name {}", dir.string(), *label);
}

}  // namespace

namespace {

// Adapters of a base model use one tokenizer, as long as the files do not change.
std::shared_ptr<const text::Tokenizer> shared_tokenizer(const std::filesystem::path& dir) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<const text::Tokenizer>> known;
  const std::string key = fmt::format("{}\n{}", dir.string(), hub::model_facts(dir));
  std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  std::shared_ptr<const text::Tokenizer> tokenizer = known[key].lock();
  if (tokenizer == nullptr) known[key] = tokenizer = text::Tokenizer::load(hub::tokenizer_dir(dir));
  return tokenizer;
}

}  // namespace

// Output of a model without a GLiNER head.
model::Output Engine::choose_output(const model::ModelShape& shape) const {
  if (options_.output) return *options_.output;
  if (!options_.tagger_dir.empty()) return model::Output::token_scores_and_logits;
  if (shape.sequence_classes > 0)
    return options_.raw_scores ? model::Output::sequence_logits : model::Output::sequence_scores;
  if (shape.token_classes > 0) return model::Output::token_scores;
  fail(ErrorCode::bad_model,
       "{}: has no classification head (architectures: {}); fine-tune one with `brim train`, or use `brim embed` for "
       "its vectors",
       options_.model_dir.string(), config_.architectures.empty() ? "none" : config_.architectures[0]);
}

// Longest text in tokens that the options and the model's files allow. `requested`: by the caller, 0 if not.
int64_t Engine::choose_max_length(const model::ModelShape& shape, int64_t requested) const {
  int64_t longest = std::min(shape.max_tokens(), tokenizer_->model_max_length().value_or(shape.max_tokens()));
  const auto special = static_cast<int64_t>(tokenizer_->prefix().size() + tokenizer_->suffix().size());
  const bool truncates = options_.long_text == LongText::truncate;
  if (requested > longest)
    log_warning("`max_length={}`: {} supports at most {} tokens; using {}{}", requested, options_.model_dir.string(),
                longest, longest, truncates ? "; set `long_text=window-mean` to read longer texts completely" : "");
  if (options_.max_length > 0) longest = std::min(longest, options_.max_length);
  if (longest <= special)
    fail(ErrorCode::usage, "`max_length={}`: must be above the model's {} special tokens", longest, special);
  return longest;
}

// Everything that does not need the device.
Engine::OpenRequest Engine::read_files(const EngineOptions& options) {
  auto engine = std::unique_ptr<Engine>(new Engine);
  engine->options_ = options;
  if (options.zero_shot) engine->options_.raw_scores = true;  // labels are compared by their logits
  engine->read_sentence_settings();
  engine->facts_ = facts_of(options.files(), options.tagger_dir);
  hub::HfConfig& config = engine->config_;
  model::ModelShape shape = model::read_shape(options.files(), &config);
  rename_labels(config.id2label, options.labels, options.model_dir);
  if (!options.tagger_dir.empty()) {
    hub::HfConfig tagger;
    shape = both_heads(shape, model::read_shape(options.tagger_dir, &tagger));
    engine->tags_ = tagger.id2label;
  }
  if (options.shares_base && options.tagger_dir.empty() && !hub::is_gliner(options.model_dir)) {
    engine->adapter_ranks_ = adapter_ranks(*hub::open_model(options.files()).weights, shape);
    if (!engine->adapter_ranks_)
      log_warning("{}: changes more than matrices and the head, so it has a copy of the model's weights",
                  options.adapter_dir.string());
  }
  if (engine->adapter_ranks_)
    engine->tokenizer_ = shared_tokenizer(options.model_dir);
  else
    engine->tokenizer_ = text::Tokenizer::load(hub::tokenizer_dir(options.model_dir));
  const bool gliner = hub::is_gliner(options.model_dir);
  if (!gliner) model::check_vocabulary(options.model_dir, shape, engine->tokenizer_->vocab_size());

  plan::PlanRequest request;
  request.shape = shape;
  if (options.entities && !gliner)
    fail(ErrorCode::usage, "{}: `entities` requires a GLiNER model (gliner_config.json)", options.model_dir.string());
  if (gliner && !options.adapter_dir.empty())
    fail(ErrorCode::usage, "{}: adapters are not supported for a GLiNER model", options.model_dir.string());
  if (gliner)
    engine->read_gliner(request);
  else
    request.output = engine->choose_output(shape);
  request.max_length = engine->choose_max_length(shape, options.max_length);
  request.fill = options.fill;
  if (engine->sentence_.truncate_dim > 0)
    engine->width_ = std::min(engine->sentence_.truncate_dim, output_width(shape, request.output));
  if (options.zero_shot) engine->set_labels(*options.zero_shot, request);
  return {std::move(engine), std::move(request)};
}

// load_gliner() reads the head.
void Engine::read_gliner(plan::PlanRequest& request) {
  const std::string dir = options_.model_dir.string();
  if (options_.pooling) fail(ErrorCode::usage, "{}: embeddings are not supported for a GLiNER model", dir);
  if (options_.zero_shot) fail(ErrorCode::usage, "{}: `labels` requires an NLI model; name `entities`", dir);
  if (!options_.tagger_dir.empty()) fail(ErrorCode::usage, "{}: a GLiNER model has no second head", dir);
  gliner_config_ = hub::load_gliner_config(options_.model_dir);
  if (options_.entities) check_entity_labels(*options_.entities);
  if (!is_bi_encoder()) {  // its markers are not read and may have no vectors
    model::check_vocabulary(options_.model_dir, request.shape, tokenizer_->vocab_size());
    const GlinerMarkers markers = find_markers(*gliner_config_, *tokenizer_);
    if (std::max(markers.label, markers.text) >= request.shape.vocab)
      fail(ErrorCode::bad_model, "{}: the marker tokens have the ids {} and {}, the embedding table has {} rows",
           gliner_config_->where, markers.label, markers.text, request.shape.vocab);
  }
  config_.id2label.clear();
  request.output = model::Output::hidden;
}

// Requires the precision and the device of the request.
void Engine::load_gliner(plan::PlanRequest& request) {
  std::optional<size_t> labels;
  if (options_.entities) labels = options_.entities->labels.size();
  PlannedHead planned = load_planned_head(options_.model_dir, *gliner_config_, labels, request);
  gliner_ = std::move(planned.head);
  word_head_ = std::move(planned.on_device);
  if (options_.entities && !is_bi_encoder())
    zero_shot_ = std::make_unique<const EntityTask>(
        *options_.entities, *gliner_, *tokenizer_,
        EntityTask::Sizes{request.shape.vocab, request.max_length, request.shape.word_width});
}

void Engine::set_labels(const ZeroShot& settings, const plan::PlanRequest& request) {
  const std::filesystem::path& dir = options_.model_dir;
  if (!options_.tagger_dir.empty())
    fail(ErrorCode::usage, "{}: `labels` are not supported with a tagger", dir.string());
  if (request.output != model::Output::sequence_logits)
    fail(ErrorCode::bad_model, "{}: `labels` requires an NLI model, but this model has no classes for texts",
         dir.string());
  if (auto problem = text::why_no_pairs(*tokenizer_, dir, request.shape.types, request.max_length)) throw *problem;
  zero_shot_ = std::make_unique<const ZeroShotTask>(settings, config_.id2label, *tokenizer_, request.max_length, dir);
  width_ = static_cast<int64_t>(settings.labels.size());
}

void Engine::resolve(OpenRequest& prepared, device::Device& device, int64_t limit_bytes) {
  Engine& engine = *prepared.engine;
  const EngineOptions& options = engine.options_;
  plan::PlanRequest& request = prepared.request;
  request.device = plan::local_profile(device);
  const plan::PrecisionChoice choice =
      choose_precision(options.precision, request.device, engine.config_, options.files().measured_dir(),
                       engine.adapter_ranks_.has_value());
  request.precision = choice.precision;
  engine.precision_reason_ = choice.reason;
  // The scales of fp8 depend on the values of merged matrices.
  if (engine.adapter_ranks_ && request.precision != ops::Precision::fp8) {
    request.base = std::filesystem::absolute(options.model_dir).lexically_normal().string();
    request.adapter_ranks = *engine.adapter_ranks_;
    request.shape.adapter_width = model::adapter_width(request.adapter_ranks);
    request.shape.shares_weights = true;
  }
  request.limit_bytes = limit_bytes;
  request.device = plan::measured_profile(device, request.precision, limit_bytes);
  request.device.context_bytes = std::max(request.device.context_bytes, Ledger::of(device).context_bytes());
  if (engine.gliner_config_) engine.load_gliner(request);
  add_host_memory(request, options.files());
  if (device.kind() == device::DeviceKind::cuda) request.most_tokens = kMostTokensPerByte * options.input_bytes;
}

AdapterOfBase Engine::adapter_of_base(const plan::PlanRequest& request) const {
  if (request.base.empty()) return {};
  return {scheduler_->base_weights(options_.model_dir, plan_.precision, plan_.base_parts()), request.adapter_ranks};
}

int64_t Engine::one_batch(int64_t most_tokens) const {
  if (most_tokens == 0 || most_tokens > plan_.token_budget) return 0;
  return std::max<int64_t>(1, options_.input_bytes / kUsualBytesPerToken);
}

}  // namespace brim::engine
