// SPDX-License-Identifier: Apache-2.0
// Instruction sets of the CPU kernels. A binary contains all sets of its architecture and selects the best supported
// one at startup; BRIM_FORCE_ISA=<name> forces another one (tests, comparisons).
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace brim::device {

enum class Isa : uint8_t {
  generic,      // portable C++, any machine
  avx2,         // x86-64: AVX2 + FMA + F16C
  avx512_vnni,  // + AVX-512 F/BW/VL/DQ + VNNI (Cascade Lake, Ice Lake)
  avx512,       // + AVX-512 BF16
  amx,          // + AMX tiles (bf16, int8)
  neon,         // aarch64 baseline
  neon_dot,     // + sdot
  neon_mm,      // + bf16 bfmmla and i8mm smmla
};
const char* isa_name(Isa isa);
bool isa_supported(Isa isa);  // on this machine and in this build
Isa best_isa();               // honours BRIM_FORCE_ISA; throws usage for an unknown or unsupported name
std::vector<Isa> supported_isas();

}  // namespace brim::device
