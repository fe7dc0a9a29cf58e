// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim {
namespace {

void add_row(const TensorView& table, int64_t row, float* sum, bool first) {
  const int64_t H = table.cols();
  const auto add = [&](const auto* values) {
    for (int64_t i = 0; i < H; ++i) sum[i] = (first ? 0.0f : sum[i]) + to_float(values[i]);
  };
  switch (table.dtype) {
    case DType::f16: add(table.as<f16_t>() + row * table.ld()); break;
    case DType::bf16: add(table.as<bf16_t>() + row * table.ld()); break;
    default: add(table.as<float>() + row * table.ld()); break;
  }
}

}  // namespace

void embedding_cpu(Stream& stream, const EmbeddingArgs& a) {
  const int64_t T = a.batch.T, H = a.word.cols();
  const int32_t *ids = a.batch.ids.as<int32_t>(), *positions = a.batch.positions.as<int32_t>();
  const float *gamma = a.gamma.as<float>(), *beta = a.beta.as<float>();
  const uint32_t threshold = dropout_threshold(a.dropout.probability);
  parallel_pieces(stream, T, rows_per_piece(H), [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      BRIM_CHECK(0 <= ids[t] && ids[t] < a.word.rows(), "embedding: token {} has id {}, the table has {} rows", t, ids[t], a.word.rows());
      BRIM_CHECK(0 <= positions[t] && positions[t] < a.position.rows(), "embedding: token {} has position {}, the table has {} rows", t,
                 positions[t], a.position.rows());
      float* y = a.y.as<float>() + t * a.y.ld();
      float* sum = a.sum ? a.sum.as<float>() + t * a.sum.ld() : y;
      add_row(a.word, ids[t], sum, true);
      add_row(a.position, positions[t], sum, false);
      if (a.type) add_row(a.type, 0, sum, false);
      double total = 0, squares = 0;
      for (int64_t i = 0; i < H; ++i) total += sum[i];
      const float mean = static_cast<float>(total / static_cast<double>(H));
      for (int64_t i = 0; i < H; ++i) squares += (sum[i] - mean) * (sum[i] - mean);
      const float rstd = 1.0f / std::sqrt(static_cast<float>(squares / static_cast<double>(H)) + a.eps);
      for (int64_t i = 0; i < H; ++i) {
        float value = (sum[i] - mean) * rstd * gamma[i] + beta[i];
        if (a.dropout.on()) {
          const uint64_t bits = dropout_bits(a.dropout.seed, a.dropout.site, static_cast<uint64_t>(a.dropout.first_row + t),
                                             static_cast<uint32_t>(i / 4));
          value = dropout_keeps(bits, static_cast<int>(i & 3), threshold) ? value * a.dropout.scale() : 0.0f;
        }
        y[i] = value;
      }
      if (a.mean) a.mean.as<float>()[t] = mean;
      if (a.rstd) a.rstd.as<float>()[t] = rstd;
    }
  });
}

}  // namespace brim
