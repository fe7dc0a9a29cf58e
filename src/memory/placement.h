// SPDX-License-Identifier: Apache-2.0
// Assigns arena offsets to tensors with known lifetimes so that tensors alive at the same time do not overlap. Pure
// arithmetic, no allocation.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "memory/tag.h"

namespace brim::memory {

constexpr int64_t kArenaAlignment = 256;  // keeps 16-byte vector loads, cache lines and TMA aligned
constexpr int64_t align_up(int64_t bytes) { return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment; }

struct Lifetime {
  Tag tag;
  int64_t bytes;
  int64_t first, last;  // op indices, both inclusive
};

struct Placement {
  std::vector<int64_t> offsets;   // one per lifetime, kArenaAlignment-aligned
  std::vector<int64_t> bytes;     // planned size of each, for run-time checks
  int64_t peak_bytes = 0;         // arena size
  int64_t lower_bound_bytes = 0;  // largest sum of live (aligned) bytes
  TagBytes at_peak;               // peak_bytes by tag; gaps are charged to activations
};

Placement place(std::span<const Lifetime> lifetimes);

}  // namespace brim::memory
