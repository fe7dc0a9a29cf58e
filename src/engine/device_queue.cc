// SPDX-License-Identifier: Apache-2.0
#include "engine/device_queue.h"

#include <algorithm>
#include <cstring>

#include "base/clock.h"
#include "base/error.h"
#include "base/units.h"
#include "engine/model_host.h"
#include "engine/word_staging.h"
#include "memory/placement.h"
#include "model/staging.h"
#include "ops/gemm_tuner.h"

namespace brim::engine {

struct DeviceQueue::Slot {
  batch::PackedBatch batch;
  device::DeviceBuffer host, result;  // staged integers; host copy of the result
  device::DeviceBuffer words;         // staged integers of words
  char* device = nullptr;             // device copy of the staged integers
  std::unique_ptr<device::Event> copying, copied, begin, end, collected;
  Collect collect;
  SmallBatches* graph = nullptr;  // set if launched as a graph
  int64_t launched_ns = 0;        // graphs only
  int64_t predicted_ns = 0;       // predicted duration
};

void QueueSize::cover(const plan::Plan& plan, const std::vector<model::ForwardPlan>& forwards,
                      const model::ModelShape& shape) {
  for (const model::ForwardPlan& forward : forwards) {
    if (forward.arena_bytes() > arena.total()) arena = forward.arena_tags();
    const int64_t rows = is_per_token(forward.output) ? plan.token_budget : plan.max_sequences;
    result_bytes = std::max(result_bytes, rows * output_width(shape, forward.output) * 4);
    if (forward.output == model::Output::word_scores)
      word_bytes = std::max(word_bytes, WordStaging::batch_bytes(plan.limits()));
  }
  staged_bytes = std::max(staged_bytes, staged_batch_bytes(plan.limits()));
  depth = std::max(depth, plan.staging_depth);
  for (const memory::LedgerEntry& part : plan.parts)
    if (part.owner == plan::kLoading) loading_bytes = std::max(loading_bytes, part.bytes);
}

bool QueueSize::holds(const QueueSize& needed, device::DeviceKind kind) const {
  if (needed.arena.total() > arena.total()) return false;
  return kind == device::DeviceKind::cpu ||  // a CPU stages nothing
         (needed.staged_bytes <= staged_bytes && needed.result_bytes <= result_bytes &&
          needed.word_bytes <= word_bytes && needed.depth <= depth);
}

DeviceQueue::DeviceQueue(std::shared_ptr<device::Device> device, const QueueSize& size, bool spares_library)
    : device_(std::move(device)), size_(size), spares_library_(spares_library) {
  take_memory();
}

void DeviceQueue::take_memory() {
  const QueueSize& size = size_;
  const bool on_cpu = device_->kind() == device::DeviceKind::cpu;
  plan::Plan shared;  // memory shared by all models, in the plan's categories
  shared.add(size.arena, plan::kForwardPass);
  if (!on_cpu) shared.add(memory::Tag::staging, plan::kBatchesInFlight, size.depth * size.staged_bytes);
  shared.add(memory::Tag::activations, plan::kLoading, size.loading_bytes);
  memory_ = memory::Ledger::of(*device_).reserve("batches", shared.parts);
  arena_ = memory::Ledger::allocate(*device_, &memory_, size.arena, plan::kForwardPass);
  compute_ = device_->make_stream();
  if (spares_library_)
    ops::spare_gemm_library(*compute_);
  else
    ops::load_gemm_choices(*compute_);
  if (fixes_algorithms_) ops::fix_gemm_algorithms(*compute_);
  if (on_cpu) return;
  copy_ = device_->make_stream();
  block_ = memory::Ledger::allocate(*device_, &memory_, memory::Tag::staging, plan::kBatchesInFlight,
                                    size.depth * size.staged_bytes);
  for (int i = 0; i < size.depth; ++i) {
    auto slot = std::make_unique<Slot>();
    slot->host = device_->allocate_host(static_cast<size_t>(size.staged_bytes));
    slot->device = static_cast<char*>(block_.data()) + i * size.staged_bytes;
    slot->result = device_->allocate_host(static_cast<size_t>(size.result_bytes));
    if (size.word_bytes > 0) slot->words = device_->allocate_host(static_cast<size_t>(size.word_bytes));
    slot->copying = make_event(*device_, true);
    slot->copied = make_event(*device_, true);
    slot->collected = make_event(*device_, true);
    slot->begin = make_event(*device_, true);
    slot->end = make_event(*device_, true);
    slots_.push_back(std::move(slot));
  }
}

DeviceQueue::~DeviceQueue() = default;

void DeviceQueue::fix_algorithms() {
  fixes_algorithms_ = true;
  ops::fix_gemm_algorithms(*compute_);
}

void DeviceQueue::close() {
  BRIM_CHECK(in_flight_ == 0, "queue closed with {} batches in flight", in_flight_);
  slots_.clear();
  next_ = 0;
  clock_.reset();
  block_ = {};
  arena_ = {};
  // If another queue of this process uses the same GPU, its library and context stay.
  const bool last = device_->allocated_bytes() == 0;
  if (last && compute_) ops::release_gemm_library(*compute_);
  compute_.reset();
  copy_.reset();
  memory_ = {};
  runs_.clear();
  if (const memory::LedgerEntry held = memory::Ledger::of(*device_).release_context(); held.bytes > 0) context_ = held;
  if (last) device_->close();
}

void DeviceQueue::open(int64_t model_bytes) {
  if (is_open()) return;
  try {
    device_->open();
    memory::Ledger::of(*device_).hold_context(context_.owner, context_.bytes, 0);
    const int64_t needed = size_.arena.total() + size_.depth * size_.staged_bytes + size_.loading_bytes + model_bytes;
    if (const device::MemoryInfo memory = device_->memory(); memory.free_bytes < needed)
      fail(ErrorCode::does_not_fit, "cannot reopen {}: {} needed, {} free", device_->name(), format_bytes(needed),
           format_bytes(memory.free_bytes));
    take_memory();
  } catch (...) {
    close();
    throw;
  }
}

DeviceQueue::Run DeviceQueue::run_of(const model::ModelShape& shape, const plan::Plan& plan, Batches batches) {
  return {shape, plan.precision, plan.output, plan.token_budget, plan.max_sequences, plan.max_length, batches};
}
bool DeviceQueue::has_run(const model::ModelShape& shape, const plan::Plan& plan, Batches batches) const {
  return std::find(runs_.begin(), runs_.end(), run_of(shape, plan, batches)) != runs_.end();
}
void DeviceQueue::note_run(const model::ModelShape& shape, const plan::Plan& plan, Batches batches) {
  if (!has_run(shape, plan, batches)) runs_.push_back(run_of(shape, plan, batches));
}

bool DeviceQueue::has_capacity(ModelHost& model, Launch launch, size_t pass) const {
  if (slots_.empty()) return true;
  const bool graph = launch == Launch::graph && model.resident() && model.small(pass) != nullptr;
  return in_flight_ < slots_.size() && !(graph && model.small(pass)->running());
}

// The two values are read without a lock: a reader that races with the next batch may combine old and new values once.
void DeviceQueue::note_oldest(int64_t since_ns, int64_t predicted_ns) {
  oldest_predicted_ns_.store(predicted_ns, std::memory_order_relaxed);
  oldest_since_ns_.store(since_ns, std::memory_order_release);
}

DeviceQueue::OldestBatch DeviceQueue::oldest() const {
  const int64_t since = oldest_since_ns_.load(std::memory_order_acquire);
  if (since == 0) return {};
  return {seconds_since(since), static_cast<double>(oldest_predicted_ns_.load(std::memory_order_relaxed)) * 1e-9};
}

void DeviceQueue::submit(ModelHost& model, batch::PackedBatch& batch, Collect collect, Launch launch, size_t pass,
                         model::AdapterRanges adapters) {
  model::ForwardRunner& forward = model.forward(pass);
  device::Stream& compute = *compute_;
  const auto predicted_ns =
      static_cast<int64_t>(static_cast<double>(batch.tokens()) * 1e9 / std::max(1.0, model.plan().tokens_per_second));
  if (slots_.empty()) {
    const int64_t since = now_ns();
    tensor::TensorView result;
    {
      struct Ends {
        DeviceQueue& queue;
        ~Ends() { queue.oldest_since_ns_ = 0; }
      } ends{*this};
      note_oldest(since, predicted_ns);
      ScopedZone zone(Zone::compute, batch.tokens());
      result = forward.run(compute, batch.view(), adapters);
    }
    collect(batch, result.as<float>(), seconds_since(since));
    return;
  }
  compute.name_ops(batch.tokens() >= model.named_from());
  // Nothing is in flight here, so starting the clock delays no batch.
  if (Timeline::enabled() && in_flight_ == 0) start_lanes();
  SmallBatches* const small = launch == Launch::graph && adapters.empty() ? model.small(pass) : nullptr;
  SmallBatches* const graph = small != nullptr && small->takes(batch) ? small : nullptr;
  while (!has_capacity(model, graph != nullptr ? Launch::graph : Launch::ops, pass)) collect_one();
  Slot& slot = *slots_[next_];
  next_ = (next_ + 1) % slots_.size();
  ++in_flight_;
  slot.predicted_ns = predicted_ns;
  if (in_flight_ == 1) note_oldest(now_ns(), predicted_ns);
  std::swap(slot.batch, batch);
  slot.collect = std::move(collect);
  slot.graph = graph;
  if (graph != nullptr) {
    slot.launched_ns = now_ns();
    model.graph_batches.fetch_add(1, std::memory_order_relaxed);
    model.padding_tokens.fetch_add(graph->launch(slot.batch), std::memory_order_relaxed);
    return;
  }
  ops::BatchView view = slot.batch.view();
  {
    // All integers of a batch are copied at once; each array starts aligned.
    ScopedZone zone(Zone::stage, view.T);
    auto* host = static_cast<char*>(slot.host.data());
    char* device = slot.device;
    int64_t at = 0;
    for (tensor::TensorView* v : {&view.ids, &view.positions, &view.starts, &view.order}) {
      std::memcpy(host + at, v->data, static_cast<size_t>(v->bytes()));
      v->data = device + at;
      at += memory::align_up(v->bytes());
    }
    slot.copying->record(*copy_);
    copy_->copy(device, host, static_cast<size_t>(at));
    slot.copied->record(*copy_);
  }
  ScopedZone zone(Zone::compute, view.T);
  slot.copied->wait(compute);
  slot.begin->record(compute);
  const tensor::TensorView result = forward.run(compute, view, adapters);
  if (WordHead* const head = model.word_head()) {
    head->run(compute, result, slot.batch, static_cast<int32_t*>(slot.words.data()),
              static_cast<float*>(slot.result.data()));
    slot.end->record(compute);
  } else {
    slot.end->record(compute);
    compute.copy(slot.result.data(), result.data, static_cast<size_t>(result.bytes()));
  }
  slot.collected->record(compute);
}

void DeviceQueue::start_lanes() {
  if (clock_) return;
  clock_ = std::make_unique<device::DeviceClock>(*device_, *compute_);
  device_lane_ = Timeline::add_lane("device");
  copy_lane_ = Timeline::add_lane("copy");
  back_lane_ = Timeline::add_lane("copy back");
}

DeviceQueue::Slot& DeviceQueue::oldest_slot() const {
  return *slots_[(next_ + slots_.size() - in_flight_) % slots_.size()];
}

bool DeviceQueue::collect_one() {
  if (in_flight_ == 0) return false;
  Slot& slot = oldest_slot();
  const auto* result = static_cast<const float*>(slot.result.data());
  double busy = 0;
  {
    ScopedZone zone(Zone::wait_device);  // also covers the event timestamp query, which blocks the host
    if (slot.graph != nullptr) {
      result = slot.graph->wait();
      const int64_t done = now_ns(), begin = std::max(slot.launched_ns, last_done_ns_);
      busy = static_cast<double>(done - begin) * 1e-9;
      if (clock_ && Timeline::enabled())
        Timeline::record(device_lane_, Zone::device_busy, begin, done, slot.batch.tokens());
    } else {
      slot.collected->synchronize();
      busy = slot.end->ms_since(*slot.begin) * 1e-3;
      if (clock_ && Timeline::enabled()) {
        const int64_t end_ns = clock_->host_ns(*slot.end);
        Timeline::record(device_lane_, Zone::device_busy, clock_->host_ns(*slot.begin), end_ns, slot.batch.tokens());
        Timeline::record(copy_lane_, Zone::copy, clock_->host_ns(*slot.copying), clock_->host_ns(*slot.copied),
                         slot.batch.tokens());
        Timeline::record(back_lane_, Zone::copy, end_ns, clock_->host_ns(*slot.collected), slot.batch.tokens());
      }
    }
  }
  last_done_ns_ = now_ns();
  if (--in_flight_ > 0)
    note_oldest(last_done_ns_, oldest_slot().predicted_ns);
  else
    oldest_since_ns_ = 0;
  const Collect collect = std::move(slot.collect);
  collect(slot.batch, result, busy);
  return true;
}

}  // namespace brim::engine
