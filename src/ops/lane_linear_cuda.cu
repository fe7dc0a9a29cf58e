// SPDX-License-Identifier: Apache-2.0
// Lanes on CUDA: one batched cuBLASLt product in each direction, with bias and ReLU in its epilogue; the gradient's
// gate and the resulting bias gradient in one pass. Widths are multiples of 8 (windows are padded).
#include "ops/cuda/column_sums.cuh"
#include "ops/cuda/cublas_lt.h"
#include "ops/kernel_table.h"
#include "ops/lane.h"

namespace brim::ops {
namespace {

void check_eights(const char* op, int64_t N, int64_t K) {
  BRIM_CHECK(N % 8 == 0 && K % 8 == 0, "{}: a lane's matrix is [{},{}], both must be multiples of 8", op, N, K);
}

struct LaneCall {
  LtProblem problem;
  LtOperands operands;
};
LaneCall lane_call(const TensorView& scratch, DType ab, Precision precision, int64_t lanes) {
  LaneCall call;
  call.problem.ab = ab;
  call.problem.tf32 = precision == Precision::tf32;
  call.problem.lanes = lanes;
  call.operands.workspace = scratch.data;
  call.operands.workspace_bytes =
      static_cast<size_t>(std::min<int64_t>(scratch ? scratch.bytes() : 0, kCudaLinearScratchBytes));
  return call;
}

// d_xᵀ[K,B] = wᵀ[K,N] d_yᵀ[N,B]
LaneCall d_x_call(const LaneLinearGradArgs& a) {
  LaneCall call = lane_call(a.scratch, a.x.dtype, a.precision, a.d_y.rows());
  LtProblem& p = call.problem;
  p.m = a.x.cols();
  p.n = a.d_y.dim[1];
  p.k = a.d_y.cols();
  p.lda = a.w.stride[1];
  p.ldb = a.d_y.stride[1];
  p.ldc = p.ldd = a.d_x.stride[1];
  p.c = p.d = p.bias = a.d_x.dtype;
  p.add_c = a.d_x_write == GradWrite::accumulate;
  p.stride_a = lane_stride(a.w);
  p.stride_b = lane_stride(a.d_y);
  p.stride_d = lane_stride(a.d_x);
  call.operands.a = a.w.data;
  call.operands.b = a.d_y.data;
  call.operands.c = call.operands.d = a.d_x.data;
  return call;
}
// d_wᵀ[K,N] = xᵀ[K,B] d_y[B,N]
LaneCall d_w_call(const LaneLinearGradArgs& a) {
  LaneCall call = lane_call(a.scratch, a.x.dtype, a.precision, a.d_y.rows());
  LtProblem& p = call.problem;
  p.m = a.x.cols();
  p.n = a.d_y.cols();
  p.k = a.d_y.dim[1];
  p.lda = a.x.stride[1];
  p.ldb = a.d_y.stride[1];
  p.ldc = p.ldd = a.d_w.stride[1];
  p.trans_b = true;
  p.tokens_in_k = true;
  p.c = p.d = p.bias = DType::f32;
  p.add_c = a.write == GradWrite::accumulate;
  p.stride_a = lane_stride(a.x);
  p.stride_b = lane_stride(a.d_y);
  p.stride_d = lane_stride(a.d_w);
  call.operands.a = a.x.data;
  call.operands.b = a.d_y.data;
  call.operands.c = call.operands.d = a.d_w.data;
  return call;
}

}  // namespace

void lane_linear_cuda(device::Stream& stream, const LaneLinearArgs& a) {
  cuda_op(stream, "lane_linear", [&](device::CudaStream& s) {
    check_eights("lane_linear", a.y.cols(), a.x.cols());
    LaneCall call = lane_call(a.scratch, a.x.dtype, a.precision, a.y.rows());
    LtProblem& p = call.problem;  // yᵀ[N,B] = w[N,K] xᵀ[K,B]
    p.m = a.y.cols();
    p.n = a.y.dim[1];
    p.k = a.x.cols();
    p.lda = a.w.stride[1];
    p.ldb = a.x.stride[1];
    p.ldc = p.ldd = a.y.stride[1];
    p.trans_a = true;
    p.c = p.d = p.bias = a.y.dtype;
    p.epilogue =
        a.relu ? (a.bias ? LtEpilogue::relu_bias : LtEpilogue::relu) : (a.bias ? LtEpilogue::bias : LtEpilogue::none);
    p.stride_a = lane_stride(a.w);
    p.stride_b = lane_stride(a.x);
    p.stride_d = lane_stride(a.y);
    p.stride_bias = lane_stride(a.bias);
    call.operands.a = a.w.data;
    call.operands.b = a.x.data;
    call.operands.d = a.y.data;
    call.operands.bias = a.bias.data;
    lt_matmul(s, p, call.operands);
  });
}

void lane_linear_grad_cuda(device::Stream& stream, const LaneLinearGradArgs& a) {
  cuda_op(stream, "lane_linear_grad", [&](device::CudaStream& s) {
    const int64_t G = a.d_y.rows(), B = a.d_y.dim[1], N = a.d_y.cols(), K = a.x.cols();
    check_eights("lane_linear_grad", N, K);
    const int64_t wanted = cuda_lane_sums_bytes(G, B, std::max(N, K));
    BRIM_CHECK(a.scratch && a.scratch.bytes() >= wanted, "lane_linear_grad: scratch has {} bytes, needs {}",
               a.scratch ? a.scratch.bytes() : 0, wanted);
    if (B == 0) {  // empty sums
      const auto clear = [&](const TensorView& v, GradWrite write) {
        for (int64_t g = 0; v && write == GradWrite::overwrite && g < G; ++g)
          s.fill_zero(v.as<float>() + g * lane_stride(v), static_cast<size_t>(v.bytes() / G));
      };
      clear(a.d_w, a.write);
      clear(a.d_bias, a.write);
      clear(a.d_x_sums, a.d_x_sums_write);
      return;
    }
    if (a.d_x) {
      const LaneCall call = d_x_call(a);
      lt_matmul(s, call.problem, call.operands);
    }
    auto* partials = static_cast<float*>(a.scratch.data);
    const bool add = a.write == GradWrite::accumulate;
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const auto at = [](const TensorView& v) {
        return SumOperand<Elem>{static_cast<Elem*>(v.data), lane_stride(v), v.rank < 2 ? 0 : v.stride[1]};
      };
      const SumOperand<const Elem> x{static_cast<const Elem*>(a.x.data), lane_stride(a.x), a.x.stride[1]};
      if (a.d_x && a.x_is_relu) {
        BRIM_CHECK(a.d_x.dtype == a.x.dtype, "lane_linear_grad: a gated d_x is {}, x {}", a.d_x.shape_text(),
                   a.x.shape_text());
        sum_columns_cuda<Activation::relu, Elem>(s, at(a.d_x), x, G, B, K, true, partials, a.d_x_sums.as<float>(),
                                                 lane_stride(a.d_x_sums), a.d_x_sums_write == GradWrite::accumulate);
      }
      if (a.d_bias)
        sum_columns_cuda<Activation::none, Elem>(s, at(a.d_y), {nullptr, 0, 0}, G, B, N, true, partials,
                                                 a.d_bias.as<float>(), lane_stride(a.d_bias), add);
    });
    if (a.d_w) {
      const LaneCall call = d_w_call(a);
      lt_matmul(s, call.problem, call.operands);
    }
  });
}

}  // namespace brim::ops
