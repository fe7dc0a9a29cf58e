// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <vector>

#include "ops/cpu/activations.h"
#include "ops/cpu/column_sums.h"
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using device::Stream;

namespace {

// Calls fn(x row, y row) for every pair of rows.
template <class Fn>
void for_rows(const Stream& stream, const tensor::TensorView& x, const tensor::TensorView& y, Fn&& fn) {
  parallel_pieces(stream, x.rows(), rows_per_piece(x.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) fn(cpu::row_of<float>(x, r), cpu::row_of<float>(y, r));
  });
}

}  // namespace

void gather_rows_cpu(Stream& stream, const GatherRowsArgs& a) {
  const int64_t T = a.x.rows(), size = dtype_bytes(a.x.dtype), row_bytes = a.x.cols() * size;
  const int32_t* rows = a.rows.as<int32_t>();
  parallel_pieces(stream, a.rows.rows(), rows_per_piece(a.x.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t b = begin; b < end; ++b) {
      BRIM_CHECK(0 <= rows[b] && rows[b] < T, "gather_rows: row {} is out of range for {} rows", rows[b], T);
      std::memcpy(static_cast<char*>(a.y.data) + b * a.y.ld() * size,
                  static_cast<const char*>(a.x.data) + rows[b] * a.x.ld() * size, static_cast<size_t>(row_bytes));
    }
  });
}

void pool_mean_cpu(Stream& stream, const PoolMeanArgs& a) {
  const int64_t H = a.x.cols();
  const int32_t* starts = a.batch.starts.as<int32_t>();
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, a.batch.B, 4, [&](int64_t first, int64_t last, int) {
    for (int64_t b = first; b < last; ++b) {
      float* y = cpu::row_of<float>(a.y, b);
      std::fill(y, y + H, 0.0f);
      const int64_t begin = starts[b] - starts[0], end = starts[b + 1] - starts[0];
      BRIM_CHECK(0 <= begin && begin <= end && end <= a.batch.T,
                 "pool_mean: sequence {} has rows {}..{}, the batch has {}", b, begin, end, a.batch.T);
      for (int64_t t = begin; t < end; ++t) kernels.add(y, cpu::row_of<float>(a.x, t), H);
      if (begin < end) kernels.scale(y, 1.0f / static_cast<float>(end - begin), H);
    }
  });
}

void pool_mean_grad_cpu(Stream& stream, const PoolMeanGradArgs& a) {
  const int64_t H = a.d_x.cols();
  const int32_t* starts = a.batch.starts.as<int32_t>();
  parallel_pieces(stream, a.batch.B, 4, [&](int64_t first, int64_t last, int) {
    for (int64_t b = first; b < last; ++b) {
      const float* d_y = cpu::row_of<float>(a.d_y, b);
      const int64_t begin = starts[b] - starts[0], end = starts[b + 1] - starts[0];
      BRIM_CHECK(0 <= begin && begin <= end && end <= a.batch.T,
                 "pool_mean_grad: sequence {} has rows {}..{}, the batch has {}", b, begin, end, a.batch.T);
      const float share = 1.0f / static_cast<float>(std::max<int64_t>(1, end - begin));
      for (int64_t t = begin; t < end; ++t) {
        float* d_x = cpu::row_of<float>(a.d_x, t);
        for (int64_t i = 0; i < H; ++i) d_x[i] = d_y[i] * share + (a.write == GradWrite::accumulate ? d_x[i] : 0.0f);
      }
    }
  });
}

void softmax_cpu(Stream& stream, const SoftmaxArgs& a) {
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  const auto row = a.sigmoid ? kernels.sigmoid : kernels.softmax;
  for_rows(stream, a.x, a.y, [&](const float* x, float* y) { row(x, y, a.x.cols()); });
}

void convert_cpu(Stream& stream, const ConvertArgs& a) {
  const int64_t from = dtype_bytes(a.x.dtype), to = dtype_bytes(a.y.dtype);
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, a.x.elements(), 1 << 14, [&](int64_t begin, int64_t end, int) {
    const char* x = static_cast<const char*>(a.x.data) + begin * from;
    char* y = static_cast<char*>(a.y.data) + begin * to;
    if (a.x.dtype == a.y.dtype) {
      std::memmove(y, x, static_cast<size_t>((end - begin) * to));
    } else if (a.y.dtype == tensor::DType::f32) {
      kernels.widen(x, cpu::elem_of(a.x.dtype), reinterpret_cast<float*>(y), end - begin);
    } else if (a.x.dtype == tensor::DType::f32) {
      kernels.narrow(reinterpret_cast<const float*>(x), y, cpu::elem_of(a.y.dtype), end - begin);
    } else {
      convert_elements(x, a.x.dtype, y, a.y.dtype, end - begin);
    }
  });
}

void activate_cpu(Stream& stream, const ActivationArgs& a) {
  const cpu::ActivationRow activate = cpu::activation_row(cpu::row_kernels_of(stream), a.activation);
  for_rows(stream, a.x, a.y, [&](const float* x, float* y) { activate(x, y, a.x.cols()); });
}

void scatter_rows_cpu(Stream& stream, const ScatterRowsArgs& a) {
  const int32_t* rows = a.rows.as<int32_t>();
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, a.rows.rows(), rows_per_piece(a.d_x.cols()), [&](int64_t begin, int64_t end, int) {
    for (int64_t b = begin; b < end; ++b) {
      BRIM_CHECK(0 <= rows[b] && rows[b] < a.d_x.rows(), "scatter_rows: row {} is out of range for {} rows", rows[b],
                 a.d_x.rows());
      kernels.add(cpu::row_of<float>(a.d_x, rows[b]), cpu::row_of<float>(a.d_y, b), a.d_x.cols());
    }
  });
}

void activate_grad_cpu(Stream& stream, const ActivationGradArgs& a) {
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  const cpu::ActivationGradRow slope = cpu::activation_grad_row(kernels, a.activation);
  const cpu::ActivationRow activate = cpu::activation_row(kernels, a.activation);
  const int64_t H = a.x.cols();
  const bool from_y = a.y && slope_reads_output(a.activation);
  parallel_pieces(stream, a.x.rows(), rows_per_piece(H), [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* x = cpu::row_of<float>(a.x, r);
      float* y = a.y ? cpu::row_of<float>(a.y, r) : nullptr;
      if (from_y) activate(x, y, H);
      slope(from_y ? y : x, cpu::row_of<float>(a.d_y, r), cpu::row_of<float>(a.d_x, r), H);
      if (a.y && !from_y) activate(x, y, H);  // last, because y may be x
    }
  });
  if (a.d_bias) sum_columns(stream, a.d_x, a.d_bias, GradWrite::accumulate);
}

void dropout_rows_cpu(Stream& stream, const DropoutArgs& a) {
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  const int64_t H = a.x.cols();
  parallel_pieces(stream, a.x.rows(), rows_per_piece(H), [&](int64_t begin, int64_t end, int) {
    const bool adds = a.write == GradWrite::accumulate;
    std::vector<float> dropped(adds ? static_cast<size_t>(H) : 0);
    for (int64_t r = begin; r < end; ++r) {
      const float* from = cpu::row_of<float>(a.x, r);
      float* to = adds ? dropped.data() : cpu::row_of<float>(a.y, r);
      if (a.dropout.on()) {
        cpu::DropRows drop = cpu::drop_rows(a.dropout, r);
        drop.scale *= a.factor;
        kernels.drop(from, to, H, drop);
      } else if (a.factor != 1) {
        for (int64_t i = 0; i < H; ++i) to[i] = a.factor * from[i];
      } else {
        std::memmove(to, from, static_cast<size_t>(H) * sizeof(float));
      }
      if (adds) kernels.add(cpu::row_of<float>(a.y, r), to, H);
    }
  });
}

}  // namespace brim::ops
