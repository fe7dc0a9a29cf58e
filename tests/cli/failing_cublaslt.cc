// SPDX-License-Identifier: Apache-2.0
// cuBLASLt whose products fail after the first BRIM_TEST_GOOD_PRODUCTS: everything else is the real library's, found
// through this one's dependency on it. Given to the program as BRIM_CUBLASLT.
#include <cublasLt.h>
#include <dlfcn.h>

#include <atomic>
#include <cstdlib>

// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name)
extern "C" cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                                         const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                                         cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                                         cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                                         const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                                         cudaStream_t stream) {
  static const auto real = reinterpret_cast<decltype(&cublasLtMatmul)>(
      ::dlsym(::dlopen(BRIM_REAL_CUBLASLT, RTLD_NOW | RTLD_LOCAL), "cublasLtMatmul"));
  static std::atomic<long> good{std::atol(std::getenv("BRIM_TEST_GOOD_PRODUCTS"))};
  if (real == nullptr || good.fetch_sub(1) <= 0) return CUBLAS_STATUS_EXECUTION_FAILED;
  return real(handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace,
              workspace_bytes, stream);
}
