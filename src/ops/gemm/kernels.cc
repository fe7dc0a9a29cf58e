// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm/kernels.h"

namespace brim::ops::gemm {

using device::Isa;

namespace {

struct Set {
  const Kernel *fp32 = nullptr, *bf16 = nullptr, *int8 = nullptr;
};

Set set_of(Isa isa) {
  switch (isa) {
    case Isa::generic:
      return {&kGenericFp32, &kGenericBf16, &kGenericInt8};
#if defined(__x86_64__)
    case Isa::avx2:
      return {&kAvx2Fp32, &kAvx2Bf16, &kAvx2Int8};
    case Isa::avx512_vnni:
      return {&kAvx512VnniFp32, &kAvx2Bf16, &kAvx512VnniInt8};
    case Isa::avx512:
      return {&kAvx512Fp32, &kAvx512Bf16, &kAvx512Int8};
    case Isa::amx:
      return {&kAvx512Fp32, &kAmxBf16, &kAmxInt8};
#elif defined(__aarch64__)
    case Isa::neon:
      return {&kNeonFp32, &kNeonBf16, &kNeonInt8};
    case Isa::neon_dot:
      return {&kNeonFp32, &kNeonBf16, &kNeonDotInt8};
    case Isa::neon_mm:
      return {&kNeonFp32, &kNeonMmBf16, &kNeonMmInt8};
#endif
    default:
      return {};
  }
}

}  // namespace

const Kernel& kernel_for(Isa isa, Precision precision) {
  const Set set = set_of(isa);
  BRIM_CHECK(set.fp32 != nullptr, "this build has no matrix kernels for {}", isa_name(isa));
  switch (precision) {
    case Precision::fp32:
      return *set.fp32;
    case Precision::bf16:
      return *set.bf16;
    case Precision::int8:
      return *set.int8;
    default:
      fail(ErrorCode::usage, "`precision={}`: the CPU supports fp32, bf16 and int8", precision_name(precision));
  }
}

int64_t panel_bytes(const Kernel& kernel, int64_t N, int64_t K) {
  return round_up(N, kernel.nr) * round_up(K, kernel.k_multiple) * kernel.element_bytes;
}
int64_t packed_bytes(const Kernel& kernel, int64_t N, int64_t K) {
  return panel_bytes(kernel, N, K) + (kernel.column_sums ? round_up(N, kernel.nr) * 4 : 0);
}
int64_t row_bytes(const Kernel& kernel, int64_t K) { return round_up(K, kernel.k_multiple) * kernel.a_element_bytes; }

}  // namespace brim::ops::gemm
