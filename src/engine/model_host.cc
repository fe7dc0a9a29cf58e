// SPDX-License-Identifier: Apache-2.0
#include "engine/model_host.h"

#include <algorithm>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/timeline.h"
#include "device/graph.h"
#include "engine/device_queue.h"
#include "hub/model_dir.h"

namespace brim::engine {

ModelHost::ModelHost(std::filesystem::path dir, std::string facts, const model::ModelShape& shape,
                     const plan::Plan& plan, model::ForwardPlan forward, DeviceQueue& queue)
    : dir_(std::move(dir)),
      facts_(std::move(facts)),
      shape_(shape),
      plan_(plan),
      forward_plan_(std::move(forward)),
      queue_(queue),
      named_from_(named_from_tokens(plan, shape.layers)) {}

ModelHost::~ModelHost() = default;

int64_t ModelHost::own_bytes() const { return total_bytes(plan_.own_parts()); }

void ModelHost::load() {
  if (resident()) return;
  device::Device& device = queue_.device();
  memory_ = memory::Ledger::of(device).reserve(dir_.filename().string(), plan_.own_parts());
  try {
    std::unique_ptr<model::Model> model = std::move(model_);
    if (model != nullptr) {
      model->unpark(device, &memory_);
    } else {
      if (hub::model_facts(dir_) != facts_)  // plan, tokenizer and labels are those of the files as they were
        fail(ErrorCode::bad_model, Remedy{"reload it"}, "{}: its files have changed since it was opened",
             dir_.string());
      model = model::Model::load(dir_, device, plan_.precision, &memory_);
    }
    ThreadPool* pool =
        device.kind() == device::DeviceKind::cpu ? static_cast<device::CpuStream&>(queue_.stream()).pool() : nullptr;
    model_ = std::move(model);
    runner_ = std::make_unique<model::ForwardRunner>(shape_, model_->weights(), forward_plan_, queue_.arena(), pool);
    residence_ = Residence::resident;
    weight_bytes_ = model_->slab_bytes();
    warm_up();
    if (wants_small_) capture();
  } catch (...) {
    unload();
    throw;
  }
  loads_.fetch_add(1, std::memory_order_relaxed);
}

void ModelHost::unload() {
  small_.reset();
  runner_.reset();
  model_.reset();
  memory_ = {};
  residence_ = Residence::disk;
}

void ModelHost::park() {
  if (!resident()) return;
  small_.reset();
  runner_.reset();
  try {
    model_->park(queue_.device());
  } catch (const std::exception& error) {
    log_warning("{}: its weights are not kept in memory: {}", dir_.string(), error.what());
    return unload();
  }
  memory_ = {};
  residence_ = Residence::parked;
}

void ModelHost::want_small_batches() {
  wants_small_ = queue_.device().kind() == device::DeviceKind::cuda && can_capture(queue_.stream());
  if (resident()) capture();
}

void ModelHost::capture() {
  if (wants_small_ && !small_)
    small_ = std::make_unique<SmallBatches>(queue_.device(), queue_.stream(), *runner_, plan_.limits(), plan_.output,
                                            width(), &memory_);
}

// Runs batches of every size class once, so that kernels and algorithms are loaded and device memory stays as it is.
void ModelHost::warm_up() {
  if (queue_.device().kind() != device::DeviceKind::cuda || loads() > 0) return;
  ScopedZone zone(Zone::warm_up);
  // Texts of four tokens: tokens and sequences, which the heads' products have as rows, pass through every power of
  // two.
  const std::vector<int32_t> ids(static_cast<size_t>(std::min<int64_t>(4, plan_.max_length)), 0);
  const auto ignore = [](const batch::PackedBatch&, const float*, double) {};
  for (int64_t tokens = 4;; tokens = std::min(tokens * 2, plan_.token_budget)) {
    batch::PackedBatch batch;
    do batch.add({ids.data(), static_cast<int32_t>(ids.size()), 0}, shape_.position_offset);
    while (batch.tokens() + static_cast<int64_t>(ids.size()) <= tokens && batch.sequences() < plan_.max_sequences);
    batch.finish();
    queue_.submit(*this, batch, ignore);
    if (tokens >= plan_.token_budget) break;
  }
  queue_.finish();
}

}  // namespace brim::engine
