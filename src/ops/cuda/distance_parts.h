// SPDX-License-Identifier: Apache-2.0
// How many parts the CUDA backend sums the gradients of tables of distances in: many for short sequences, whose tables
// are small, but never less memory for longer ones. Includes no CUDA headers, for the planner.
#pragma once
#include <algorithm>
#include <cstdint>

namespace brim::ops {

constexpr int64_t kMostDistanceParts = 64;
// Rows of partial sums of a table of this many rows.
inline int64_t distance_scratch_rows(int64_t table_rows) {
  constexpr int64_t kLeastParts = 4, kLeastRows = 8192;
  return std::max(kLeastParts * table_rows, kLeastRows);
}
inline int64_t distance_parts(int64_t table_rows) {
  return std::clamp<int64_t>(distance_scratch_rows(table_rows) / table_rows, 1, kMostDistanceParts);
}

}  // namespace brim::ops
