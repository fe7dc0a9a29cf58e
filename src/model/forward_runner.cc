// SPDX-License-Identifier: Apache-2.0
#include "model/forward_runner.h"

#include <algorithm>

#include "base/error.h"
#include "base/thread_pool.h"
#include "model/weights.h"
#include "ops/rows.h"

namespace brim::model {

using ops::BatchView;
using tensor::TensorView;

namespace {

// Tokens per chunk of a core, or the length of the longest text if larger. A chunk reads a layer's weights once.
constexpr int64_t kChunkTokens = 256;
// Private cache of a core. If the activations of kChunkTokens fit in it, chunks have that size regardless of the
// longest text: 5 to 21 % faster for the default model on two Sapphire Rapids cores. Otherwise longer chunks read
// weights less often.
constexpr int64_t kCoreCacheBytes = 2 << 20;
// Below this many tokens per core, splitting each op is faster than distributing chunks.
constexpr int64_t kFewTokensPerThread = 48;

struct Recording {
  memory::LifetimeRecorder recorder;
  device::NullStream stream;
  Exec exec;
  Recording(ops::Precision precision, device::DeviceKind target, device::Isa isa, int threads)
      : stream(&recorder, target, isa),
        exec{stream, recorder, activation_type(precision, target), precision, threads} {}
  memory::Placement placement() const { return place(recorder.lifetimes()); }
};

// Destination of layer l's result: over its input, or in the buffer allocated for first tokens.
Hidden layer_result(const Hidden& x, const TensorView& first_tokens) {
  return first_tokens ? Hidden{first_tokens} : Hidden{.x = x.x, .narrow = x.narrow, .scales = x.scales};
}

}  // namespace

int64_t output_width(const ModelShape& s, Output output) {
  switch (output) {
    case Output::sequence_logits:
    case Output::sequence_scores:
      return s.sequence_classes;
    case Output::token_logits:
    case Output::token_scores:
      return s.token_classes;
    case Output::token_scores_and_logits:
      return s.token_classes + s.sequence_classes;
    case Output::word_scores:
      return s.word_width;
    default:
      return s.hidden;
  }
}

bool batches_adapters(const ModelShape& s, Output output) {
  return s.adapter_width > 0 && s.distances.span == 0 && output != Output::token_scores_and_logits;
}

BatchView describe_batch(int64_t tokens, int64_t sequences, int64_t longest) {
  auto* nowhere = reinterpret_cast<void*>(uintptr_t{1} << 12);
  BatchView b;
  b.T = tokens;
  b.B = sequences;
  b.S = longest;
  b.ids = b.positions = TensorView(nowhere, tensor::DType::i32, {tokens});
  b.starts = TensorView(nowhere, tensor::DType::i32, {sequences + 1});
  b.order = TensorView(nowhere, tensor::DType::i32, {sequences});
  b.n_long = longest > ops::kShortTokens ? sequences : 0;
  return b;
}

TensorView forward(Exec& e, const Architecture& model, const Params& params, const BatchView& batch, Output output,
                   AdapterRanges adapters) {
  const ModelShape& s = model.shape();
  const Pass p{e, s, params, batch, nullptr, adapters};
  Hidden x{p.activations(batch.T, s.hidden)};
  if (model.wanted_by(params, 0).quantise) x.narrow = p.narrow(batch.T, s.hidden);
  if (p.reads_codes(model.reader_of(0))) {
    x.narrow = p.codes(batch.T, s.hidden);
    x.scales = p.f32({batch.T});
  }
  model.embed(p, x, nullptr);
  const bool first_tokens = wants_first_tokens(s, output);
  for (int64_t l = 0; l < s.layers; ++l) {
    const bool on_first = first_tokens && l + 1 == s.layers;
    const TensorView first = on_first ? p.activations(batch.B, s.hidden) : TensorView();
    x = model.layer(p, l, x, on_first, layer_result(x, first), nullptr);
  }
  return model.finish(p, x.x, first_tokens, output);
}

const memory::Placement& ForwardPlan::largest_layer() const {
  const memory::Placement* worst = &last_layer;
  for (const memory::Placement& layer : layers)
    if (layer.peak_bytes >= worst->peak_bytes) worst = &layer;
  return *worst;
}

int64_t ForwardPlan::worker_bytes() const { return largest_layer().peak_bytes; }

int64_t ForwardPlan::arena_bytes() const {
  return std::max(whole.peak_bytes, workers > 0 ? shared.peak_bytes + workers * worker_bytes() : 0);
}

memory::TagBytes ForwardPlan::arena_tags() const {
  if (workers == 0 || whole.peak_bytes >= shared.peak_bytes + workers * worker_bytes()) return whole.at_peak;
  memory::TagBytes tags = shared.at_peak;
  const memory::Placement& worst = largest_layer();
  for (int t = 0; t < memory::kTagCount; ++t) tags.bytes[t] += workers * worst.at_peak.bytes[t];
  return tags;
}

ForwardPlan plan_forward(const ModelShape& shape, ops::Precision precision, device::DeviceKind target, device::Isa isa,
                         int threads, BatchLimits limits, Output output) {
  const auto model = make_architecture(shape);
  const Params weights = describe_weights(shape, precision, target, isa);
  ForwardPlan plan;
  plan.limits = limits;
  plan.output = output;
  plan.precision = precision;
  const bool first = wants_first_tokens(shape, output);
  auto record_whole = [&](BatchLimits l) {
    Recording r(precision, target, isa, threads);
    forward(r.exec, *model, weights, describe_batch(l.tokens, l.sequences, l.longest), output);
    plan.whole = r.placement();
    plan.ops = r.recorder.ops();
    return std::pair(r.recorder.flops(), r.recorder.bytes());
  };
  if (target != device::DeviceKind::cpu) {
    std::tie(plan.flops, plan.bytes) = record_whole(limits);
    return plan;
  }

  plan.split = limits;
  plan.split.tokens = std::min(limits.tokens, std::max(limits.longest, kFewTokensPerThread * threads));
  plan.split.sequences = std::min(limits.sequences, plan.split.tokens);
  std::tie(plan.flops, plan.bytes) = record_whole(plan.split);
  plan.chunk_tokens = std::max(kChunkTokens, limits.longest);
  plan.workers = threads;
  const BatchView chunk =
      describe_batch(plan.chunk_tokens, std::min(plan.chunk_tokens, limits.sequences), limits.longest);
  const tensor::DType activation = activation_type(precision, target);
  {
    Recording r(precision, target, isa, threads);
    const BatchView all = describe_batch(limits.tokens, limits.sequences, limits.longest);
    const TensorView x = r.recorder.allocate(memory::Tag::activations, activation, {all.T, shape.hidden});
    const Pass p{r.exec, shape, weights, all};
    model->embed(p, {x}, nullptr);
    TensorView last = x;
    if (first) last = r.recorder.allocate(memory::Tag::activations, activation, {all.B, shape.hidden});
    r.recorder.on_use(x);
    r.recorder.on_use(last);
    r.recorder.on_op("layers", 0, 0);
    model->finish(p, last, first, output);
    plan.shared = r.placement();
  }
  const auto record_layer = [&](int64_t l, bool on_first) {
    Recording r(precision, target, isa, 1);
    const TensorView x(reinterpret_cast<void*>(uintptr_t{1} << 30), activation, {chunk.T, shape.hidden});
    const Pass p{r.exec, shape, weights, chunk};
    model->layer(p, l, {x}, on_first, layer_result({x}, on_first ? x.slice_rows(0, chunk.B) : TensorView()), nullptr);
    return r.placement();
  };
  for (int64_t l = 0; l + 1 < shape.layers; ++l)
    if (model->kind(l) == plan.layers.size()) plan.layers.push_back(record_layer(l, false));
  plan.last_layer = record_layer(shape.layers - 1, first);
  return plan;
}

ForwardRunner::ForwardRunner(const ModelShape& shape, const Params& weights, const ForwardPlan& plan, void* arena,
                             ThreadPool* pool)
    : model_(make_architecture(shape)), weights_(weights), plan_(plan), arena_(static_cast<char*>(arena)), pool_(pool) {
  const auto sequences = static_cast<size_t>(plan.limits.sequences);
  chunks_.reserve(sequences);
  starts_.reserve(2 * sequences);
}

TensorView ForwardRunner::run(device::Stream& stream, const BatchView& batch, AdapterRanges adapters) {
  const BatchLimits& limits = plan_.limits;
  BRIM_CHECK(batch.T <= limits.tokens && batch.B <= limits.sequences && batch.S <= limits.longest,
             "batch of {} tokens, {} sequences, longest {} exceeds the plan's {}, {}, {}", batch.T, batch.B, batch.S,
             limits.tokens, limits.sequences, limits.longest);
  if (stream.kind() == device::DeviceKind::cpu && plan_.workers > 0) {
    const bool few = batch.T < kFewTokensPerThread * plan_.workers || batch.B < plan_.workers;
    const bool fits_split = batch.T <= plan_.split.tokens && batch.B <= plan_.split.sequences;
    if (!(few && fits_split)) return run_chunked(static_cast<device::CpuStream&>(stream), batch, adapters);
  }
  memory::PlannedAllocator memory(arena_, &plan_.whole);
  Exec exec{stream, memory, activation_type(plan_.precision, stream.kind()), plan_.precision,
            pool_ != nullptr ? pool_->size() : 1};
  return forward(exec, *model_, weights_, batch, plan_.output, adapters);
}

// Fills chunks with adjacent sequences; the longest chunks run first, so that the tail is short.
void ForwardRunner::cut_chunks(const BatchView& batch, AdapterRanges adapters) {
  chunks_.clear();
  starts_.clear();
  adapters_.clear();
  const int32_t* starts = batch.starts.as<int32_t>();
  const bool fits = plan_.worker_bytes() / plan_.chunk_tokens * kChunkTokens <= kCoreCacheBytes;
  // All workers get the same number of chunks of similar size: a short one at the end would leave the others idle.
  const int64_t round = plan_.workers * (fits ? kChunkTokens : plan_.chunk_tokens);
  const int64_t wanted = plan_.workers * ((batch.T + round - 1) / round);
  for (int64_t b = 0; b < batch.B;) {
    Chunk c{b, 0, starts[b], 0, 0, starts_.size()};
    starts_.push_back(0);
    const int64_t left = wanted - static_cast<int64_t>(chunks_.size());
    const int64_t goal = left > 1 ? starts[b] + (batch.T - starts[b]) / left : batch.T;  // target end of this chunk
    for (; b < batch.B; ++b) {
      const int64_t begin = starts[b], end = starts[b + 1];
      if (c.sequences > 0 && (end - c.first_row > plan_.chunk_tokens || end - goal > goal - begin)) break;
      c.longest = std::max<int64_t>(c.longest, end - begin);
      c.rows = end - c.first_row;
      starts_.push_back(static_cast<int32_t>(c.rows));
      ++c.sequences;
    }
    c.adapters_at = adapters_.size();
    for (const AdapterRange& r : adapters) {
      const int64_t sequence = std::max(r.sequence, c.first_sequence), end_sequence = std::min(r.end_sequence, b);
      if (sequence >= end_sequence) continue;
      adapters_.push_back({r.params, sequence - c.first_sequence, end_sequence - c.first_sequence,
                           starts[sequence] - c.first_row, starts[end_sequence] - c.first_row});
      ++c.adapters;
    }
    chunks_.push_back(c);
  }
  std::stable_sort(chunks_.begin(), chunks_.end(), [](const Chunk& a, const Chunk& b) { return a.rows > b.rows; });
}

TensorView ForwardRunner::run_chunked(device::CpuStream& stream, const BatchView& batch, AdapterRanges adapters) {
  cut_chunks(batch, adapters);
  memory::PlannedAllocator shared(arena_, &plan_.shared);
  const tensor::DType activation = tensor::DType::f32;
  Exec exec{stream, shared, activation, plan_.precision, plan_.workers};
  const ModelShape& s = model_->shape();
  const bool first = wants_first_tokens(s, plan_.output);
  const Pass whole{exec, s, weights_, batch, nullptr, adapters};
  const TensorView x = shared.allocate(memory::Tag::activations, activation, {batch.T, s.hidden});
  model_->embed(whole, {x}, nullptr);
  TensorView last = x;
  if (first) last = shared.allocate(memory::Tag::activations, activation, {batch.B, s.hidden});
  char* worker_base = arena_ + plan_.shared.peak_bytes;

  for (int64_t l = 0; l < s.layers; ++l) {
    const bool is_last = l + 1 == s.layers;
    auto run_chunk = [&](size_t i, int worker) {
      const Chunk& c = chunks_[i];
      BatchView part;
      part.T = c.rows;
      part.B = c.sequences;
      part.S = c.longest;
      part.positions = batch.positions.slice_rows(c.first_row, c.first_row + c.rows);
      part.starts = TensorView(starts_.data() + c.starts_at, tensor::DType::i32, {c.sequences + 1});
      device::CpuStream alone(nullptr, stream.isa());
      memory::PlannedAllocator memory(worker_base + worker * plan_.worker_bytes(),
                                      is_last ? &plan_.last_layer : &plan_.layers[model_->kind(l)]);
      Exec e{alone, memory, activation, plan_.precision, 1};
      const TensorView rows = x.slice_rows(c.first_row, c.first_row + c.rows);
      const bool on_first = is_last && first;
      const TensorView to = on_first ? last.slice_rows(c.first_sequence, c.first_sequence + c.sequences) : TensorView();
      const AdapterRanges own = AdapterRanges(adapters_).subspan(c.adapters_at, c.adapters);
      model_->layer({e, s, weights_, part, nullptr, own}, l, {rows}, on_first, layer_result({rows}, to), nullptr);
    };
    if (pool_ != nullptr) {
      pool_->parallel_for(chunks_.size(), run_chunk);
    } else {
      for (size_t i = 0; i < chunks_.size(); ++i) run_chunk(i, 0);
    }
  }
  return model_->finish(whole, last, first, plan_.output);
}

}  // namespace brim::model
