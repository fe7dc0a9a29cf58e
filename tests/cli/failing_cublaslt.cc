// SPDX-License-Identifier: Apache-2.0
// Mock of cuBLASLt whose products fail after the first BRIM_TEST_GOOD_PRODUCTS. With BRIM_TEST_ONE_ALGORITHM, products
// compute nothing except with the first algorithm used for the same operands. All other functions are those of the real
// library, on which this one depends. Loaded by the program with BRIM_CUBLASLT.
#include <cublasLt.h>
#include <dlfcn.h>

#include <atomic>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <tuple>

namespace {

bool is_first(const void* a, const void* b, const void* d, cublasLtMatrixLayout_t d_layout,
              const cublasLtMatmulAlgo_t& algo) {
  static std::mutex mutex;
  static std::map<std::tuple<const void*, const void*, const void*, uint64_t>, cublasLtMatmulAlgo_t> first;
  uint64_t columns = 0;
  size_t written = 0;
  cublasLtMatrixLayoutGetAttribute(d_layout, CUBLASLT_MATRIX_LAYOUT_COLS, &columns, sizeof columns, &written);
  const std::lock_guard lock(mutex);
  const auto at = first.try_emplace({a, b, d, columns}, algo).first;
  return std::memcmp(&at->second, &algo, sizeof algo) == 0;
}

}  // namespace

// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name)
extern "C" cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t desc, const void* alpha,
                                         const void* a, cublasLtMatrixLayout_t a_layout, const void* b,
                                         cublasLtMatrixLayout_t b_layout, const void* beta, const void* c,
                                         cublasLtMatrixLayout_t c_layout, void* d, cublasLtMatrixLayout_t d_layout,
                                         const cublasLtMatmulAlgo_t* algo, void* workspace, size_t workspace_bytes,
                                         cudaStream_t stream) {
  static const auto real = reinterpret_cast<decltype(&cublasLtMatmul)>(
      ::dlsym(::dlopen(BRIM_REAL_CUBLASLT, RTLD_NOW | RTLD_LOCAL), "cublasLtMatmul"));
  static const char* const limit = std::getenv("BRIM_TEST_GOOD_PRODUCTS");
  static std::atomic<long> good{limit == nullptr ? LONG_MAX : std::atol(limit)};
  if (real == nullptr || good.fetch_sub(1) <= 0) return CUBLAS_STATUS_EXECUTION_FAILED;
  if (std::getenv("BRIM_TEST_ONE_ALGORITHM") != nullptr && !is_first(a, b, d, d_layout, *algo))
    return CUBLAS_STATUS_SUCCESS;
  return real(handle, desc, alpha, a, a_layout, b, b_layout, beta, c, c_layout, d, d_layout, algo, workspace,
              workspace_bytes, stream);
}
