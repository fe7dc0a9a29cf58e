// SPDX-License-Identifier: Apache-2.0
// AVX2 kernels: tiles of 6 rows by 16 columns, 12 of the 16 registers accumulate, rows are broadcast from memory.
#include "ops/gemm/finish.h"

namespace brim::gemm {
namespace {

constexpr int kRows = 6, kPanel = 16;

template <int R, int V>
void tile_fp32(const float* x, int64_t lda, const float* b, int64_t K, float* acc) {
  __m256 c[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) c[r][v] = _mm256_setzero_ps();
  for (int64_t k = 0; k < K; ++k, b += kPanel) {
    __m256 w[V];
    for (int v = 0; v < V; ++v) w[v] = _mm256_loadu_ps(b + v * 8);
    for (int r = 0; r < R; ++r) {
      const __m256 a = _mm256_broadcast_ss(x + r * lda + k);
      for (int v = 0; v < V; ++v) c[r][v] = _mm256_fmadd_ps(a, w[v], c[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) _mm256_store_ps(acc + r * kPanel + v * 8, c[r][v]);
}

using TileFp32 = void (*)(const float*, int64_t, const float*, int64_t, float*);
constexpr TileFp32 kTilesFp32[kRows] = {tile_fp32<1, 2>, tile_fp32<2, 2>, tile_fp32<3, 2>, tile_fp32<4, 2>, tile_fp32<5, 2>, tile_fp32<6, 2>};

void run_fp32(const Block& block) {
  alignas(32) float acc[kRows * kPanel];
  for (int64_t n = block.n_begin; n < block.n_end; n += kPanel) {
    const float* b = static_cast<const float*>(block.b) + n * block.K;
    const int cols = static_cast<int>(block.n_end - n < kPanel ? block.n_end - n : kPanel);
    for (int64_t m = 0; m < block.m; m += kRows) {
      const int rows = static_cast<int>(block.m - m < kRows ? block.m - m : kRows);
      kTilesFp32[rows - 1](static_cast<const float*>(block.a) + m * block.lda, block.lda, b, block.K, acc);
      finish_tile<false>(block, acc, kPanel, m, n, rows, cols);
    }
  }
}

}  // namespace

const Kernel kAvx2Fp32 = {.name = "avx2_fp32", .mr = kRows, .nr = kPanel, .n_step = kPanel, .kr = 1, .k_multiple = 1, .element_bytes = 4,
                          .column_sums = false, .a_element_bytes = 0, .pack_rows = nullptr, .run = run_fp32};

}  // namespace brim::gemm
