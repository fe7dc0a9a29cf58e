// SPDX-License-Identifier: Apache-2.0
// Matrix products of cuBLASLt for the emulation tests: plain loops over the same problem description.
#include <cmath>

#include "ops/cuda/cublas_lt.h"
#include "ops/cuda/elem.cuh"

namespace brim::ops {

using tensor::DType;

namespace {

float get(const void* p, DType t, int64_t i) {
  switch (t) {
    case DType::f16:
      return static_cast<float>(static_cast<const __half*>(p)[i]);
    case DType::bf16:
      return static_cast<float>(static_cast<const __nv_bfloat16*>(p)[i]);
    case DType::f8e4m3:
      return static_cast<float>(static_cast<const __nv_fp8_e4m3*>(p)[i]);
    default:
      return static_cast<const float*>(p)[i];
  }
}
void put(void* p, DType t, int64_t i, float v) {
  switch (t) {
    case DType::f16:
      static_cast<__half*>(p)[i] = __float2half_rn(v);
      break;
    case DType::bf16:
      static_cast<__nv_bfloat16*>(p)[i] = __float2bfloat16_rn(v);
      break;
    case DType::f8e4m3:
      static_cast<uint8_t*>(p)[i] = __nv_cvt_float_to_fp8(v, __NV_SATFINITE, __NV_E4M3);
      break;
    default:
      static_cast<float*>(p)[i] = v;
      break;
  }
}

}  // namespace

void lt_matmul(device::CudaStream& stream, const LtProblem& p, const LtOperands& o) {
  if (p.lanes > 0) {
    LtProblem alone = p;
    alone.lanes = 0;
    for (int64_t g = 0; g < p.lanes; ++g) {
      const auto past = [&](const void* q, int64_t stride, DType type) {
        return static_cast<const char*>(q) + (q == nullptr ? 0 : g * stride * dtype_bytes(type));
      };
      LtOperands own = o;
      own.a = past(o.a, p.stride_a, p.ab);
      own.b = past(o.b, p.stride_b, p.ab);
      own.c = past(o.c, p.stride_d, p.c);
      own.d = static_cast<char*>(o.d) + g * p.stride_d * dtype_bytes(p.d);
      own.bias = past(o.bias, p.stride_bias, p.bias);
      lt_matmul(stream, alone, own);
    }
    return;
  }
  for (int64_t j = 0; j < p.n; ++j)
    for (int64_t i = 0; i < p.m; ++i) {
      float sum = 0;
      for (int64_t k = 0; k < p.k; ++k)
        sum += get(o.a, p.ab, p.trans_a ? i * p.lda + k : k * p.lda + i) *
               get(o.b, p.ab, p.trans_b ? k * p.ldb + j : j * p.ldb + k);
      if (o.a_scale != nullptr) sum *= *o.a_scale;
      if (o.b_scale != nullptr) sum *= *o.b_scale;
      if (p.add_c) sum += get(o.c, p.c, j * p.ldc + i);
      const LtEpilogue e = p.epilogue;
      if (e == LtEpilogue::bias || e == LtEpilogue::gelu_bias || e == LtEpilogue::relu_bias)
        sum += get(o.bias, p.bias, i);
      if (e == LtEpilogue::gelu || e == LtEpilogue::gelu_bias)
        sum = 0.5f * sum * (1 + std::tanh(0.79788456f * (sum + 0.044715f * sum * sum * sum)));
      if (e == LtEpilogue::relu || e == LtEpilogue::relu_bias) sum = std::max(sum, 0.0f);
      if (o.d_scale != nullptr) sum *= *o.d_scale;
      put(o.d, p.d, j * p.ldd + i, sum);
    }
}
GemmChoice lt_tune(device::CudaStream&, const LtProblem&, const LtOperands&, double) { return {}; }
void fix_gemm_algorithms_cuda(device::Stream&) {}  // plain loops: rows are independent
void spare_gemm_library_cuda(device::Stream& stream) { as_cuda(stream).spare_library(); }
void release_gemm_library_cuda(device::Stream&) {}
std::vector<GemmChoice> gemm_choices_cuda(device::Stream&) { return {}; }
void use_gemm_choices_cuda(device::Stream&, const std::vector<GemmChoice>&) {}
std::string gemm_library_cuda(device::Stream&) { return "emulated"; }

}  // namespace brim::ops
