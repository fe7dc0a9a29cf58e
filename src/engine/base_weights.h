// SPDX-License-Identifier: Apache-2.0
// Encoder weights of a base model on a device, which the hosts of several adapters use: loaded with the first of them,
// freed with the last. Thread-safe: the scheduler loads hosts, and their owners destroy them.
#pragma once
#include <filesystem>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "device/device.h"
#include "memory/ledger.h"
#include "model/weights.h"

namespace brim::engine {

class BaseWeights {
 public:
  // `facts`: fingerprint of the files in `dir` (hub::model_facts). `parts`: their share of a plan.
  BaseWeights(std::filesystem::path dir, std::string facts, ops::Precision precision,
              std::vector<memory::LedgerEntry> parts);

  bool is_for(const std::string& facts, ops::Precision precision) const {
    return facts == facts_ && precision == precision_;
  }
  // Loads the weights if no host uses them. Every call is followed by a release(), also after the model is freed.
  std::shared_ptr<const model::Model> acquire(device::Device& device);
  void release();
  int users() const;
  int64_t bytes() const { return total_bytes(parts_); }
  int64_t missing_bytes() const { return users() > 0 ? 0 : bytes(); }

 private:
  const std::filesystem::path dir_;
  const std::string facts_;
  const ops::Precision precision_;
  const std::vector<memory::LedgerEntry> parts_;
  mutable std::mutex mutex_;      // guards the following
  memory::PlannedMemory memory_;  // declared before its user
  std::shared_ptr<const model::Model> model_;
  int users_ = 0;
};

// The part of a model that it has beside the weights of its base.
struct AdapterOfBase {
  std::shared_ptr<BaseWeights> base;  // null: the model has weights of its own
  model::AdapterRanks ranks;
};

}  // namespace brim::engine
