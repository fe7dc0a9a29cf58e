// SPDX-License-Identifier: Apache-2.0
// linear on CUDA: cuBLASLt with bias, activation and residual in its epilogue if supported, one warp per row for narrow
// outputs (classifier heads), and a separate pass for the rest (GELU in fp32, tanh, SiLU). Few rows are handled in
// linear_thin_cuda.cu.
#include "ops/amax.h"
#include "ops/cuda/activation.cuh"
#include "ops/cuda/cublas_lt.h"
#include "ops/cuda/linear_int8.h"
#include "ops/cuda/linear_thin.h"
#include "ops/cuda/narrow_linear.h"
#include "ops/cuda/rows2d.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

namespace {

// Rows of x times a few rows of W, four outputs at a time so that x is read a quarter as often.
template <class Elem, class Out, int kWidth>
__global__ void __launch_bounds__(128)
    narrow_kernel(const Elem* x, int64_t ldx, const Elem* w, int64_t ldw, const Elem* bias, const Out* residual,
                  int64_t ld_residual, Out* y, int64_t ldy, int T, int N, int K, Activation activation) {
  const int64_t r = (static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x) / 32;
  const int lane = threadIdx.x % 32;
  let_next_begin();
  wait_for_previous();
  if (r >= T) return;
  x += r * ldx;
  for (int n = 0; n < N; n += 4) {
    float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};
    for (int k = lane * kWidth; k < K; k += 32 * kWidth) {
      float a[kWidth], b[kWidth];
      load_piece<kWidth>(x + k, a);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        load_piece<kWidth>(w + min(n + i, N - 1) * ldw + k, b);
#pragma unroll
        for (int j = 0; j < kWidth; ++j) sum[i] = fmaf(a[j], b[j], sum[i]);
      }
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sum[i] = warp_sum(sum[i]);
    if (lane < 4 && n + lane < N) {
      const int c = n + lane;
      float v = lane == 0 ? sum[0] : lane == 1 ? sum[1] : lane == 2 ? sum[2] : sum[3];
      if (bias != nullptr) v += to_f32(bias[c]);
      v = activated_as(activation, v);
      if (residual != nullptr) v += to_f32(residual[r * ld_residual + c]);
      y[r * ldy + c] = from_f32<Out>(v);
    }
  }
}

// y = activation(y) [+ residual], in place.
template <class Elem, Activation kActivation, int kWidth>
__global__ void __launch_bounds__(kElementThreads)
    epilogue_kernel(Elem* y, int64_t ldy, const Elem* residual, int64_t ld_residual, Extent e) {
  int64_t row, col;
  if (!piece_at<kWidth>(e, row, col)) return;
  float f[kWidth], other[kWidth];
  load_piece<kWidth>(y + row * ldy + col, f);
#pragma unroll
  for (int i = 0; i < kWidth; ++i) f[i] = activated<kActivation>(f[i]);
  if (residual != nullptr) {
    load_piece<kWidth>(residual + row * ld_residual + col, other);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) f[i] += other[i];
  }
  store_piece<kWidth>(y + row * ldy + col, f);
}

// cuBLASLt requires rows readable 16 bytes at a time. It is also not worth its launch for few columns, as those of
// classifier heads, unless there are as many rows as for adapters.
bool is_narrow(const device::CudaStream& s, const LinearArgs& a) {
  if (a.w.precision == Precision::fp8) return false;
  if (a.w.N % 8 != 0 || a.w.K % 8 != 0 || a.y.dtype != a.x.dtype) return true;
  return is_narrow_head(s, a.x.rows(), a.w.N);
}

// Work left for a separate pass after the GEMM.
struct Rest {
  Activation activation = Activation::none;
  bool residual = false;
};

bool is_gelu(Activation a) { return a == Activation::gelu || a == Activation::gelu_tanh; }

// The library's GELU is the tanh form: its difference from the erf form is below the rounding of half precision, but
// not of fp32.
Rest rest_of(const LinearArgs& a) {
  const bool half = a.x.dtype != DType::f32, fp8 = a.x.dtype == DType::f8e4m3;
  const bool fused =
      a.activation == Activation::none || (a.activation == Activation::relu && !fp8) || (is_gelu(a.activation) && half);
  return {fused ? Activation::none : a.activation, a.residual && a.activation != Activation::none};
}

struct LtCall {
  LtProblem problem;
  LtOperands operands;
};
LtCall lt_call(const LinearArgs& a) {
  const Rest rest = rest_of(a);
  const bool fp8 = a.w.precision == Precision::fp8;
  LtCall call;
  LtProblem& p = call.problem;
  p.m = a.w.N;
  p.n = a.x.rows();
  p.k = a.w.K;
  p.lda = a.w.data.ld();
  p.ldb = a.x.ld();
  p.ldd = a.y.ld();
  p.trans_a = true;
  p.ab = a.x.dtype;
  p.d = a.y.dtype;
  p.c = p.d == DType::f8e4m3 ? DType::bf16 : p.d;
  p.bias = a.bias ? a.bias.dtype : p.c;
  p.tf32 = a.w.precision == Precision::tf32;
  p.exact_sums = fp8 && a.role != LinearRole::forward;
  p.tokens_in_k = a.role == LinearRole::weight_gradient;
  p.add_c = a.residual && !rest.residual;
  p.ldc = p.add_c ? a.residual.ld() : p.ldd;
  const Activation fused = rest.activation == Activation::none ? a.activation : Activation::none;
  p.epilogue = is_gelu(fused)              ? (a.bias ? LtEpilogue::gelu_bias : LtEpilogue::gelu)
               : fused == Activation::relu ? (a.bias ? LtEpilogue::relu_bias : LtEpilogue::relu)
               : a.bias                    ? LtEpilogue::bias
                                           : LtEpilogue::none;
  LtOperands& o = call.operands;
  o.a = a.w.data.data;
  o.b = a.x.data;
  o.c = a.residual.data;
  o.d = a.y.data;
  o.bias = a.bias.data;
  if (fp8) {
    o.a_scale = a.w.scale.as<float>();
    o.b_scale = a.x_scale.as<float>();
    o.d_scale = a.y_scale.as<float>();
  }
  o.workspace = a.scratch.data;
  o.workspace_bytes = static_cast<size_t>(a.scratch ? a.scratch.bytes() : 0);
  return call;
}

void check_linear_types(const LinearArgs& a) {
  const bool fp8 = a.w.precision == Precision::fp8;
  const DType wanted = fp8                                ? DType::f8e4m3
                       : a.w.precision == Precision::bf16 ? DType::bf16
                       : a.w.precision == Precision::fp16 ? DType::f16
                                                          : DType::f32;
  BRIM_CHECK(a.x.dtype == wanted && a.w.data.dtype == wanted, "linear: x is {} and w is {}, {} requires {}",
             a.x.shape_text(), a.w.data.shape_text(), precision_name(a.w.precision), dtype_name(wanted));
  BRIM_CHECK(a.w.data.rank == 2 && a.w.data.rows() == a.w.N && a.w.data.cols() == a.w.K,
             "linear: w is {}, must be [{},{}]", a.w.data.shape_text(), a.w.N, a.w.K);
  BRIM_CHECK(!a.bias || a.bias.dtype == (fp8 ? a.bias.dtype : wanted), "linear: bias is {}, must be {}",
             a.bias.shape_text(), dtype_name(wanted));
  BRIM_CHECK(!a.residual || a.residual.dtype == a.y.dtype, "linear: residual is {}, must have the type of y {}",
             a.residual.shape_text(), a.y.shape_text());
  BRIM_CHECK(fp8 == (a.x_scale && a.w.scale),
             "linear: x_scale and w.scale are required for fp8 and not allowed otherwise");
  const auto lies = [](const tensor::TensorView& scale) {
    return reinterpret_cast<uintptr_t>(scale.data) % kFp8ScaleBytes == 0;
  };
  BRIM_CHECK(lies(a.x_scale) && lies(a.w.scale), "linear: fp8 scales must be aligned to {} bytes", kFp8ScaleBytes);
  const bool to_fp8 = a.y.dtype == DType::f8e4m3;
  BRIM_CHECK(to_fp8 == static_cast<bool>(a.y_scale) &&
                 (!to_fp8 || (fp8 && !a.residual && rest_of(a).activation == Activation::none && a.scratch)),
             "linear: an fp8 result requires y_scale, fp8 operands and scratch, no residual and no {} activation",
             a.activation == Activation::tanh ? "tanh" : "such");
  BRIM_CHECK(fp8 || a.role == LinearRole::forward, "linear: gradients in {} are not supported, use linear_grad",
             precision_name(a.w.precision));
  BRIM_CHECK(!(a.residual && a.activation != Activation::none && a.residual.data == a.y.data),
             "linear: residual must not be y if there is an activation");
}

template <class Elem, class Out>
void launch_narrow(device::CudaStream& s, const LinearArgs& a) {
  const bool wide = a.w.K % 8 == 0 && eight_wide(a.x) && eight_wide(a.w.data);
  const dim3 grid(device::blocks_for(a.x.rows(), 4)), block(128);
  const auto *x = static_cast<const Elem*>(a.x.data), *w = static_cast<const Elem*>(a.w.data.data),
             *bias = static_cast<const Elem*>(a.bias.data);
  const auto* residual = static_cast<const Out*>(a.residual.data);
  const int T = static_cast<int>(a.x.rows()), N = static_cast<int>(a.w.N), K = static_cast<int>(a.w.K);
  auto* y = static_cast<Out*>(a.y.data);
  if (wide)
    device::launch_chained<narrow_kernel<Elem, Out, 8>>(s, grid, block, x, a.x.ld(), w, a.w.data.ld(), bias, residual,
                                                        a.residual.ld(), y, a.y.ld(), T, N, K, a.activation);
  else
    device::launch_chained<narrow_kernel<Elem, Out, 1>>(s, grid, block, x, a.x.ld(), w, a.w.data.ld(), bias, residual,
                                                        a.residual.ld(), y, a.y.ld(), T, N, K, a.activation);
}

void finish(device::CudaStream& s, const LinearArgs& a, const Rest& rest) {
  if (rest.activation == Activation::none && !rest.residual) return;
  const tensor::TensorView residual = rest.residual ? a.residual : tensor::TensorView();
  const Extent e = extent_of(a.y, residual);
  dispatch_elem(a.y.dtype, [&](auto tag) {
    using Elem = typename decltype(tag)::type;
    dispatch_activation(rest.activation, [&](auto chosen) {
      constexpr Activation kActivation = decltype(chosen)::value;
      auto* y = static_cast<Elem*>(a.y.data);
      const auto* r = static_cast<const Elem*>(residual.data);
      if (all_eight_wide(e, a.y, residual))
        device::launch<epilogue_kernel<Elem, kActivation, 8>>(s, element_grid(e, 8), dim3(kElementThreads), y, a.y.ld(),
                                                              r, residual.ld(), e);
      else
        device::launch<epilogue_kernel<Elem, kActivation, 1>>(s, element_grid(e, 1), dim3(kElementThreads), y, a.y.ld(),
                                                              r, residual.ld(), e);
    });
  });
}

// Random values for timing, because zeros run faster than real data.
template <class Elem>
__global__ void __launch_bounds__(kElementThreads) scatter_values_kernel(Elem* x, int64_t ldx, Extent e) {
  int64_t row, col;
  if (!piece_at<1>(e, row, col)) return;
  const uint64_t bits = dropout_bits(1, 0, static_cast<uint64_t>(row), static_cast<uint32_t>(col));
  float sum = -6.0f;  // sum of twelve uniforms minus six: approximately normal
#pragma unroll
  for (int i = 0; i < 12; ++i) sum += static_cast<float>(bits >> (5 * i) & 31) * (1.0f / 31.0f);
  if constexpr (sizeof(Elem) == 1)
    x[row * ldx + col] = __nv_cvt_float_to_fp8(8.0f * sum, __NV_SATFINITE, __NV_E4M3);
  else
    x[row * ldx + col] = from_f32<Elem>(sum);
}

}  // namespace

void linear_cuda(device::Stream& stream, const LinearArgs& a) {
  if (a.x.rows() == 0 || a.w.N == 0) return;
  cuda_op(stream, "linear", [&](device::CudaStream& s) {
    if (a.w.precision == Precision::int8) return launch_int8(s, a);
    check_linear_types(a);
    if (is_narrow(s, a)) {
      BRIM_CHECK(a.y.dtype == a.x.dtype || a.y.dtype == DType::f32, "linear: y is {}, must be f32 or the type of x {}",
                 a.y.shape_text(), a.x.shape_text());
      return dispatch_elem(a.x.dtype, [&](auto tag) {
        using Elem = typename decltype(tag)::type;
        if (a.y.dtype == DType::f32)
          launch_narrow<Elem, float>(s, a);
        else
          launch_narrow<Elem, Elem>(s, a);
      });
    }
    if (is_thin(s, a)) return launch_thin(s, a);
    const LtCall call = lt_call(a);
    lt_matmul(s, call.problem, call.operands);
    finish(s, a, rest_of(a));
  });
}

GemmChoice tune_linear_cuda(device::Stream& stream, const LinearArgs& a, double seconds) {
  if (a.x.rows() == 0 || a.w.precision == Precision::int8) return {};
  GemmChoice choice;
  cuda_op(stream, "tune", [&](device::CudaStream& s) {
    check_linear_types(a);
    if (is_narrow(s, a) || is_thin(s, a)) return;  // our own kernels
    const Extent e{a.x.rows(), a.x.cols()};
    if (a.x.dtype == DType::f8e4m3)
      launch<scatter_values_kernel<uint8_t>>(s, element_grid(e, 1), dim3(kElementThreads),
                                             static_cast<uint8_t*>(a.x.data), a.x.ld(), e);
    else
      dispatch_elem(a.x.dtype, [&](auto tag) {
        using Elem = typename decltype(tag)::type;
        device::launch<scatter_values_kernel<Elem>>(s, element_grid(e, 1), dim3(kElementThreads),
                                                    static_cast<Elem*>(a.x.data), a.x.ld(), e);
      });
    const LtCall call = lt_call(a);
    choice = lt_tune(s, call.problem, call.operands, seconds);
  });
  return choice;
}

}  // namespace brim::ops
