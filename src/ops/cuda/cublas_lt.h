// SPDX-License-Identifier: Apache-2.0
// Matrix products through cuBLASLt, loaded at run time. Problems use its conventions: column-major D[m,n] =
// epilogue(op(A)[m,k] op(B)[k,n] (+ C) (+ bias)), so a row-major y[T,N] = x[T,K] Wᵀ has m = N, n = T, A = W, B = x. The
// algorithm is looked up by shape class, with the token count rounded up to a power of two: it is the same for every
// batch of a class, so runs are reproducible to the bit. Untuned classes use the first result of the heuristic. On a
// stream with fixed algorithms there is one class and no tuning. Products of several lanes (ops/lane_linear.h) are one
// batched product; their algorithm is selected for a fixed number of lanes and accepted only if lanes give the same
// bits together and alone.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "ops/gemm_tuner.h"
#include "ops/linear.h"

namespace brim::device {
class CudaStream;
}  // namespace brim::device

namespace brim::ops {

using tensor::DType;

enum class LtEpilogue : uint8_t { none, bias, gelu, gelu_bias, relu, relu_bias };

struct LtProblem {
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldc = 0, ldd = 0;
  bool trans_a = false, trans_b = false;
  DType ab = DType::bf16, c = DType::bf16, d = DType::bf16, bias = DType::bf16;
  bool tf32 = false;         // f32 operands on tensor cores
  bool exact_sums = false;   // fp8: accumulate in fp32, not in the reduced precision of the tensor cores
  bool add_c = false;        // beta = 1, else 0
  bool tokens_in_k = false;  // token dimension: k (weight gradients) or n
  LtEpilogue epilogue = LtEpilogue::none;
  int64_t lanes = 0;                                                  // batch count, may be 1; 0: not batched
  int64_t stride_a = 0, stride_b = 0, stride_d = 0, stride_bias = 0;  // elements between lanes; C has the layout of D
};
struct LtOperands {
  const void *a = nullptr, *b = nullptr, *c = nullptr;
  void* d = nullptr;
  const void* bias = nullptr;
  const float *a_scale = nullptr, *b_scale = nullptr, *d_scale = nullptr;  // fp8, on the device
  void* workspace = nullptr;
  size_t workspace_bytes = 0;
};

void lt_matmul(device::CudaStream& stream, const LtProblem& problem, const LtOperands& operands);
// Times the heuristic's results, then further configurations for `seconds`, and keeps the fastest for this shape class.
// Overwrites D. Never called while batches run.
GemmChoice lt_tune(device::CudaStream& stream, const LtProblem& problem, const LtOperands& operands, double seconds);

// Backend functions called by gemm_tuner.cc.
GemmChoice tune_linear_cuda(device::Stream& stream, const LinearArgs& args, double seconds);  // linear_cuda.cu
void fix_gemm_algorithms_cuda(device::Stream& stream);
void spare_gemm_library_cuda(device::Stream& stream);
void release_gemm_library_cuda(device::Stream& stream);
std::vector<GemmChoice> gemm_choices_cuda(device::Stream& stream);
void use_gemm_choices_cuda(device::Stream& stream, const std::vector<GemmChoice>& choices);
std::string gemm_library_cuda(device::Stream& stream);  // GPU, driver and library version, for which choices are valid

}  // namespace brim::ops
