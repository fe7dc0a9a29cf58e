// SPDX-License-Identifier: Apache-2.0
// Small row ops: each moves its bytes once, 16 at a time if alignment allows.
#include "ops/cuda/activation.cuh"
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/int8.cuh"
#include "ops/cuda/rows2d.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {

using device::CudaStream;
using device::Stream;

namespace {

// ---- gather_rows: one warp per row ----
template <class Piece>
__global__ void __launch_bounds__(256) gather_rows_kernel(const char* x, int64_t x_row_bytes, const int32_t* rows,
                                                          char* y, int64_t y_row_bytes, int B, int pieces) {
  const int b = static_cast<int>((blockIdx.x * 256 + threadIdx.x) / 32), lane = threadIdx.x % 32;
  let_next_begin();
  wait_for_previous();
  if (b >= B) return;
  const auto* from = reinterpret_cast<const Piece*>(x + rows[b] * x_row_bytes);
  auto* to = reinterpret_cast<Piece*>(y + b * y_row_bytes);
  for (int i = lane; i < pieces; i += 32) to[i] = from[i];
}

// ---- pool_mean: one thread per column, rows in order ----
template <class Elem>
__global__ void __launch_bounds__(128)
    pool_mean_kernel(const Elem* x, int64_t ldx, const int32_t* starts, float* y, int64_t ldy, int H) {
  const int b = blockIdx.x, c = blockIdx.y * 128 + threadIdx.x;
  if (c >= H) return;
  const int begin = starts[b] - starts[0], end = starts[b + 1] - starts[0];
  float sum = 0.0f;
  for (int t = begin; t < end; ++t) sum += to_f32(x[t * ldx + c]);
  y[b * ldy + c] = end > begin ? sum / static_cast<float>(end - begin) : 0.0f;
}

// ---- pool_mean_grad: some rows of one sequence per block ----
template <class Elem>
__global__ void __launch_bounds__(128) pool_mean_grad_kernel(const Elem* d_y, int64_t ld_d_y, const int32_t* starts,
                                                             Elem* d_x, int64_t ld_d_x, int H, bool accumulate) {
  const int b = blockIdx.x, begin = starts[b] - starts[0], end = starts[b + 1] - starts[0];
  const float share = 1.0f / static_cast<float>(max(1, end - begin));
  for (int t = begin + static_cast<int>(blockIdx.y); t < end; t += static_cast<int>(gridDim.y))
    for (int c = threadIdx.x; c < H; c += 128) {
      Elem* to = d_x + static_cast<int64_t>(t) * ld_d_x + c;
      *to = from_f32<Elem>(to_f32(d_y[b * ld_d_y + c]) * share + (accumulate ? to_f32(*to) : 0.0f));
    }
}

// ---- softmax: one warp per row ----
template <class Elem, bool kSigmoid>
__global__ void __launch_bounds__(128)
    softmax_kernel(const Elem* x, int64_t ldx, float* y, int64_t ldy, int rows, int K) {
  const int r = static_cast<int>((blockIdx.x * 128 + threadIdx.x) / 32), lane = threadIdx.x % 32;
  let_next_begin();
  wait_for_previous();
  if (r >= rows) return;
  x += r * ldx;
  y += r * ldy;
  if constexpr (kSigmoid) {
    for (int i = lane; i < K; i += 32) {
      const float v = to_f32(x[i]);
      y[i] = 1.0f / (1.0f + expf(-v)) + (v - v);  // v - v: see SoftmaxArgs
    }
  } else {
    float top = -INFINITY, sum = 0.0f;
    for (int i = lane; i < K; i += 32) top = fmaxf(top, to_f32(x[i]));
    top = warp_max(top);
    for (int i = lane; i < K; i += 32) {
      const float v = to_f32(x[i]);
      sum += expf(v - top) + (v - v);
    }
    sum = warp_sum(sum);
    for (int i = lane; i < K; i += 32) y[i] = expf(to_f32(x[i]) - top) / sum;
  }
}

// ---- convert ----
template <class From, class To, int kWidth>
__global__ void __launch_bounds__(kElementThreads) convert_kernel(const From* x, To* y, Extent e) {
  int64_t row, col;
  if (!piece_at<kWidth>(e, row, col)) return;
  float f[kWidth];
  load_piece<kWidth>(x + col, f);
  store_piece<kWidth>(y + col, f);
}
template <class From, int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    convert_fp8_kernel(const From* x, uint8_t* y, const float* scale, Extent e) {
  int64_t row, col;
  if (!piece_at<kWidth>(e, row, col)) return;
  float f[kWidth];
  load_piece<kWidth>(x + col, f);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) f[i] *= *scale;
  if constexpr (kWidth == 8)
    *reinterpret_cast<uint2*>(y + col) = pack8_fp8(f);
  else
    y[col] = __nv_cvt_float_to_fp8(f[0], __NV_SATFINITE, __NV_E4M3);
}

// A warp per row, which it reads twice, the second time from the L1 cache.
constexpr int kRowWarps = kElementThreads / 32;
template <class From, int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    convert_int8_kernel(const From* x, uint8_t* y, float* scale, int T, int C) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kRowWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (r >= T) return;
  x += r * C;
  y += r * C;
  uint32_t bits = 0;
  for (int c = kWidth * lane; c < C; c += 32 * kWidth) {
    float f[kWidth];
    load_piece<kWidth>(x + c, f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) bits = max(bits, magnitude_bits(f[i]));
  }
  const float most = __uint_as_float(warp_max_bits(bits)), inverse = inverse_step(most);
  if (lane == 0) scale[r] = most * kInt8Step;
  for (int c = kWidth * lane; c < C; c += 32 * kWidth) {
    float f[kWidth];
    load_piece<kWidth>(x + c, f);
    if constexpr (kWidth == 8)
      *reinterpret_cast<uint2*>(y + c) = pack8_int8(f, inverse);
    else
      y[c] = static_cast<uint8_t>(pack4_int8(f[0], 0, 0, 0, inverse));
  }
}

template <class From, int kWidth>
void launch_convert(CudaStream& s, const ConvertArgs& a, Extent e) {
  const dim3 grid = element_grid(e, kWidth), block(kElementThreads);
  const auto* x = static_cast<const From*>(a.x.data);
  if (a.y.dtype == tensor::DType::f8e4m3)
    return device::launch<convert_fp8_kernel<From, kWidth>>(s, grid, block, x, static_cast<uint8_t*>(a.y.data),
                                                            a.scale.as<float>(), e);
  if (a.y.dtype == tensor::DType::i8)
    return device::launch<convert_int8_kernel<From, kWidth>>(
        s, dim3(device::blocks_for(a.x.rows(), kRowWarps)), block, x, static_cast<uint8_t*>(a.y.data),
        a.scale.as<float>(), static_cast<int>(a.x.rows()), static_cast<int>(a.x.cols()));
  dispatch_elem(a.y.dtype, [&](auto tag) {
    using To = typename decltype(tag)::type;
    device::launch<convert_kernel<From, To, kWidth>>(s, grid, block, x, static_cast<To*>(a.y.data), e);
  });
}

// ---- activate ----
// Contiguous views: the next few pieces are loaded while one is activated.
constexpr int kPiecesAhead = 4;
template <class Elem, Activation kActivation>
__global__ void __launch_bounds__(kElementThreads) activate_flat_kernel(const Elem* x, Elem* y, int64_t pieces) {
  constexpr int kPerBlock = kPiecesAhead * kElementThreads;
  const int64_t first = static_cast<int64_t>(blockIdx.x) * kPerBlock;
  const int left = static_cast<int>(min(static_cast<int64_t>(kPerBlock), pieces - first)), lane = threadIdx.x;
  x += 8 * (first + lane);
  y += 8 * (first + lane);
  Raw8<Elem> raw[kPiecesAhead];
#pragma unroll
  for (int r = 0; r < kPiecesAhead; ++r)
    if (lane + r * kElementThreads < left) raw[r] = load_raw8(x + 8 * r * kElementThreads);
#pragma unroll
  for (int r = 0; r < kPiecesAhead; ++r) {
    if (lane + r * kElementThreads >= left) return;
    float f[8];
    unpack8<Elem>(raw[r], f);
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i] = activated<kActivation, Elem>(f[i]);
    store8(y + 8 * r * kElementThreads, f);
  }
}
template <class Elem, Activation kActivation, int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    activate_kernel(const Elem* x, int64_t ldx, Elem* y, int64_t ldy, Extent e) {
  int64_t row, col;
  if (!piece_at<kWidth>(e, row, col)) return;
  float f[kWidth];
  load_piece<kWidth>(x + row * ldx + col, f);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) f[i] = activated<kActivation, Elem>(f[i]);
  store_piece<kWidth>(y + row * ldy + col, f);
}

template <class Elem, Activation kActivation, int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    activate_grad_kernel(const Elem* x, int64_t ldx, const Elem* d_y, int64_t ld_d_y, Elem* d_x, int64_t ld_d_x,
                         Extent e) {
  int64_t row, col;
  if (!piece_at<kWidth>(e, row, col)) return;
  float f[kWidth], d[kWidth];
  load_piece<kWidth>(x + row * ldx + col, f);
  load_piece<kWidth>(d_y + row * ld_d_y + col, d);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) d[i] *= activation_slope<kActivation, Elem>(f[i]);
  store_piece<kWidth>(d_x + row * ld_d_x + col, d);
}

// ---- scatter_rows: rows are distinct, so there are no conflicts ----
template <class Elem>
__global__ void __launch_bounds__(256)
    scatter_rows_kernel(const Elem* d_y, int64_t ld_d_y, const int32_t* rows, Elem* d_x, int64_t ld_d_x, int B, int H) {
  const int b = static_cast<int>((blockIdx.x * 256 + threadIdx.x) / 32), lane = threadIdx.x % 32;
  if (b >= B) return;
  const Elem* from = d_y + b * ld_d_y;
  Elem* to = d_x + rows[b] * ld_d_x;
  for (int i = lane; i < H; i += 32) to[i] = from_f32<Elem>(to_f32(to[i]) + to_f32(from[i]));
}

// ---- dropout_rows ----
// y (+)= mask.scale * x where the mask keeps an element.
template <class Elem>
__global__ void __launch_bounds__(256)
    dropout_rows_kernel(const Elem* x, int64_t ldx, Elem* y, int64_t ldy, int H, DropoutMask mask, bool accumulate) {
  const int64_t r = blockIdx.x;
  for (int q = threadIdx.x; 4 * q < H; q += 256) {
    const uint64_t bits =
        dropout_bits(mask.seed, mask.site, mask.first_row + static_cast<uint64_t>(r), static_cast<uint32_t>(q));
    for (int i = 4 * q; i < min(4 * q + 4, H); ++i) {
      const float made = dropout_keeps(bits, i, mask.threshold) ? to_f32(x[r * ldx + i]) * mask.scale : 0.0f;
      y[r * ldy + i] = from_f32<Elem>(accumulate ? to_f32(y[r * ldy + i]) + made : made);
    }
  }
}
template <class Elem>
__global__ void __launch_bounds__(kElementThreads)
    dropout_rows_wide_kernel(const Elem* x, int64_t ldx, Elem* y, int64_t ldy, Extent e, DropoutMask mask,
                             bool accumulate) {
  int64_t row, col;
  if (!piece_at<8>(e, row, col)) return;
  float f[8], sum[8] = {};
  load8(x + row * ldx + col, f);
  if (accumulate) load8(y + row * ldy + col, sum);
  if (mask.threshold != 0) {
    drop8(mask, static_cast<uint64_t>(row), static_cast<uint32_t>(col), f);
  } else {
#pragma unroll
    for (float& v : f) v *= mask.scale;
  }
  if (accumulate) {
#pragma unroll
    for (int i = 0; i < 8; ++i) f[i] += sum[i];
  }
  store8(y + row * ldy + col, f);
}

}  // namespace

void gather_rows_cuda(Stream& stream, const GatherRowsArgs& a) {
  cuda_op(stream, "gather_rows", [&](CudaStream& s) {
    const int64_t B = a.rows.rows(), size = dtype_bytes(a.x.dtype), row_bytes = a.x.cols() * size,
                  x_step = a.x.ld() * size, y_step = a.y.ld() * size;
    const auto at = reinterpret_cast<uintptr_t>(a.x.data) | reinterpret_cast<uintptr_t>(a.y.data) |
                    static_cast<uintptr_t>(row_bytes | x_step | y_step);
    const dim3 grid(device::blocks_for(B, 8)), block(256);
    const auto* x = static_cast<const char*>(a.x.data);
    auto* y = static_cast<char*>(a.y.data);
    const auto* rows = a.rows.as<int32_t>();
    if (at % 16 == 0)
      launch_chained<gather_rows_kernel<uint4>>(s, grid, block, x, x_step, rows, y, y_step, static_cast<int>(B),
                                                static_cast<int>(row_bytes / 16));
    else
      launch_chained<gather_rows_kernel<char>>(s, grid, block, x, x_step, rows, y, y_step, static_cast<int>(B),
                                               static_cast<int>(row_bytes));
  });
}

void pool_mean_cuda(Stream& stream, const PoolMeanArgs& a) {
  cuda_op(stream, "pool_mean", [&](CudaStream& s) {
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const int64_t H = a.x.cols();
      device::launch<pool_mean_kernel<Elem>>(s, dim3(static_cast<unsigned>(a.batch.B), device::blocks_for(H, 128)),
                                             dim3(128), static_cast<const Elem*>(a.x.data), a.x.ld(),
                                             a.batch.starts.as<int32_t>(), a.y.as<float>(), a.y.ld(),
                                             static_cast<int>(H));
    });
  });
}

void pool_mean_grad_cuda(Stream& stream, const PoolMeanGradArgs& a) {
  cuda_op(stream, "pool_mean_grad", [&](CudaStream& s) {
    dispatch_elem(a.d_x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const int64_t rows = std::max<int64_t>(1, a.batch.T / std::max<int64_t>(1, a.batch.B));
      device::launch<pool_mean_grad_kernel<Elem>>(
          s, dim3(static_cast<unsigned>(a.batch.B), static_cast<unsigned>(std::min<int64_t>(rows, 256))), dim3(128),
          static_cast<const Elem*>(a.d_y.data), a.d_y.ld(), a.batch.starts.as<int32_t>(),
          static_cast<Elem*>(a.d_x.data), a.d_x.ld(), static_cast<int>(a.d_x.cols()), a.write == GradWrite::accumulate);
    });
  });
}

void softmax_cuda(Stream& stream, const SoftmaxArgs& a) {
  cuda_op(stream, "softmax", [&](CudaStream& s) {
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const dim3 grid(device::blocks_for(a.x.rows(), 4)), block(128);
      const auto* x = static_cast<const Elem*>(a.x.data);
      const int rows = static_cast<int>(a.x.rows()), K = static_cast<int>(a.x.cols());
      if (a.sigmoid)
        device::launch_chained<softmax_kernel<Elem, true>>(s, grid, block, x, a.x.ld(), a.y.as<float>(), a.y.ld(), rows,
                                                           K);
      else
        device::launch_chained<softmax_kernel<Elem, false>>(s, grid, block, x, a.x.ld(), a.y.as<float>(), a.y.ld(),
                                                            rows, K);
    });
  });
}

void convert_cuda(Stream& stream, const ConvertArgs& a) {
  cuda_op(stream, "convert", [&](CudaStream& s) {
    const Extent e{1, a.x.elements()};
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using From = typename decltype(tag)::type;
      if (all_eight_wide(a.y.dtype == tensor::DType::i8 ? Extent{a.x.rows(), a.x.cols()} : e, a.x, a.y))
        launch_convert<From, 8>(s, a, e);
      else
        launch_convert<From, 1>(s, a, e);
    });
  });
}

void activate_cuda(Stream& stream, const ActivationArgs& a) {
  cuda_op(stream, "activate", [&](CudaStream& s) {
    const Extent e = extent_of(a.x, a.y);
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      dispatch_activation(a.activation, [&](auto chosen) {
        constexpr Activation kActivation = decltype(chosen)::value;
        const auto* x = static_cast<const Elem*>(a.x.data);
        auto* y = static_cast<Elem*>(a.y.data);
        if (e.rows == 1 && all_eight_wide(e, a.x, a.y))
          device::launch<activate_flat_kernel<Elem, kActivation>>(
              s, dim3(device::blocks_for(e.cols / 8, kPiecesAhead * kElementThreads)), dim3(kElementThreads), x, y,
              e.cols / 8);
        else if (all_eight_wide(e, a.x, a.y))
          device::launch<activate_kernel<Elem, kActivation, 8>>(s, element_grid(e, 8), dim3(kElementThreads), x,
                                                                a.x.ld(), y, a.y.ld(), e);
        else
          device::launch<activate_kernel<Elem, kActivation, 1>>(s, element_grid(e, 1), dim3(kElementThreads), x,
                                                                a.x.ld(), y, a.y.ld(), e);
      });
    });
  });
}

void activate_grad_cuda(Stream& stream, const ActivationGradArgs& a) {
  const bool wide = a.x.cols() % 8 == 0 && eight_wide(a.x) && eight_wide(a.d_x) && eight_wide(a.y);
  const bool at_once = a.d_bias && wide && a.activation != Activation::none;
  if (a.y && !at_once) {  // the output may overwrite x, so it is computed after x is read, or before the output is read
    const ActivationArgs forward{.x = a.x, .y = a.y, .activation = a.activation};
    ActivationGradArgs rest = a;
    rest.y = {};
    if (slope_reads_output(a.activation)) {
      activate_cuda(stream, forward);
      rest.x = a.y;
    }
    activate_grad_cuda(stream, rest);
    if (!slope_reads_output(a.activation)) activate_cuda(stream, forward);
    return;
  }
  cuda_op(stream, "activate_grad", [&](CudaStream& s) {
    const int64_t wanted = a.d_bias ? cuda_lane_sums_bytes(1, a.x.rows(), a.x.cols()) : 0;
    BRIM_CHECK(wanted == 0 || (a.scratch && a.scratch.bytes() >= wanted),
               "activate_grad: scratch has {} bytes, needs {}", a.scratch ? a.scratch.bytes() : 0, wanted);
    const Extent e = extent_of(a.x, a.d_y, a.d_x);
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      dispatch_activation(a.activation, [&](auto chosen) {
        constexpr Activation kActivation = decltype(chosen)::value;
        const auto *x = static_cast<const Elem*>(a.x.data), *d_y = static_cast<const Elem*>(a.d_y.data);
        auto* d_x = static_cast<Elem*>(a.d_x.data);
        auto* partials = static_cast<float*>(a.scratch.data);
        if constexpr (kActivation != Activation::none)
          if (a.y)
            return sum_columns_cuda<kActivation, Elem, true>(s, {d_x, 0, a.d_x.ld()}, {x, 0, a.x.ld()}, 1, a.x.rows(),
                                                             a.x.cols(), true, partials, a.d_bias.as<float>(), 0, true,
                                                             {static_cast<Elem*>(a.y.data), 0, a.y.ld()});
        if (a.d_bias)
          sum_columns_cuda<kActivation, Elem>(s, {d_x, 0, a.d_x.ld()}, {x, 0, a.x.ld()}, 1, a.x.rows(), a.x.cols(),
                                              wide, partials, a.d_bias.as<float>(), 0, true);
        else if (all_eight_wide(e, a.x, a.d_y, a.d_x))
          device::launch<activate_grad_kernel<Elem, kActivation, 8>>(s, element_grid(e, 8), dim3(kElementThreads), x,
                                                                     a.x.ld(), d_y, a.d_y.ld(), d_x, a.d_x.ld(), e);
        else
          device::launch<activate_grad_kernel<Elem, kActivation, 1>>(s, element_grid(e, 1), dim3(kElementThreads), x,
                                                                     a.x.ld(), d_y, a.d_y.ld(), d_x, a.d_x.ld(), e);
      });
    });
  });
}

void scatter_rows_cuda(Stream& stream, const ScatterRowsArgs& a) {
  cuda_op(stream, "scatter_rows", [&](CudaStream& s) {
    dispatch_elem(a.d_y.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<scatter_rows_kernel<Elem>>(s, dim3(device::blocks_for(a.rows.rows(), 8)), dim3(256),
                                                static_cast<const Elem*>(a.d_y.data), a.d_y.ld(), a.rows.as<int32_t>(),
                                                static_cast<Elem*>(a.d_x.data), a.d_x.ld(),
                                                static_cast<int>(a.rows.rows()), static_cast<int>(a.d_y.cols()));
    });
  });
}

void dropout_rows_cuda(Stream& stream, const DropoutArgs& a) {
  cuda_op(stream, "dropout_rows", [&](CudaStream& s) {
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const Extent e{a.x.rows(), a.x.cols()};
      const auto* x = static_cast<const Elem*>(a.x.data);
      auto* y = static_cast<Elem*>(a.y.data);
      DropoutMask mask = dropout_mask(a.dropout);
      mask.scale *= a.factor;
      const bool adds = a.write == GradWrite::accumulate;
      if (all_eight_wide(e, a.x, a.y))
        device::launch<dropout_rows_wide_kernel<Elem>>(s, element_grid(e, 8), dim3(kElementThreads), x, a.x.ld(), y,
                                                       a.y.ld(), e, mask, adds);
      else
        device::launch<dropout_rows_kernel<Elem>>(s, dim3(static_cast<unsigned>(e.rows)), dim3(256), x, a.x.ld(), y,
                                                  a.y.ld(), static_cast<int>(e.cols), mask, adds);
    });
  });
}

}  // namespace brim::ops
