// SPDX-License-Identifier: Apache-2.0
// cuBLASLt, loaded at run time on first use: the functions needed, and error messages.
#pragma once
#include <cublasLt.h>

#include <string>
#include <vector>

namespace brim::ops {

// Functions looked up by name in the library.
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
  std::string file;
};

// The first of `names`, files or names of libraries, that can be loaded.
LtLibrary load_lt_library(const std::vector<std::string>& names);
const LtLibrary& lt_library();  // fails if not found
// `problem` describes the product in the error message.
void check_lt(cublasStatus_t status, const char* call, const std::string& problem);

}  // namespace brim::ops
