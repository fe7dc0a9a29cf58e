// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <vector>

#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim {

void attention_cpu(Stream& stream, const AttentionArgs& a) {
  const int64_t N = a.heads, D = a.q.cols() / N;
  const int32_t* starts = a.batch.starts.as<int32_t>();
  const float scale = 1.0f / std::sqrt(static_cast<float>(D));
  const uint32_t threshold = dropout_threshold(a.dropout.probability);
  parallel_pieces(stream, a.batch.B * N, 1, [&](int64_t item, int64_t, int) {
    const int64_t b = item / N, head = item % N, begin = starts[b] - starts[0], length = starts[b + 1] - starts[b];
    BRIM_CHECK(0 <= begin && 0 <= length && begin + length <= a.batch.T, "attention: sequence {} is rows {}..{} of {}", b, begin,
               begin + length, a.batch.T);
    std::vector<float> p(static_cast<size_t>(length));
    const float* k = a.k.as<float>() + begin * a.k.ld() + head * D;
    const float* v = a.v.as<float>() + begin * a.v.ld() + head * D;
    const int64_t first = a.first_query_only ? b : begin, queries = a.first_query_only ? std::min<int64_t>(1, length) : length;
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t row = first + i;
      const float* q = a.q.as<float>() + row * a.q.ld() + head * D;
      float* out = a.out.as<float>() + row * a.out.ld() + head * D;
      float top = -INFINITY, total = 0;
      for (int64_t j = 0; j < length; ++j) {
        float score = 0;
        for (int64_t d = 0; d < D; ++d) score += q[d] * k[j * a.k.ld() + d];
        p[j] = score * scale;
        top = std::max(top, p[j]);
      }
      for (int64_t j = 0; j < length; ++j) total += p[j] = std::exp(p[j] - top);
      if (a.lse) a.lse.as<float>()[row * N + head] = top + std::log(total);
      std::fill(out, out + D, 0.0f);
      for (int64_t j = 0; j < length; ++j) {
        float weight = p[j] / total;
        if (a.dropout.on()) {
          const uint64_t bits = dropout_bits(a.dropout.seed, a.dropout.site, static_cast<uint64_t>((a.dropout.first_row + row) * N + head),
                                             static_cast<uint32_t>(j / 4));
          weight = dropout_keeps(bits, static_cast<int>(j & 3), threshold) ? weight * a.dropout.scale() : 0.0f;
        }
        for (int64_t d = 0; d < D; ++d) out[d] += weight * v[j * a.v.ld() + d];
      }
    }
    // A query whose sequence is empty attends to nothing: zeros, not what was there before.
    if (a.first_query_only && length == 0) {
      std::fill_n(a.out.as<float>() + b * a.out.ld() + head * D, D, 0.0f);
      if (a.lse) a.lse.as<float>()[b * N + head] = -INFINITY;
    }
  });
}

}  // namespace brim
