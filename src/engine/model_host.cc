// SPDX-License-Identifier: Apache-2.0
#include "engine/model_host.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/error.h"
#include "base/log.h"
#include "base/timeline.h"
#include "device/cuda_info.h"
#include "device/graph.h"
#include "engine/device_queue.h"
#include "hub/model_dir.h"

namespace brim::engine {

std::string facts_of(const hub::ModelFiles& files, const std::filesystem::path& tagger) {
  return hub::model_facts(files) + (tagger.empty() ? "" : hub::model_facts(tagger));
}

namespace {

// Powers of two, like the sizes of batches and buckets.
constexpr std::array<double, 14> kTokenBounds = {16,   32,   64,   128,   256,   512,   1024,
                                                 2048, 4096, 8192, 16384, 32768, 65536, 131072};
constexpr std::array<double, 13> kSequenceBounds = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};
constexpr std::array<double, 10> kFillBounds = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1};
constexpr std::array<double, 9> kErrorBounds = {0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10};

ValueCounts none_of(std::span<const double> bounds) { return {bounds, std::vector<int64_t>(bounds.size() + 1)}; }

void count_value(ValueCounts& values, double value) {
  const auto place = std::lower_bound(values.bounds.begin(), values.bounds.end(), value) - values.bounds.begin();
  ++values.counts[static_cast<size_t>(place)];
  values.sum += value;
}

}  // namespace

ModelHost::Work::Work()
    : batch_tokens(none_of(kTokenBounds)),
      batch_sequences(none_of(kSequenceBounds)),
      batch_fill(none_of(kFillBounds)),
      prediction_error(none_of(kErrorBounds)) {}

void ModelHost::Work::count_batch(const batch::PackedBatch& batch, int64_t most_tokens, double busy) {
  count_part(batch, 0, batch.sequences(), most_tokens, busy);
}

void ModelHost::Work::count_part(const batch::PackedBatch& batch, int64_t begin, int64_t end, int64_t most_tokens,
                                 double busy) {
  const auto start = [&](int64_t sequence) -> double { return batch.starts[static_cast<size_t>(sequence)]; };
  const double part = start(end) - start(begin), whole = std::max<double>(1, static_cast<double>(batch.tokens()));
  ++batches;
  tokens += static_cast<int64_t>(part);
  for (int64_t s = begin; s < end; ++s) sum_squares += (start(s + 1) - start(s)) * (start(s + 1) - start(s));
  busy_seconds += busy * part / whole;
  count_value(batch_tokens, part);
  count_value(batch_sequences, static_cast<double>(end - begin));
  count_value(batch_fill, part / static_cast<double>(std::max<int64_t>(1, most_tokens)));
}

void ModelHost::Work::count_prediction(double predicted, double measured) {
  if (measured > 0) count_value(prediction_error, std::abs(predicted - measured) / measured);
}

ModelHost::ModelHost(hub::ModelFiles files, std::filesystem::path tagger, std::string facts,
                     const model::ModelShape& shape, const plan::Plan& plan, std::vector<model::ForwardPlan> forwards,
                     DeviceQueue& queue, int64_t one_batch, AdapterOfBase adapter)
    : files_(std::move(files)),
      tagger_(std::move(tagger)),
      facts_(std::move(facts)),
      shape_(shape),
      plan_(plan),
      forward_plans_(std::move(forwards)),
      queue_(queue),
      named_from_(named_from_tokens(plan, shape.layers)),
      one_batch_(one_batch),
      adapter_(std::move(adapter)) {}

ModelHost::~ModelHost() { unload(); }

int64_t ModelHost::own_bytes() const { return total_bytes(plan_.own_parts()); }

int64_t ModelHost::needed_bytes() const {
  return own_bytes() + (adapter_.base != nullptr ? adapter_.base->missing_bytes() : 0);
}

bool ModelHost::shares_batches_with(const ModelHost& other) const {
  if (base() == nullptr || base() != other.base()) return false;
  if (forward_plans_.size() != 1 || other.forward_plans_.size() != 1) return false;
  model::ModelShape shape = other.shape_;
  shape.adapter_width = shape_.adapter_width;
  return other.shape_.adapter_width > 0 && model::batches_adapters(shape_, plan_.output) && shape == shape_ &&
         plan_.output == other.plan_.output && plan_.max_length == other.plan_.max_length;
}

namespace {

constexpr double kRecentSeconds = 600;

double faded(double texts, int64_t since_ns, int64_t now_ns) {
  return texts * std::exp(-static_cast<double>(now_ns - since_ns) * 1e-9 / kRecentSeconds);
}

}  // namespace

double ModelHost::eviction_cost(int64_t now_ns) const {
  const double texts_per_second = faded(recent_texts_, recent_ns_, now_ns) / kRecentSeconds;
  return load_seconds() / static_cast<double>(std::max<int64_t>(1, loads())) * texts_per_second /
         static_cast<double>(std::max<int64_t>(1, own_bytes()));
}

void ModelHost::note_texts(int64_t texts, int64_t now_ns) {
  recent_texts_ = faded(recent_texts_, recent_ns_, now_ns) + static_cast<double>(texts);
  recent_ns_ = now_ns;
}

void ModelHost::load(const std::function<void()>& between) {
  if (resident()) return;
  const int64_t since = now_ns();
  device::Device& device = queue_.device();
  memory_ = memory::Ledger::of(device).reserve(files_.dir.filename().string(), plan_.own_parts());
  try {
    std::unique_ptr<model::Model> model = std::move(model_);
    if (model != nullptr) {
      model->unpark(device, &memory_);
    } else if (adapter_.base != nullptr) {
      load_adapter(between);
      model = std::move(model_);
    } else {
      require_same_files();
      // Kernels and algorithms do not depend on weight values: they are loaded in parallel with the weights.
      const auto while_loading = [&](const model::Model& coming, const std::function<bool()>& is_filled) {
        make_runners(coming);
        warm_up(between);
        while (between && !is_filled()) between();
      };
      model = model::Model::load_both(files_, tagger_, device, plan_.precision, &memory_, while_loading);
    }
    model_ = std::move(model);
    if (runners_.empty()) make_runners(*model_);
    residence_ = Residence::resident;
    weight_bytes_ = model_->slab_bytes();
    log_debug("{}: loaded", files_.text());
    if (wants_small_) capture(between);
  } catch (...) {
    unload();
    throw;
  }
  loads_.fetch_add(1, std::memory_order_relaxed);
  load_ns_.fetch_add(now_ns() - since, std::memory_order_relaxed);
}

// Plan, tokenizer and labels were read from the files when the model was opened.
void ModelHost::require_same_files() const {
  if (facts_of(files_, tagger_) != facts_)
    fail(ErrorCode::bad_model, Remedy{"reload the model"}, "{}{}: files have changed since the model was opened",
         files_.text(), tagger_.empty() ? "" : " or " + tagger_.string());
}

void ModelHost::load_adapter(const std::function<void()>& between) {
  require_same_files();
  std::shared_ptr<const model::Model> encoder = adapter_.base->acquire(queue_.device());
  uses_base_ = true;
  model_ = model::Model::load_adapter(std::move(encoder), files_, shape_, adapter_.ranks, queue_.device(), &memory_);
  make_runners(*model_);
  warm_up(between);
}

void ModelHost::make_runners(const model::Model& model) {
  ThreadPool* pool = queue_.device().kind() == device::DeviceKind::cpu
                         ? static_cast<device::CpuStream&>(queue_.stream()).pool()
                         : nullptr;
  for (const model::ForwardPlan& forward : forward_plans_)
    runners_.push_back(std::make_unique<model::ForwardRunner>(shape_, model.weights(), forward, queue_.arena(), pool));
  if (word_head_spec_)
    word_head_ = std::make_unique<WordHead>(*word_head_spec_, queue_.device(), queue_.stream(), &memory_);
}

void ModelHost::unload() {
  ScopedZone zone(Zone::unload_model);
  small_.clear();
  word_head_.reset();
  runners_.clear();
  model_.reset();
  memory_ = {};
  if (std::exchange(uses_base_, false)) adapter_.base->release();
  residence_ = Residence::disk;
}

void ModelHost::park() {
  if (!resident()) return;
  if (adapter_.base != nullptr) return unload();  // small, and its base may stay for others
  small_.clear();
  word_head_.reset();
  runners_.clear();
  try {
    model_->park(queue_.device());
  } catch (const std::exception& error) {
    log_warning("{}: cannot keep the weights in host memory: {}", files_.text(), error.what());
    return unload();
  }
  memory_ = {};
  residence_ = Residence::parked;
}

void ModelHost::want_small_batches() {
  wants_small_ = !word_head_spec_ && queue_.device().kind() == device::DeviceKind::cuda &&
                 (!queue_.is_open() || can_capture(queue_.stream()));
  if (resident()) capture({});
}

void ModelHost::capture(const std::function<void()>& between) {
  if (!wants_small_ || !small_.empty()) return;
  const bool loaded = queue_.has_run(shape_, plan_, DeviceQueue::Batches::captured);
  for (size_t pass = 0; pass < forward_plans_.size(); ++pass) {
    const model::Output output = forward_plans_[pass].output;
    small_.push_back(std::make_unique<SmallBatches>(queue_.device(), queue_.stream(), *runners_[pass], plan_.limits(),
                                                    output, output_width(shape_, output), &memory_, loaded, between));
  }
  queue_.note_run(shape_, plan_, DeviceQueue::Batches::captured);
}

// Runs batches of every size class once, so that kernels and algorithms are loaded and device memory stays constant; or
// only the single expected batch, at its approximate size.
void ModelHost::warm_up(const std::function<void()>& between) {
  if (queue_.device().kind() != device::DeviceKind::cuda || queue_.has_run(shape_, plan_, DeviceQueue::Batches::all))
    return;
  ScopedZone zone(Zone::warm_up);
  const bool once = one_batch_ > 0;
  if (!once) load_all_kernels(queue_.device());
  // Texts of four tokens: the numbers of tokens and sequences, which are the GEMM rows of the heads, take every
  // power of two. A single batch uses tweet-length texts.
  const std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(once ? 26 : 4, plan_.max_length)), 0);
  const auto ignore = [](const batch::PackedBatch&, const float*, double) {};
  // Every token but the first is a word, and that is its label.
  std::vector<batch::WordTokens> words;
  for (int32_t t = 1; word_head_ != nullptr && t < static_cast<int32_t>(ids.size()); ++t) words.push_back({t, 1});
  const std::vector<int32_t> labels{0};
  batch::Sequence text{ids.data(), static_cast<int32_t>(ids.size()), 0};
  if (word_head_ != nullptr) {
    text.words = {words, labels, word_head_->any_labels()};
    if (text.words.prepared != nullptr) text.words.labels = {};
  }
  for (int64_t tokens = once ? std::min(one_batch_, plan_.token_budget) : 4;;
       tokens = std::min(tokens * 2, plan_.token_budget)) {
    for (size_t pass = 0; pass < forward_plans_.size(); ++pass) {
      batch::PackedBatch batch;
      do batch.add(text, shape_.position_offset);
      while (batch.tokens() + static_cast<int64_t>(ids.size()) <= tokens && batch.sequences() < plan_.max_sequences);
      batch.finish();
      queue_.submit(*this, batch, ignore, Launch::ops, pass);
    }
    if (once || tokens >= plan_.token_budget) break;
    if (!between) continue;
    queue_.finish();
    between();
  }
  queue_.finish();
  if (!once) queue_.note_run(shape_, plan_, DeviceQueue::Batches::all);
}

}  // namespace brim::engine
