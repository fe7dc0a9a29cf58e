// SPDX-License-Identifier: Apache-2.0
// Chooses the models to evict from a device. Uses no clock, lock or device, so that it can be tested without models.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace brim::engine {

struct EvictionCandidate {
  int64_t own_bytes = 0;       // freed with the model
  double reload_cost = 0;      // ModelHost::eviction_cost
  bool has_work = false;       // evicted after all models without work
  uint64_t last_used = 0;      // lower values are evicted first, if all else is equal
  const void* base = nullptr;  // weights that are freed with their last user; null if none, or if they are kept
  int64_t base_bytes = 0;
  int base_users = 0;  // including models that are not candidates
};

// Indices of the models to evict, in this order: no more than free `needed` bytes, and none if all would free less.
std::vector<size_t> choose_victims(std::span<const EvictionCandidate> models, int64_t needed);

}  // namespace brim::engine
