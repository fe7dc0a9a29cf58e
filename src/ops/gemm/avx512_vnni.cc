// SPDX-License-Identifier: Apache-2.0
// AVX-512 with VNNI but without BF16: Cascade Lake, Ice Lake, Tiger Lake. bf16 products use the AVX2 kernel there.
#include "ops/gemm/avx512_tiles.h"

namespace brim::ops::gemm {

constinit const Kernel kAvx512VnniFp32 = kernel("avx512_vnni_fp32", 4, false, nullptr, run_fp32);
constinit const Kernel kAvx512VnniInt8 = kernel("avx512_vnni_int8", 1, true, pack_rows_int8, run_int8);

}  // namespace brim::ops::gemm
