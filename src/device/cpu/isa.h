// SPDX-License-Identifier: Apache-2.0
// Instruction sets the CPU kernels are built for. One binary holds all of its architecture; the best one the machine
// has is taken at start, BRIM_FORCE_ISA=<name> forces a lesser one (tests, comparisons).
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace brim::device {

enum class Isa : uint8_t {
  generic,      // plain C++, any machine: the reference's faster sibling
  avx2,         // x86-64: AVX2 + FMA + F16C
  avx512_vnni,  // + AVX-512 F/BW/VL/DQ + VNNI (Cascade Lake, Ice Lake)
  avx512,       // + AVX-512 BF16
  amx,          // + AMX tiles (bf16, int8)
  neon,         // aarch64 baseline
  neon_dot,     // + sdot
  neon_mm,      // + bf16 bfmmla and i8mm smmla
};
const char* isa_name(Isa isa);
bool isa_supported(Isa isa);  // by this machine and this build
Isa best_isa();               // honours BRIM_FORCE_ISA; an unknown or unsupported name throws usage
std::vector<Isa> supported_isas();

}  // namespace brim::device
