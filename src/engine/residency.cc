// SPDX-License-Identifier: Apache-2.0
// The part of the scheduler that decides which models are on the device: loading, eviction, parking, and releasing the
// device itself.
#include "engine/residency.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <tuple>

#include "base/clock.h"
#include "engine/scheduler.h"
#include "hub/model_dir.h"
#include "memory/ledger.h"

namespace brim::engine {

std::vector<size_t> choose_victims(std::span<const EvictionCandidate> models, int64_t needed) {
  std::vector<size_t> order(models.size()), victims;
  std::iota(order.begin(), order.end(), size_t{0});
  const auto priority = [&](size_t i) {
    return std::tuple(models[i].has_work, models[i].reload_cost, models[i].last_used);
  };
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return priority(a) < priority(b); });
  std::map<const void*, int> evicted;  // users of a base
  int64_t freed = 0;
  for (const size_t i : order) {
    if (freed >= needed) break;
    const EvictionCandidate& model = models[i];
    freed += model.own_bytes;
    if (model.base != nullptr && ++evicted[model.base] == model.base_users) freed += model.base_bytes;
    victims.push_back(i);
  }
  if (freed < needed) victims.clear();
  return victims;
}

void Scheduler::load(ModelHost& model, const ModelHost* stays) {
  Call call{nullptr, &model, stays};
  wait_for(call);
}

void Scheduler::park(ModelHost& model) {
  call([&] { park_or_unload(model); });
}

void Scheduler::park_or_unload(ModelHost& model) {
  if (!model.resident()) return;
  int64_t bytes = model.weight_bytes();
  {
    std::lock_guard lock(mutex_);
    for (const ModelHost* other : models_)
      if (other->residence() == Residence::parked) bytes += other->weight_bytes();
  }
  if (bytes <= parked_limit_)
    model.park();
  else
    model.unload();
}

bool Scheduler::close_device() {
  bool closed = false;
  call([&] {
    std::vector<ModelHost*> models;
    {
      std::lock_guard lock(mutex_);
      // Work that arrived in the meantime would reopen it at once.
      const bool busy = std::any_of(models_.begin(), models_.end(),
                                    [&](const ModelHost* model) { return model->resident() || has_work_for(*model); });
      if (busy) return;
      models = models_;
      moving_ = true;
    }
    std::exception_ptr error;
    try {
      for (ModelHost* model : models) model->unload();  // parked weights belong to the device
      if (queue_->is_open()) queue_->close();
      closed = true;
    } catch (...) {
      error = std::current_exception();
    }
    {
      std::lock_guard lock(mutex_);
      moving_ = false;
    }
    progress_.notify_all();
    if (error) std::rethrow_exception(error);
  });
  return closed;
}

void Scheduler::open_device() {
  call([&] { queue_->open(0); });
}

bool Scheduler::has_work_for(const ModelHost& model) const {
  const auto waits = [&](const auto* client) { return &client->model_ == &model && client->has_work(); };
  return std::any_of(bulk_queues_.begin(), bulk_queues_.end(), waits) ||
         std::any_of(interactive_queues_.begin(), interactive_queues_.end(), waits);
}

void Scheduler::add_capacity(CapacityProfile profile) {
  std::lock_guard lock(mutex_);
  capacities_.push_back(std::move(profile));
}

std::optional<Scheduler::CapacityProfile> Scheduler::find_capacity(const plan::PlanRequest& request,
                                                                   model::Output first) const {
  std::lock_guard lock(mutex_);
  for (const CapacityProfile& profile : capacities_)
    if (profile.shape == request.shape && profile.plan.precision == request.precision &&
        profile.forwards.front().output == first && profile.forwards.back().output == request.output &&
        profile.plan.max_length == request.max_length && profile.base == request.base &&
        profile.adapter_ranks == request.adapter_ranks && profile.head_bytes == request.head_bytes &&
        profile.head_weight_bytes == request.head_weight_bytes)
      return profile;
  return std::nullopt;
}

std::shared_ptr<BaseWeights> Scheduler::base_weights(const std::filesystem::path& dir, ops::Precision precision,
                                                     std::vector<memory::LedgerEntry> parts) {
  const std::string facts = hub::model_facts(dir);
  std::lock_guard lock(mutex_);
  std::erase_if(bases_, [](const auto& base) { return base.expired(); });
  for (const auto& known : bases_)
    if (auto base = known.lock(); base != nullptr && base->is_for(facts, precision)) return base;
  auto base = std::make_shared<BaseWeights>(dir, facts, precision, std::move(parts));
  bases_.push_back(base);
  return base;
}

void Scheduler::add(ModelHost& model) {
  std::lock_guard lock(mutex_);
  models_.push_back(&model);
}

void Scheduler::remove(ModelHost& model) {
  Lock lock(mutex_);
  progress_.wait(lock, [&] { return !moving_; });
  std::erase(models_, &model);
}

std::exception_ptr Scheduler::make_resident(Lock& lock, ModelHost& model, const ModelHost* stays) {
  model.used = ++turns_;
  if (model.resident()) return nullptr;
  while (collect_oldest(lock)) {
  }
  if (failure_) return failure_;
  const int64_t since = now_ns();
  std::vector<ModelHost*> others;
  std::vector<EvictionCandidate> candidates;
  for (ModelHost* other : models_) {
    if (other == &model || other == stays || !other->resident() || other->kept) continue;
    others.push_back(other);
    candidates.push_back({other->own_bytes(), other->eviction_cost(since), has_work_for(*other), other->used});
    const BaseWeights* base = other->base();
    if (base == nullptr || base == model.base()) continue;  // the model needs its base itself
    candidates.back().base = base;
    candidates.back().base_bytes = base->bytes();
    candidates.back().base_users = base->users();
  }
  moving_ = true;
  lock.unlock();
  std::exception_ptr error;
  try {
    queue_->open(model.needed_bytes());
    const memory::Ledger& ledger = memory::Ledger::of(queue_->device());
    for (const size_t victim : choose_victims(candidates, model.needed_bytes() - ledger.left_bytes()))
      park_or_unload(*others[victim]);
    model.load([this] { serve_during_load(); });
  } catch (...) {
    error = std::current_exception();
  }
  lock.lock();
  moving_ = false;
  idle_.switching += seconds_since(since);
  progress_.notify_all();
  if (error && error_of(error).code() == ErrorCode::device_lost) fail_all(lock, error);
  return error;
}

void Scheduler::serve_during_load() {
  Lock lock(mutex_);
  for (size_t turns = interactive_queues_.size(); turns > 0 && !failure_; --turns) {
    const auto ready = [](const InteractiveQueue* texts) { return texts->has_work() && texts->model_.resident(); };
    const auto found = std::find_if(interactive_queues_.begin(), interactive_queues_.end(), ready);
    if (found == interactive_queues_.end()) break;
    InteractiveQueue* const texts = *found;
    move_to_back(interactive_queues_, texts);
    run(lock, *texts);
    while (collect_oldest(lock)) {
    }
  }
  if (failure_) std::rethrow_exception(failure_);
}

}  // namespace brim::engine
