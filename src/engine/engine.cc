// SPDX-License-Identifier: Apache-2.0
#include "engine/engine.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <future>

#include "base/clock.h"
#include "base/env.h"
#include "base/error.h"
#include "base/log.h"
#include "base/thread_pool.h"
#include "base/timeline.h"
#include "base/units.h"
#include "device/built_with_cuda.h"
#include "engine/entities.h"
#include "engine/label.h"
#include "engine/precision.h"
#include "engine/run_stats.h"
#include "engine/window_queue.h"
#include "hub/model_dir.h"
#include "memory/ledger.h"
#include "ops/gemm_tuner.h"
#include "plan/card_measure.h"

namespace brim::engine {

using memory::Ledger;

namespace {

// What an interactive batch may take, and the tokens below which batches of any device lose speed.
constexpr double kServingSeconds = 0.1;
constexpr int64_t kLeastServingTokens = 1024;
// Of texts: no more tokens than that, special ones among them, and as many sequences as bytes; what most have.
constexpr int64_t kMostTokensPerByte = 4, kUsualBytesPerToken = 4;
// A whole input of no more is multiplied by our own kernels: opening the library of products takes 80 ms, and so many
// tokens, were there ever so many, 30 ms longer without it (RoBERTa-base on an H200).
constexpr int64_t kTokensWithoutLibrary = 16384;

bool is_short(int64_t most_tokens) { return most_tokens > 0 && most_tokens <= kTokensWithoutLibrary; }
bool is_half(ops::Precision p) { return p == ops::Precision::bf16 || p == ops::Precision::fp16; }

}  // namespace

std::optional<LongText> long_text_from_name(std::string_view name) {
  if (name == "truncate") return LongText::truncate;
  if (name == "window-mean") return LongText::window_mean;
  if (name == "window-max") return LongText::window_max;
  if (name == "error") return LongText::error;
  return std::nullopt;
}

model::Output output_of(Pooling pooling) {
  return pooling == Pooling::mean  ? model::Output::mean_hidden
         : pooling == Pooling::cls ? model::Output::cls_hidden
                                   : model::Output::hidden;
}

// A model as read and asked for, before it is planned among others.
struct Engine::Prepared {
  std::unique_ptr<Engine> engine;
  plan::PlanRequest request;
};

namespace {

// What a model's first pass gives: of two heads, the classifier's own.
model::Output first_output(const plan::PlanRequest& r, bool raw_scores) {
  if (r.output != model::Output::token_scores_and_logits) return r.output;
  return raw_scores ? model::Output::sequence_logits : model::Output::sequence_scores;
}

// The passes of a plan. One for two heads is solved for the pass that gives both, which needs more than a classifier's
// own; that comes first, and is what the plan says from then on.
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

std::unique_ptr<Engine> Engine::open(const EngineOptions& options) { return std::move(open_together({options})[0]); }

namespace {

bool card_expected(const device::DeviceChoice& choice) {
  return choice.kind != device::DeviceChoice::Kind::cpu && device::built_with_cuda() && device::nvidia_driver_here();
}

}  // namespace

std::vector<std::unique_ptr<Engine>> Engine::open_together(const std::vector<EngineOptions>& options,
                                                           plan::Residency residency) {
  if (options.empty()) return {};
  // A card takes a third of a second to open: what its first batch needs of files and libraries is read meanwhile.
  const bool card = card_expected(options[0].device);
  std::future<void> libraries;
  const bool spares_library = std::ranges::all_of(options, [](const EngineOptions& o) {
    return is_short(kMostTokensPerByte * o.input_bytes) &&
           is_half(o.precision.precision.value_or(ops::Precision::bf16));
  });
  if (card)
    libraries = std::async(std::launch::async, [=] {
      if (!spares_library) ops::preload_gemm_library();
      open_card_counters();
    });
  std::future<std::vector<Prepared>> files =
      std::async(card ? std::launch::async : std::launch::deferred, [&] { return read_all(options); });
  std::shared_ptr<device::Device> device = device::open_device(options[0].device, options[0].threads);
  log_debug("{}: opened", device->name());
  const int64_t limit = options[0].memory_limit.on(device->memory(), device->name());
  Ledger::of(*device).set_limit(limit);
  auto engines = open_on(device, files.get(), limit, residency);
  // What driver and libraries hold is known now. More than was planned, and the plan is made again before a batch runs.
  const plan::Plan& plan = engines[0]->plan();
  if (!plan::found_larger_context(*device, plan.precision, plan.device.context_bytes, held_bytes(*device),
                                  "planning again"))
    return engines;
  engines.clear();
  return open_on(device, read_all(options), limit, residency);
}

std::vector<Engine::Prepared> Engine::read_all(const std::vector<EngineOptions>& options) {
  std::vector<Prepared> all;
  for (const EngineOptions& o : options) all.push_back(read_files(o));
  log_debug("files of {} are read", format_count(static_cast<int64_t>(all.size()), "model"));
  return all;
}

std::vector<std::unique_ptr<Engine>> Engine::open_on(std::shared_ptr<device::Device> device,
                                                     std::vector<Prepared> prepared, int64_t limit_bytes,
                                                     plan::Residency residency) {
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<plan::PlanRequest> requests;
  for (Prepared& one : prepared) {
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
      // For measuring what overlap brings: fewer batches in flight than planned.
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
  log_debug("planned, and memory for batches is there");
  for (size_t i = 0; i < engines.size(); ++i) {
    Engine& engine = *engines[i];
    engine.scheduler_ = scheduler;
    engine.plan_ = turns.plans[i];
    scheduler->add_room({requests[i].shape, engine.plan_, forwards[i]});
    engine.host_ = std::make_unique<ModelHost>(engine.options_.model_dir, engine.options_.tagger_dir, engine.facts_,
                                               requests[i].shape, engine.plan_, std::move(forwards[i]),
                                               scheduler->queue(), engine.one_batch(requests[i].most_tokens));
    scheduler->add(*engine.host_);
    if (turns.all_resident || i == 0) engine.host_->load();
    engine.plan_.gemm_choices = ops::gemm_choices(scheduler->queue().stream());
  }
  return engines;
}

std::unique_ptr<Engine> Engine::open_beside(const Engine& other, const EngineOptions& options, bool other_stays) {
  const std::shared_ptr<Scheduler>& scheduler = other.scheduler_;
  device::Device& device = scheduler->queue().device();
  Prepared prepared = read_files(options);
  scheduler->open_device();  // its profile asks it
  resolve(prepared, device, Ledger::of(device).limit_bytes());
  std::optional<Scheduler::Room> room =
      scheduler->find_room(prepared.request, first_output(prepared.request, options.raw_scores));
  if (!room) {
    ScopedZone zone(Zone::plan);
    room = plan_within(scheduler->queue(), prepared.request, options.raw_scores);
    scheduler->add_room(*room);
  }
  std::unique_ptr<Engine> engine = std::move(prepared.engine);
  engine->scheduler_ = scheduler;
  engine->plan_ = room->plan;
  engine->host_ = std::make_unique<ModelHost>(options.model_dir, options.tagger_dir, engine->facts_, room->shape,
                                              engine->plan_, std::move(room->forwards), scheduler->queue());
  scheduler->add(*engine->host_);
  // Captured while it is loaded, when others are answered between two graphs, not with its first text.
  scheduler->call([&] {
    if (other.host_->wants_small_batches()) engine->host_->want_small_batches();
  });
  scheduler->load(*engine->host_, other_stays ? other.host_.get() : nullptr);
  return engine;
}

Scheduler::Room Engine::plan_within(DeviceQueue& queue, plan::PlanRequest request, bool raw_scores) {
  const device::Device& device = queue.device();
  const int64_t limit = request.limit_bytes;
  const auto plan_under = [&](int64_t bytes) -> std::optional<Scheduler::Room> {
    request.limit_bytes = bytes;
    Scheduler::Room room{request.shape, solve(request), {}};
    plan::Plan& p = room.plan;
    p.staging_depth = std::min(p.staging_depth, std::max(1, queue.size().depth));
    room.forwards = forwards_of(request, p, raw_scores);
    QueueSize needed;
    needed.cover(p, room.forwards, request.shape);
    if (!queue.size().holds(needed, device.kind())) return std::nullopt;
    // What loading holds beyond the queue's share counts as the model's own.
    if (needed.loading_bytes > queue.size().loading_bytes)
      p.add(memory::Tag::activations, "loading more", needed.loading_bytes - queue.size().loading_bytes);
    p.limit_bytes = limit;
    return room;
  };
  std::optional<Scheduler::Room> best = plan_under(limit);
  if (best == std::nullopt) {
    // Less limit, smaller batches: the largest that the queue takes.
    int64_t fits = least_limit(request), too_much = limit;
    best = plan_under(fits);
    while (best && too_much - fits > too_much / 16) {
      const int64_t middle = fits + (too_much - fits) / 2;
      if (auto room = plan_under(middle)) {
        best = std::move(room);
        fits = middle;
      } else {
        too_much = middle;
      }
    }
  }
  if (!best)
    fail(ErrorCode::does_not_fit, Remedy{"start again with it"},
         "the batches of the models that are there leave no room for one text of {} tokens of this one",
         request.max_length);
  const int64_t alone =
      Ledger::of(queue.device()).context_bytes() + queue.bytes() + total_bytes(best->plan.own_parts());
  if (alone > limit)
    fail(ErrorCode::does_not_fit, "does not fit in {} beside the batches of the models that are there: {} are needed",
         format_bytes(limit), format_bytes(alone));
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
      fail(ErrorCode::usage, "`labels`: {} has no label {}; it has {}", dir.string(), own, fmt::join(labels, ", "));
    renamed[static_cast<size_t>(found - labels.begin())] = name;
  }
  labels = std::move(renamed);
  for (auto label = labels.begin(); label != labels.end(); ++label)
    if (std::find(labels.begin(), label, *label) != label)
      fail(ErrorCode::usage, "`labels`: two labels of {} would be called {}", dir.string(), *label);
}

}  // namespace

// All that does not ask for the device.
Engine::Prepared Engine::read_files(const EngineOptions& options) {
  auto engine = std::unique_ptr<Engine>(new Engine);
  engine->options_ = options;
  engine->facts_ = facts_of(options.model_dir, options.tagger_dir);
  hub::HfConfig& config = engine->config_;
  model::ModelShape shape = model::read_shape(options.model_dir, &config);
  rename_labels(config.id2label, options.labels, options.model_dir);
  if (!options.tagger_dir.empty()) {
    hub::HfConfig tagger;
    shape = both_heads(shape, model::read_shape(options.tagger_dir, &tagger));
    engine->tags_ = tagger.id2label;
  }
  engine->tokenizer_ = text::Tokenizer::load(options.model_dir);
  const text::Tokenizer& tokenizer = *engine->tokenizer_;
  if (tokenizer.vocab_size() > shape.vocab)
    fail(ErrorCode::bad_model,
         "{}: the tokenizer's largest id is {}, the embedding table has {} rows (config.json vocab_size)",
         options.model_dir.string(), tokenizer.vocab_size() - 1, shape.vocab);

  plan::PlanRequest request;
  request.shape = shape;
  if (options.output) {
    request.output = *options.output;
  } else if (!options.tagger_dir.empty()) {
    request.output = model::Output::token_scores_and_logits;
  } else if (shape.sequence_classes > 0) {
    request.output = options.raw_scores ? model::Output::sequence_logits : model::Output::sequence_scores;
  } else if (shape.token_classes > 0) {
    request.output = model::Output::token_scores;
  } else {
    fail(ErrorCode::bad_model,
         "{}: has no classification head (architectures: {}); fine-tune one with `brim train`, or use `brim embed` for "
         "its vectors",
         options.model_dir.string(), config.architectures.empty() ? "none" : config.architectures[0]);
  }
  int64_t longest = std::min(shape.max_tokens(), tokenizer.model_max_length().value_or(shape.max_tokens()));
  const auto special = static_cast<int64_t>(tokenizer.prefix().size() + tokenizer.suffix().size());
  if (options.max_length > longest)
    log_warning("`max_length={}`: {} takes {} tokens at most, so {} it is{}", options.max_length,
                options.model_dir.string(), longest, longest,
                options.long_text == LongText::truncate ? "; `long_text=window-mean` reads longer texts whole" : "");
  if (options.max_length > 0) longest = std::min(longest, options.max_length);
  if (longest <= special)
    fail(ErrorCode::usage, "`max_length={}`: the model's {} special tokens leave no room for text", longest, special);
  request.max_length = longest;
  request.fill = options.fill;
  return {std::move(engine), std::move(request)};
}

void Engine::resolve(Prepared& prepared, device::Device& device, int64_t limit_bytes) {
  Engine& engine = *prepared.engine;
  const EngineOptions& options = engine.options_;
  plan::PlanRequest& request = prepared.request;
  request.device = plan::local_profile(device);
  const plan::PrecisionChoice choice =
      choose_precision(options.precision, request.device, engine.config_, options.model_dir);
  request.precision = choice.precision;
  engine.precision_reason_ = choice.reason;
  request.limit_bytes = limit_bytes;
  request.device = plan::measured_profile(device, request.precision, limit_bytes);
  request.device.context_bytes = std::max(request.device.context_bytes, Ledger::of(device).context_bytes());
  add_host_memory(request, options.model_dir);
  if (device.kind() == device::DeviceKind::cuda) request.most_tokens = kMostTokensPerByte * options.input_bytes;
}

int64_t Engine::one_batch(int64_t most_tokens) const {
  if (most_tokens == 0 || most_tokens > plan_.token_budget) return 0;
  return std::max<int64_t>(1, options_.input_bytes / kUsualBytesPerToken);
}

namespace {

Error too_long(const char* what, int64_t tokens, int64_t longest) {
  return Error(ErrorCode::bad_data, fmt::format("the {} has {} tokens, the model takes {}", what, tokens, longest),
               {"set `long_text=truncate` or `long_text=window-mean`"});
}

}  // namespace

int64_t Engine::width() const { return output_width(shape(), output()); }

std::optional<Error> Engine::tokenize(std::string_view text, TokenizedTexts& out, const TextOptions& options) const {
  const size_t begin = out.ids.size();
  tokenizer_->encode_ids(text, out.ids);
  const auto prefix = static_cast<int64_t>(tokenizer_->prefix().size()),
             suffix = static_cast<int64_t>(tokenizer_->suffix().size());
  int64_t length = static_cast<int64_t>(out.ids.size() - begin);
  if (length == 0) {  // a tokenizer without special tokens and an empty text: something must be computed
    out.ids.push_back(std::max(0, tokenizer_->unk_id()));
    length = 1;
  }
  TokenizedText t;
  t.first_window = out.windows.size();
  t.tokens = static_cast<int32_t>(length);
  const int64_t longest = plan_.max_length;
  if (length <= longest) {
    out.windows.push_back({begin, static_cast<int32_t>(length), 0});
    t.windows = 1;
  } else if (options.long_text == LongText::error) {
    out.ids.resize(begin);
    return too_long("text", length, longest);
  } else {
    const int64_t content = length - prefix - suffix, room = longest - prefix - suffix;
    const bool windows = options.long_text != LongText::truncate;
    t.truncated = !windows;
    if (!windows) {
      const int64_t first = options.keep_end ? content - room : 0;
      const auto ids = out.ids.begin() + static_cast<std::ptrdiff_t>(begin);
      if (first > 0) std::copy(ids + prefix + first, ids + prefix + first + room, ids + prefix);
      std::copy(ids + prefix + content, ids + length, ids + prefix + room);
      out.ids.resize(begin + static_cast<size_t>(longest));
      out.windows.push_back({begin, static_cast<int32_t>(longest), static_cast<int32_t>(first)});
      t.windows = 1;
    } else {
      // The last window is moved back so that it is full: no window is a stub. A tag needs words on both sides, so a
      // tagger's windows share tokens.
      const bool tags =
          options.tags || output() == model::Output::token_scores || output() == model::Output::token_logits;
      const int64_t asked = options.overlap < 0 ? room / 4 : options.overlap;
      const int64_t step = tags ? room - std::min(asked, room / 2) : room;
      const std::vector<int32_t> all(out.ids.begin() + static_cast<std::ptrdiff_t>(begin), out.ids.end());
      out.ids.resize(begin);
      for (int64_t at = 0, first = -1; first < content - room; at += step) {
        first = std::min(at, content - room);
        out.windows.push_back({out.ids.size(), static_cast<int32_t>(longest), static_cast<int32_t>(first)});
        out.ids.insert(out.ids.end(), all.begin(), all.begin() + prefix);
        out.ids.insert(out.ids.end(), all.begin() + prefix + first, all.begin() + prefix + first + room);
        out.ids.insert(out.ids.end(), all.end() - suffix, all.end());
        ++t.windows;
      }
    }
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
      return Error(ErrorCode::bad_data, fmt::format("{} is no token: the model has {}", id, shape().vocab));
  TokenizedText t;
  t.first_window = out.windows.size();
  t.tokens = static_cast<int32_t>(ids.size());
  const size_t length = std::min(ids.size(), longest), last = ids.size() - length;
  t.truncated = last > 0 && options.long_text == LongText::truncate;
  for (size_t at = t.truncated && options.keep_end ? last : 0;; at = std::min(at + length, last)) {
    out.windows.push_back({out.ids.size(), static_cast<int32_t>(length), static_cast<int32_t>(at)});
    out.ids.insert(out.ids.end(), ids.begin() + static_cast<std::ptrdiff_t>(at),
                   ids.begin() + static_cast<std::ptrdiff_t>(at + length));
    ++t.windows;
    if (t.truncated || at == last) break;
  }
  out.texts.push_back(t);
  return std::nullopt;
}

std::optional<Error> Engine::why_no_pairs() const {
  if (output() == model::Output::hidden)
    return Error(ErrorCode::usage, "a vector per token is given for single texts, not pairs");
  if (is_per_token(output()))
    return Error(ErrorCode::bad_model,
                 fmt::format("{}: gives tags to words of single texts, not pairs", options_.model_dir.string()));
  return text::why_no_pairs(*tokenizer_, options_.model_dir, shape().types, plan_.max_length);
}

std::optional<Error> Engine::tokenize(std::string_view text, std::optional<std::string_view> pair, TokenizedTexts& out,
                                      const TextOptions& options) const {
  if (!pair) return tokenize(text, out, options);
  if (auto problem = why_no_pairs()) return problem;
  const size_t begin = out.ids.size();
  const int64_t longest = plan_.max_length;
  TokenizedText t;
  t.first_window = out.windows.size();
  const auto add_window = [&](size_t at) {
    out.windows.push_back({at, static_cast<int32_t>(out.ids.size() - at), 0});
    ++t.windows;
  };
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
    const size_t special = tokenizer_->pair()->special(), room = static_cast<size_t>(longest) - special;
    // The first text stands beside every part of the second; where it would take more than half of the room, it ends.
    const size_t kept = std::min(first.size(), std::max(room / 2, room - std::min(room, second.size())));
    const size_t part = room - kept;
    t.tokens = static_cast<int32_t>(special + first.size() + second.size());
    t.truncated = kept < first.size();
    for (size_t at = 0; at == 0 || at < second.size(); at += part) {
      const size_t from = second.size() > part ? std::min(at, second.size() - part) : 0, window = out.ids.size();
      const std::span<const int32_t> a(first), b(second);
      tokenizer_->join_pair(a.first(kept), b.subspan(from, std::min(part, second.size() - from)), out.ids);
      add_window(window);
      if (part == 0) break;
    }
  }
  out.texts.push_back(t);
  return std::nullopt;
}

std::vector<std::string> Engine::tune(double seconds_per_shape) {
  if (device().kind() != device::DeviceKind::cuda) return {};
  // Texts of tweet length: one, two, … 64 of them as callers give them, and a full batch as files do, so that every
  // product is met at its real size.
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

std::unique_ptr<Bulk> Engine::bulk(Bulk::Collect collect) {
  return std::make_unique<Bulk>(*scheduler_, *host_, pack_limits().tokens, std::move(collect));
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

std::unique_ptr<Interactive> Engine::interactive(Interactive::Answer answer, double most_seconds, int64_t most_bytes,
                                                 Heads heads) {
  BRIM_CHECK(heads == Heads::own || !tags_.empty(), "a pass of two heads, where there is one");
  prepare_small();
  Interactive::Limits limits;
  limits.pack = {serving_tokens(), plan_.max_sequences};
  limits.position_offset = shape().position_offset;
  limits.pass = static_cast<size_t>(heads);
  const model::Output given = heads == Heads::own ? output() : model::Output::token_scores_and_logits;
  limits.width = output_width(shape(), given);
  limits.per_token = is_per_token(given);
  limits.tokens_per_second = plan_.tokens_per_second;
  limits.most_seconds = most_seconds;
  limits.most_bytes = most_bytes;
  return std::make_unique<Interactive>(*scheduler_, *host_, limits, std::move(answer));
}

void Engine::merge_windows(const float* results, size_t windows, float* out, LongText how, bool raw) const {
  const auto K = static_cast<size_t>(width());
  const bool scores = options_.raw_scores && output() == model::Output::sequence_logits && !raw && !shape().raw_scores;
  std::vector<float> window(K);
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
}

RunStats Engine::stats() const {
  RunStats stats = run_stats(&shape(), &plan_, counted());
  stats.peak_bytes = held_bytes(device());
  return stats;
}

std::vector<float> Engine::run_windows(const TokenizedTexts& texts) {
  prepare_small();
  const auto K = static_cast<size_t>(width());
  const bool per_token = is_per_token(output());
  std::vector<float> results((per_token ? texts.ids.size() : texts.windows.size()) * K);
  WindowQueue queue(*this, [&](const WindowResults& done) {
    for (size_t i = 0; i < done.size(); ++i) done.put(i, texts, done.ticket(i), results);
  });
  for (size_t i = 0; i < texts.windows.size(); ++i)
    queue.push({texts.ids.data() + texts.windows[i].begin, texts.windows[i].length, i});
  // What fits one batch may be a graph: by its content alone, so that the same texts give the same bytes.
  queue.submit_all(Launch::graph);
  queue.finish();
  busy_seconds_ += queue.busy_seconds();
  return results;
}

std::vector<float> Engine::score(const TokenizedTexts& tokens) {
  BRIM_CHECK(!model::is_per_token(output()), "score() on a token model");
  const std::vector<float> windows = run_windows(tokens);
  const auto K = static_cast<size_t>(width());
  std::vector<float> scores(tokens.texts.size() * K);
  for (size_t t = 0; t < tokens.texts.size(); ++t)
    merge_windows(windows.data() + tokens.texts[t].first_window * K, tokens.texts[t].windows, scores.data() + t * K);
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

std::vector<std::vector<Entity>> Engine::entities(std::span<const std::string_view> texts,
                                                  const TokenizedTexts& tokens) {
  BRIM_CHECK(model::is_per_token(output()), "entities() on a model without token classes");
  const std::vector<float> windows = run_windows(tokens);
  std::vector<std::vector<Entity>> entities;
  std::vector<float> scores;
  for (size_t t = 0; t < texts.size(); ++t) {
    const text::Encoding encoding = tokenizer_->encode(texts[t]);
    token_scores(tokens, t, encoding, windows, scores);
    entities.push_back(group_entities(texts[t], encoding, tokenizer_->kind(), scores.data(), labels(), aggregation()));
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
  size_t known = 0;  // content tokens that windows so far hold
  for (size_t w = text.first_window; w < text.first_window + text.windows; ++w) {
    const auto& window = texts.windows[w];
    const size_t content = static_cast<size_t>(window.length) - prefix - suffix;
    const auto first = static_cast<size_t>(window.first_content);
    // Of tokens that two windows hold, the earlier window has the first half: there they are farther from its edge.
    const size_t from = w == text.first_window ? first : (known + first + 1) / 2;
    std::copy_n(windows.begin() + static_cast<std::ptrdiff_t>((window.begin + prefix + from - first) * K),
                (first + content - from) * K, out.begin() + static_cast<std::ptrdiff_t>((prefix + from) * K));
    known = first + content;
  }
  // An unscored token must not pick label 0 by accident: give it the outside tag where there is one.
  const auto outside = static_cast<size_t>(std::find(labels.begin(), labels.end(), "O") - labels.begin());
  if (outside == labels.size()) return;
  for (size_t i = 0; i < encoding.ids.size(); ++i)
    if (std::all_of(out.begin() + static_cast<std::ptrdiff_t>(i * K),
                    out.begin() + static_cast<std::ptrdiff_t>((i + 1) * K), [](float v) { return v == 0; }))
      out[i * K + outside] = 1;
}

}  // namespace brim::engine
