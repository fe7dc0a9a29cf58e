// SPDX-License-Identifier: Apache-2.0
// cuBLASLt as it is found at run time: the functions used, and errors in words. Opened with the first product.
#pragma once
#include <cublasLt.h>

#include <string>

namespace brim::ops {

// The functions used, found by name in the library.
// clang-format off
#define BRIM_LT_FUNCTIONS(X) \
  X(cublasLtCreate) \
  X(cublasLtDestroy) \
  X(cublasLtGetVersion) \
  X(cublasLtGetStatusString) \
  X(cublasLtMatmul) \
  X(cublasLtMatmulDescInit_internal) \
  X(cublasLtMatmulDescSetAttribute) \
  X(cublasLtMatrixLayoutInit_internal) \
  X(cublasLtMatrixLayoutSetAttribute) \
  X(cublasLtMatmulPreferenceInit_internal) \
  X(cublasLtMatmulPreferenceSetAttribute) \
  X(cublasLtMatmulAlgoGetHeuristic) \
  X(cublasLtMatmulAlgoGetIds) \
  X(cublasLtMatmulAlgoInit) \
  X(cublasLtMatmulAlgoCheck) \
  X(cublasLtMatmulAlgoCapGetAttribute) \
  X(cublasLtMatmulAlgoConfigSetAttribute) \
  X(cublasLtMatmulAlgoConfigGetAttribute)
// clang-format on

struct LtLibrary {
#define BRIM_LT_MEMBER(name) decltype(&::name) name = nullptr;
  BRIM_LT_FUNCTIONS(BRIM_LT_MEMBER)
#undef BRIM_LT_MEMBER
};

const LtLibrary& lt_library();  // fails where there is none
// `problem`: the product at hand, for the message.
void check_lt(cublasStatus_t status, const char* call, const std::string& problem);

}  // namespace brim::ops
