// SPDX-License-Identifier: Apache-2.0
#include <cmath>
#include <cstring>

#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim {

void gather_rows_cpu(Stream& stream, const GatherRowsArgs& a) {
  const int64_t T = a.x.rows(), size = dtype_bytes(a.x.dtype), row_bytes = a.x.cols() * size;
  const int32_t* rows = a.rows.as<int32_t>();
  parallel_pieces(stream, a.rows.rows(), rows_per_piece(a.x.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t b = begin; b < end; ++b) {
      BRIM_CHECK(0 <= rows[b] && rows[b] < T, "gather_rows: row {} is asked of {}", rows[b], T);
      std::memcpy(static_cast<char*>(a.y.data) + b * a.y.ld() * size, static_cast<const char*>(a.x.data) + rows[b] * a.x.ld() * size,
                  static_cast<size_t>(row_bytes));
    }
  });
}

void pool_mean_cpu(Stream& stream, const PoolMeanArgs& a) {
  const int64_t H = a.x.cols();
  const int32_t* starts = a.batch.starts.as<int32_t>();
  parallel_pieces(stream, a.batch.B, 4, [&](int64_t first, int64_t last, int) {
    for (int64_t b = first; b < last; ++b) {
      float* y = a.y.as<float>() + b * a.y.ld();
      std::fill(y, y + H, 0.0f);
      const int64_t begin = starts[b] - starts[0], end = starts[b + 1] - starts[0];
      BRIM_CHECK(0 <= begin && begin <= end && end <= a.batch.T, "pool_mean: sequence {} is rows {}..{} of {}", b, begin, end, a.batch.T);
      for (int64_t t = begin; t < end; ++t) {
        const float* x = a.x.as<float>() + t * a.x.ld();
        for (int64_t i = 0; i < H; ++i) y[i] += x[i];
      }
      const float share = begin == end ? 0.0f : 1.0f / static_cast<float>(end - begin);
      for (int64_t i = 0; i < H; ++i) y[i] *= share;
    }
  });
}

void softmax_cpu(Stream& stream, const SoftmaxArgs& a) {
  const int64_t K = a.x.cols();
  parallel_pieces(stream, a.x.rows(), rows_per_piece(K), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = a.x.as<float>() + r * a.x.ld();
      float* y = a.y.as<float>() + r * a.y.ld();
      if (a.sigmoid) {
        for (int64_t i = 0; i < K; ++i) y[i] = 1.0f / (1.0f + std::exp(-x[i]));
        continue;
      }
      float top = x[0], total = 0;
      for (int64_t i = 1; i < K; ++i) top = std::max(top, x[i]);
      for (int64_t i = 0; i < K; ++i) total += y[i] = std::exp(x[i] - top);
      for (int64_t i = 0; i < K; ++i) y[i] /= total;
    }
  });
}

void convert_cpu(Stream& stream, const ConvertArgs& a) {
  const int64_t from = dtype_bytes(a.x.dtype), to = dtype_bytes(a.y.dtype);
  parallel_pieces(stream, a.x.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    convert_elements(static_cast<const char*>(a.x.data) + begin * from, a.x.dtype, static_cast<char*>(a.y.data) + begin * to, a.y.dtype,
                     end - begin);
  });
}

void activate_cpu(Stream& stream, const ActivationArgs& a) {
  const int64_t H = a.x.cols();
  parallel_pieces(stream, a.x.rows(), rows_per_piece(H), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = a.x.as<float>() + r * a.x.ld();
      float* y = a.y.as<float>() + r * a.y.ld();
      for (int64_t i = 0; i < H; ++i) {
        switch (a.activation) {
          case Activation::none: y[i] = x[i]; break;
          case Activation::gelu: y[i] = 0.5f * x[i] * std::erfc(-x[i] * 0.70710678f); break;
          case Activation::relu: y[i] = x[i] < 0 ? 0.0f : x[i]; break;
          case Activation::tanh: y[i] = std::tanh(x[i]); break;
        }
      }
    }
  });
}

}  // namespace brim
