// SPDX-License-Identifier: Apache-2.0
// Gradients of linear: two cuBLASLt products (weight gradients in fp32, accumulated in the epilogue), bias gradients as
// column sums in a fixed order, and separate kernels for narrow outputs (classifier heads).
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/cublas_lt.h"
#include "ops/cuda/narrow_linear.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

// d_x[t,k] (+)= sum over n of d_y[t,n] w[n,k], for small n.
template <class Elem, int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    narrow_d_x_kernel(const Elem* d_y, int64_t ld_d_y, const Elem* w, int64_t ldw, Elem* d_x, int64_t ld_d_x, int N,
                      Extent e, bool accumulate) {
  int64_t row, col;
  if (!piece_at<kWidth>(e, row, col)) return;
  float sum[kWidth] = {}, f[kWidth];
  if (accumulate) load_piece<kWidth>(d_x + row * ld_d_x + col, sum);
  for (int n = 0; n < N; ++n) {
    const float d = to_f32(d_y[row * ld_d_y + n]);
    load_piece<kWidth>(w + n * ldw + col, f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] = fmaf(d, f[i], sum[i]);
  }
  store_piece<kWidth>(d_x + row * ld_d_x + col, sum);
}
// partials[block][n,k] = sum over the block's rows of d_y[t,n] x[t,k].
template <class Elem, int kWidth>
__global__ void __launch_bounds__(128) narrow_d_w_kernel(const Elem* d_y, int64_t ld_d_y, const Elem* x, int64_t ldx,
                                                         int T, int K, int rows_per_block, float* partials) {
  const int k = (static_cast<int>(blockIdx.x) * 128 + threadIdx.x) * kWidth, n = blockIdx.y, N = gridDim.y;
  if (k >= K) return;
  const int64_t begin = static_cast<int64_t>(blockIdx.z) * rows_per_block,
                end = min(static_cast<int64_t>(T), begin + rows_per_block);
  float sum[kWidth] = {};
  for (int64_t t = begin; t < end; ++t) {
    const float d = to_f32(d_y[t * ld_d_y + n]);
    float f[kWidth];
    load_piece<kWidth>(x + t * ldx + k, f);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sum[i] = fmaf(d, f[i], sum[i]);
  }
#pragma unroll
  for (int i = 0; i < kWidth; ++i) partials[(static_cast<int64_t>(blockIdx.z) * N + n) * K + k + i] = sum[i];
}

bool is_narrow(const device::CudaStream& s, const LinearGradArgs& a) {
  const int64_t N = a.w_plain.rows();
  return N % 8 != 0 || a.w_plain.cols() % 8 != 0 || is_narrow_head(s, a.x.rows(), N);
}

template <class Elem>
void bias_gradient(device::CudaStream& s, const LinearGradArgs& a) {
  sum_columns_cuda<Activation::none, Elem>(s, {static_cast<Elem*>(a.d_y.data), 0, a.d_y.ld()}, {nullptr, 0, 0}, 1,
                                           a.d_y.rows(), a.d_y.cols(), a.d_y.cols() % 8 == 0 && eight_wide(a.d_y),
                                           static_cast<float*>(a.scratch.data), a.d_bias.as<float>(), 0,
                                           a.d_w_write == GradWrite::accumulate);
}

template <class Elem>
void narrow_gradients(device::CudaStream& s, const LinearGradArgs& a) {
  const int64_t T = a.x.rows(), N = a.w_plain.rows(), K = a.w_plain.cols();
  const auto *d_y = static_cast<const Elem*>(a.d_y.data), *w = static_cast<const Elem*>(a.w_plain.data),
             *x = static_cast<const Elem*>(a.x.data);
  if (a.d_x) {
    const Extent e{T, K};
    const bool add = a.d_x_write == GradWrite::accumulate;
    auto* d_x = static_cast<Elem*>(a.d_x.data);
    if (all_eight_wide(e, a.w_plain, a.d_x))
      device::launch<narrow_d_x_kernel<Elem, 8>>(s, element_grid(e, 8), dim3(kElementThreads), d_y, a.d_y.ld(), w,
                                                 a.w_plain.ld(), d_x, a.d_x.ld(), static_cast<int>(N), e, add);
    else
      device::launch<narrow_d_x_kernel<Elem, 1>>(s, element_grid(e, 1), dim3(kElementThreads), d_y, a.d_y.ld(), w,
                                                 a.w_plain.ld(), d_x, a.d_x.ld(), static_cast<int>(N), e, add);
  }
  if (a.d_w) {
    BRIM_CHECK(a.d_w.contiguous(), "linear_grad: d_w {} must be contiguous", a.d_w.shape_text());
    const int64_t room = a.scratch.bytes() / (N * K * static_cast<int64_t>(sizeof(float)));
    BRIM_CHECK(room >= 1, "linear_grad: scratch has {} bytes, a weight gradient of {} needs {}", a.scratch.bytes(),
               a.d_w.shape_text(), N * K * 4);
    const int64_t blocks = std::clamp<int64_t>((T + 63) / 64, 1, std::min<int64_t>(room, 64));
    const int64_t rows = (T + blocks - 1) / blocks;
    auto* partials = static_cast<float*>(a.scratch.data);
    const auto grid = [&](int width) {
      return dim3(device::blocks_for(K, 128 * width), static_cast<unsigned>(N), static_cast<unsigned>(blocks));
    };
    if (K % 8 == 0 && eight_wide(a.x))
      device::launch<narrow_d_w_kernel<Elem, 8>>(s, grid(8), dim3(128), d_y, a.d_y.ld(), x, a.x.ld(),
                                                 static_cast<int>(T), static_cast<int>(K), static_cast<int>(rows),
                                                 partials);
    else
      device::launch<narrow_d_w_kernel<Elem, 1>>(s, grid(1), dim3(128), d_y, a.d_y.ld(), x, a.x.ld(),
                                                 static_cast<int>(T), static_cast<int>(K), static_cast<int>(rows),
                                                 partials);
    add_rows_cuda(s, partials, blocks, N * K, 1, a.d_w.as<float>(), 0, a.d_w_write == GradWrite::accumulate);
  }
}

struct LtCall {
  LtProblem problem;
  LtOperands operands;
};
std::vector<LtCall> wide_products(const LinearGradArgs& a) {
  const int64_t T = a.x.rows(), N = a.w_plain.rows(), K = a.w_plain.cols();
  std::vector<LtCall> calls;
  LtOperands o;
  o.workspace = a.scratch.data;
  o.workspace_bytes = static_cast<size_t>(a.scratch.bytes());
  LtProblem p;
  p.ab = a.x.dtype;
  p.tf32 = a.precision == Precision::tf32;
  if (a.d_x) {  // d_xᵀ[K,T] = Wᵀ[K,N] d_yᵀ[N,T]
    p.m = K;
    p.n = T;
    p.k = N;
    p.lda = a.w_plain.ld();
    p.ldb = a.d_y.ld();
    p.ldc = p.ldd = a.d_x.ld();
    p.c = p.d = p.bias = a.x.dtype;
    p.add_c = a.d_x_write == GradWrite::accumulate;
    o.a = a.w_plain.data;
    o.b = a.d_y.data;
    o.c = o.d = a.d_x.data;
    calls.push_back({p, o});
  }
  if (a.d_w) {  // d_wᵀ[K,N] = xᵀ[K,T] d_y[T,N]
    p.m = K;
    p.n = N;
    p.k = T;
    p.lda = a.x.ld();
    p.ldb = a.d_y.ld();
    p.ldc = p.ldd = a.d_w.ld();
    p.trans_b = true;
    p.tokens_in_k = true;
    p.c = p.d = p.bias = tensor::DType::f32;
    p.add_c = a.d_w_write == GradWrite::accumulate;
    o.a = a.x.data;
    o.b = a.d_y.data;
    o.c = o.d = a.d_w.data;
    calls.push_back({p, o});
  }
  return calls;
}

}  // namespace

void linear_grad_cuda(device::Stream& stream, const LinearGradArgs& a) {
  cuda_op(stream, "linear_grad", [&](device::CudaStream& s) {
    if (a.x.rows() == 0) {  // empty sums
      if (a.d_w_write == GradWrite::accumulate) return;
      if (a.d_w) s.fill_zero(a.d_w.data, static_cast<size_t>(a.d_w.bytes()));
      if (a.d_bias) s.fill_zero(a.d_bias.data, static_cast<size_t>(a.d_bias.bytes()));
      return;
    }
    BRIM_CHECK(a.w_plain.dtype == a.x.dtype, "linear_grad: w is {}, x {}", a.w_plain.shape_text(), a.x.shape_text());
    BRIM_CHECK(a.precision != Precision::int8 && a.precision != Precision::fp8, "linear_grad: {} is not supported",
               precision_name(a.precision));
    const int64_t wanted = cuda_column_partials(a.x.rows()) * a.d_y.cols() * static_cast<int64_t>(sizeof(float));
    BRIM_CHECK(a.scratch && a.scratch.bytes() >= wanted, "linear_grad: scratch has {} bytes, needs {}",
               a.scratch ? a.scratch.bytes() : 0, wanted);
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      if (a.d_bias) bias_gradient<Elem>(s, a);
      if (is_narrow(s, a)) narrow_gradients<Elem>(s, a);
    });
    if (is_narrow(s, a)) return;
    for (const LtCall& call : wide_products(a)) lt_matmul(s, call.problem, call.operands);
  });
}

}  // namespace brim::ops
