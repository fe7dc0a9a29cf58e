// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <numeric>

#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {

void gather_tokens_cpu(device::Stream& stream, const GatherTokensArgs& a) {
  const int64_t N = a.tokens.rows(), T = a.ids.rows();
  const int32_t *tokens = a.tokens.as<int32_t>(), *starts = a.starts.as<int32_t>();
  const int64_t* begins = a.begins.as<int64_t>();
  int32_t *ids = a.ids.as<int32_t>(), *positions = a.positions.as<int32_t>();
  parallel_pieces(stream, a.begins.rows(), 64, [&](int64_t first, int64_t last, int) {
    for (int64_t b = first; b < last; ++b) {
      const int64_t at = starts[b], length = starts[b + 1] - at;
      BRIM_CHECK(0 <= at && 0 <= length && at + length <= T,
                 "gather_tokens: sequence {} has rows {}..{}, the batch has {}", b, at, at + length, T);
      BRIM_CHECK(0 <= begins[b] && begins[b] + length <= N,
                 "gather_tokens: sequence {} has tokens {}..{}, the set has {}", b, begins[b], begins[b] + length, N);
      if (length > 0) std::memcpy(ids + at, tokens + begins[b], static_cast<size_t>(length) * sizeof(int32_t));
      std::iota(positions + at, positions + at + length, static_cast<int32_t>(a.position_offset));
    }
  });
}

}  // namespace brim::ops
