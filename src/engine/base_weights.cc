// SPDX-License-Identifier: Apache-2.0
#include "engine/base_weights.h"

#include <utility>

#include "base/error.h"
#include "base/log.h"
#include "hub/model_dir.h"

namespace brim::engine {

BaseWeights::BaseWeights(std::filesystem::path dir, std::string facts, ops::Precision precision,
                         std::vector<memory::LedgerEntry> parts)
    : dir_(std::move(dir)), facts_(std::move(facts)), precision_(precision), parts_(std::move(parts)) {}

std::shared_ptr<const model::Model> BaseWeights::acquire(device::Device& device) {
  std::lock_guard lock(mutex_);
  if (model_ == nullptr) {
    if (hub::model_facts(dir_) != facts_)
      fail(ErrorCode::bad_model, Remedy{"reload its adapters"}, "{}: files have changed since the model was opened",
           dir_.string());
    memory_ = memory::Ledger::of(device).reserve(dir_.filename().string(), parts_);
    try {
      model_ = model::Model::load_both(dir_, {}, device, precision_, &memory_, {}, true);
    } catch (...) {
      memory_ = {};
      throw;
    }
    log_debug("{}: encoder loaded for adapters", dir_.string());
  }
  ++users_;
  return model_;
}

int BaseWeights::users() const {
  std::lock_guard lock(mutex_);
  return users_;
}

void BaseWeights::release() {
  std::lock_guard lock(mutex_);
  if (--users_ > 0) return;
  model_.reset();
  memory_ = {};
}

}  // namespace brim::engine
