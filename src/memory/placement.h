// SPDX-License-Identifier: Apache-2.0
// Offsets for tensors with known lifetimes in one arena: no two that live at the same time overlap. Pure arithmetic.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "memory/tag.h"

namespace brim::memory {

constexpr int64_t kArenaAlignment = 256;  // 16-byte vector loads, cache lines and TMA all stay aligned
constexpr int64_t align_up(int64_t bytes) { return (bytes + kArenaAlignment - 1) / kArenaAlignment * kArenaAlignment; }

struct Lifetime {
  Tag tag;
  int64_t bytes;
  int64_t first, last;  // op numbers, both inclusive
};

struct Placement {
  std::vector<int64_t> offsets;   // one per lifetime, kArenaAlignment-aligned
  std::vector<int64_t> bytes;     // planned size of each, for checks at run time
  int64_t peak_bytes = 0;         // the arena's size
  int64_t lower_bound_bytes = 0;  // largest sum of live (aligned) bytes: nothing can do better
  TagBytes at_peak;               // peak_bytes by tag; gaps are charged to activations
};

Placement place(std::span<const Lifetime> lifetimes);

}  // namespace brim::memory
