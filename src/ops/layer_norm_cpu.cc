// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim {

void layer_norm_cpu(Stream& stream, const LayerNormArgs& a) {
  const int64_t T = a.x.rows(), H = a.x.cols();
  const float *gamma = a.gamma.as<float>(), *beta = a.beta.as<float>();
  const uint32_t threshold = dropout_threshold(a.dropout.probability);
  parallel_pieces(stream, T, rows_per_piece(H), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      const float* x = a.x.as<float>() + t * a.x.ld();
      const float* residual = a.residual ? a.residual.as<float>() + t * a.residual.ld() : nullptr;
      float* y = a.y.as<float>() + t * a.y.ld();
      float* sum = a.sum ? a.sum.as<float>() + t * a.sum.ld() : y;
      double total = 0;
      for (int64_t i = 0; i < H; ++i) {
        float value = x[i];
        if (a.dropout.on()) {
          const uint64_t bits = dropout_bits(a.dropout.seed, a.dropout.site, static_cast<uint64_t>(a.dropout.first_row + t),
                                             static_cast<uint32_t>(i / 4));
          value = dropout_keeps(bits, static_cast<int>(i & 3), threshold) ? value * a.dropout.scale() : 0.0f;
        }
        if (residual != nullptr) value += residual[i];
        sum[i] = value;
        total += value;
      }
      const float mean = static_cast<float>(total / static_cast<double>(H));
      double squares = 0;
      for (int64_t i = 0; i < H; ++i) squares += (sum[i] - mean) * (sum[i] - mean);
      const float rstd = 1.0f / std::sqrt(static_cast<float>(squares / static_cast<double>(H)) + a.eps);
      for (int64_t i = 0; i < H; ++i) y[i] = (sum[i] - mean) * rstd * gamma[i] + beta[i];
      if (a.mean) a.mean.as<float>()[t] = mean;
      if (a.rstd) a.rstd.as<float>()[t] = rstd;
    }
  });
}

}  // namespace brim
