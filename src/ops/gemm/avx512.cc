// SPDX-License-Identifier: Apache-2.0
// AVX-512 kernels: tiles of 8 rows by 48 columns, 24 accumulators, rows broadcast from memory. 48 divides every width of
// the model families (384, 768, 1024 but for its last panel, 2304, 3072), and one step of k asks 11 loads for 24 products.
#include "ops/gemm/finish.h"

namespace brim::gemm {
namespace {

constexpr int kRows = 8, kVectors = 3, kPanel = kVectors * 16;

// rows x (16 * V) sums into acc; x rows lie lda apart, b is a panel [K][48].
template <int R, int V>
void tile_fp32(const float* x, int64_t lda, const float* b, int64_t K, float* acc) {
  __m512 c[R][V];
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) c[r][v] = _mm512_setzero_ps();
  for (int64_t k = 0; k < K; ++k, b += kPanel) {
    __m512 w[V];
    for (int v = 0; v < V; ++v) w[v] = _mm512_loadu_ps(b + v * 16);
    for (int r = 0; r < R; ++r) {
      const __m512 a = _mm512_set1_ps(x[r * lda + k]);
      for (int v = 0; v < V; ++v) c[r][v] = _mm512_fmadd_ps(a, w[v], c[r][v]);
    }
  }
  for (int r = 0; r < R; ++r)
    for (int v = 0; v < V; ++v) _mm512_store_ps(acc + r * kPanel + v * 16, c[r][v]);
}

using TileFp32 = void (*)(const float*, int64_t, const float*, int64_t, float*);
template <int V>
constexpr TileFp32 kTilesFp32[kRows] = {tile_fp32<1, V>, tile_fp32<2, V>, tile_fp32<3, V>, tile_fp32<4, V>,
                                        tile_fp32<5, V>, tile_fp32<6, V>, tile_fp32<7, V>, tile_fp32<8, V>};

void run_fp32(const Block& block) {
  alignas(64) float acc[kRows * kPanel];
  for (int64_t n = block.n_begin; n < block.n_end;) {
    const int64_t panel = n / kPanel, in_panel = n % kPanel;
    int64_t cols = kPanel - in_panel;
    if (cols > block.n_end - n) cols = block.n_end - n;
    const float* b = static_cast<const float*>(block.b) + panel * kPanel * block.K + in_panel;
    const int64_t vectors = (cols + 15) / 16;
    const TileFp32* tiles = vectors == 3 ? kTilesFp32<3> : vectors == 2 ? kTilesFp32<2> : kTilesFp32<1>;
    for (int64_t m = 0; m < block.m; m += kRows) {
      const int rows = static_cast<int>(block.m - m < kRows ? block.m - m : kRows);
      tiles[rows - 1](static_cast<const float*>(block.a) + m * block.lda, block.lda, b, block.K, acc);
      finish_tile<false>(block, acc, kPanel, m, n, rows, static_cast<int>(cols));
    }
    n += cols;
  }
}

}  // namespace

const Kernel kAvx512Fp32 = {.name = "avx512_fp32", .mr = kRows, .nr = kPanel, .n_step = 16, .kr = 1, .k_multiple = 1, .element_bytes = 4,
                            .column_sums = false, .a_element_bytes = 0, .pack_rows = nullptr, .run = run_fp32};

}  // namespace brim::gemm
