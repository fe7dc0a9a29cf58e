// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/lt_run.h"

namespace brim::ops {

using device::CudaStream;
using tensor::DType;

namespace {

cublasLtEpilogue_t epilogue_type(LtEpilogue e) {
  switch (e) {
    case LtEpilogue::none:
      return CUBLASLT_EPILOGUE_DEFAULT;
    case LtEpilogue::bias:
      return CUBLASLT_EPILOGUE_BIAS;
    case LtEpilogue::gelu:
      return CUBLASLT_EPILOGUE_GELU;
    case LtEpilogue::gelu_bias:
      return CUBLASLT_EPILOGUE_GELU_BIAS;
    case LtEpilogue::relu:
      return CUBLASLT_EPILOGUE_RELU;
    case LtEpilogue::relu_bias:
      return CUBLASLT_EPILOGUE_RELU_BIAS;
  }
  return CUBLASLT_EPILOGUE_DEFAULT;
}
bool has_bias(LtEpilogue e) {
  return e == LtEpilogue::bias || e == LtEpilogue::gelu_bias || e == LtEpilogue::relu_bias;
}

void layout(cublasLtMatrixLayoutOpaque_t& to, DType type, int64_t rows, int64_t cols, int64_t ld) {
  check_lt(lt_library().cublasLtMatrixLayoutInit_internal(&to, sizeof to, lt_data_type(type),
                                                          static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), ld),
           "cublasLtMatrixLayoutInit", "");
}
void batch(cublasLtMatrixLayoutOpaque_t& to, int64_t lanes, int64_t stride) {
  const auto count = static_cast<int32_t>(lanes);
  check_lt(lt_library().cublasLtMatrixLayoutSetAttribute(&to, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &count, sizeof count),
           "cublasLtMatrixLayoutSetAttribute", "");
  check_lt(lt_library().cublasLtMatrixLayoutSetAttribute(&to, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &stride,
                                                         sizeof stride),
           "cublasLtMatrixLayoutSetAttribute", "");
}

}  // namespace

cudaDataType_t lt_data_type(DType t) {
  switch (t) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::f16:
      return CUDA_R_16F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f8e4m3:
      return CUDA_R_8F_E4M3;
    default:
      fail(ErrorCode::internal, "cuBLASLt: {} is not supported", dtype_name(t));
  }
}
cublasComputeType_t lt_compute_type(const LtProblem& p) {
  return p.ab == DType::f32 && p.tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
}

template <class V>
void LtDescription::set(cublasLtMatmulDescAttributes_t what, const V& value) {
  check_lt(lt_library().cublasLtMatmulDescSetAttribute(&desc, what, &value, sizeof value),
           "cublasLtMatmulDescSetAttribute", "");
}
LtDescription::LtDescription(const LtProblem& p, const LtOperands& o) {
  const LtLibrary& l = lt_library();
  check_lt(l.cublasLtMatmulDescInit_internal(&desc, sizeof desc, lt_compute_type(p), CUDA_R_32F),
           "cublasLtMatmulDescInit", "");
  set(CUBLASLT_MATMUL_DESC_TRANSA, p.trans_a ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_TRANSB, p.trans_b ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue_type(p.epilogue));
  if (has_bias(p.epilogue)) {
    set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, o.bias);
    set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, lt_data_type(p.bias));
    if (p.lanes > 0) set(CUBLASLT_MATMUL_DESC_BIAS_BATCH_STRIDE, p.stride_bias);
  }
  if (p.ab == DType::f8e4m3) {
    set(CUBLASLT_MATMUL_DESC_FAST_ACCUM, static_cast<int8_t>(p.exact_sums ? 0 : 1));
    if (o.a_scale != nullptr) set(CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, o.a_scale);
    if (o.b_scale != nullptr) set(CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, o.b_scale);
    if (o.d_scale != nullptr) set(CUBLASLT_MATMUL_DESC_D_SCALE_POINTER, o.d_scale);
  }
  layout(a, p.ab, p.trans_a ? p.k : p.m, p.trans_a ? p.m : p.k, p.lda);
  layout(b, p.ab, p.trans_b ? p.n : p.k, p.trans_b ? p.k : p.n, p.ldb);
  layout(c, p.c, p.m, p.n, p.add_c ? p.ldc : p.ldd);
  layout(d, p.d, p.m, p.n, p.ldd);
  if (p.lanes == 0) return;
  batch(a, p.lanes, p.stride_a);
  batch(b, p.lanes, p.stride_b);
  batch(c, p.lanes, p.stride_d);
  batch(d, p.lanes, p.stride_d);
}

std::string lt_key_text(const LtProblem& p) {
  static const char* const epilogues[] = {"", " bias", " gelu", " gelu+bias", " relu", " relu+bias"};
  return fmt::format("{}{} m {} n {} k {} {}{}>{}{}{}{}{}", p.trans_a ? "t" : "n", p.trans_b ? "t" : "n", p.m, p.n, p.k,
                     dtype_name(p.ab), p.tf32 ? "(tf32)" : "", dtype_name(p.d), epilogues[static_cast<int>(p.epilogue)],
                     p.add_c ? " + c" : "", p.lanes > 0 ? " lanes" : "", p.exact_sums ? " exact" : "");
}

cublasStatus_t lt_try_run(CudaStream& stream, cublasLtHandle_t handle, const LtProblem& p, const LtOperands& o,
                          LtDescription& d, const cublasLtMatmulAlgo_t& algo) {
  const float one = 1.0f, beta = p.add_c ? 1.0f : 0.0f;
  // Not read if beta is 0, but it must be a valid pointer, and different from D for an fp8 result.
  const void* c = p.add_c ? o.c : p.c == p.d ? o.d : o.workspace;
  return lt_library().cublasLtMatmul(handle, &d.desc, &one, o.a, &d.a, o.b, &d.b, &beta, c, &d.c, o.d, &d.d, &algo,
                                     o.workspace, o.workspace_bytes, stream.handle());
}

}  // namespace brim::ops
