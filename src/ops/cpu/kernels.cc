// SPDX-License-Identifier: Apache-2.0
// Selects the table of row and attention kernels for an instruction set.
#include "device/cpu/isa.h"
#include "ops/cpu/attention_kernels.h"
#include "ops/cpu/row_kernels.h"

namespace brim::ops::cpu {

using device::Isa;

const RowKernels& row_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx2:
      return avx2::kRowKernels;
    case Isa::avx512_vnni:
    case Isa::avx512:
    case Isa::amx:
      return avx512::kRowKernels;
#elif defined(__aarch64__)
    case Isa::neon:
    case Isa::neon_dot:
    case Isa::neon_mm:
      return neon::kRowKernels;
#endif
    default:
      return generic::kRowKernels;
  }
}

const AttentionKernels& attention_kernels(Isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case Isa::avx2:
      return avx2::kAttentionKernels;
    case Isa::avx512_vnni:
    case Isa::avx512:
    case Isa::amx:
      return avx512::kAttentionKernels;
#elif defined(__aarch64__)
    case Isa::neon:
    case Isa::neon_dot:
    case Isa::neon_mm:
      return neon::kAttentionKernels;
#endif
    default:
      return generic::kAttentionKernels;
  }
}

const Bf16AttentionKernels* bf16_attention_kernels([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::amx) return &amx::kAttentionKernels;
#elif defined(__aarch64__)
  if (isa == Isa::neon_mm) return &neon_mm::kAttentionKernels;
#endif
  return nullptr;
}

}  // namespace brim::ops::cpu
