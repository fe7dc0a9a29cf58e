// SPDX-License-Identifier: Apache-2.0
// AVX-512 with VNNI and BF16.
#include "ops/gemm/avx512_tiles.h"

namespace brim::ops::gemm {
namespace {

// On Intel cores, which have AMX too, this instruction runs at a quarter of the FMA rate; on AMD cores, which have no
// AMX, at the full rate. This kernel is for the latter.
struct Bf16 {
  using Sum = __m512;
  static constexpr bool kInt = false;
  static BRIM_INLINE Sum zero() { return _mm512_setzero_ps(); }
  static BRIM_INLINE Sum multiply(__m512i a, __m512i b, Sum c) { return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b); }
};

void run_bf16(const Block& block) { run_tiles<Bf16>(block, round_up(block.K, 2) * 2, round_up(block.K, 2) / 2); }

// Same layout as pack_rows_int8.
void pack_rows_bf16(const Rows& rows, void* out, float*) {
  const int64_t padded = round_up(rows.K, 2);
  auto* a = static_cast<uint16_t*>(out) + rows.begin * padded;
  for (int64_t r = rows.begin; r < rows.end; ++r, a += padded) {
    int64_t k = 0;
    for (; k + 32 <= rows.K; k += 32)
      _mm512_storeu_si512(a + k, (__m512i)_mm512_cvtne2ps_pbh(row_values(rows, r, k + 16), row_values(rows, r, k)));
    for (; k < padded; k += 16)
      store_bf16(a + k, row_values(rows, r, k), tail(static_cast<int>(padded - k < 16 ? padded - k : 16)));
  }
}

}  // namespace

constinit const Kernel kAvx512Fp32 = kernel("avx512_fp32", 4, false, nullptr, run_fp32);
constinit const Kernel kAvx512Bf16 = kernel("avx512_bf16", 2, false, pack_rows_bf16, run_bf16);
constinit const Kernel kAvx512Int8 = kernel("avx512_int8", 1, true, pack_rows_int8, run_int8);

}  // namespace brim::ops::gemm
