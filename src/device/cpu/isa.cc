// SPDX-License-Identifier: Apache-2.0
#include "device/cpu/isa.h"

#include <sys/syscall.h>
#include <unistd.h>

#if defined(__aarch64__)
#include <sys/auxv.h>
#endif

#include <array>

#include "base/env.h"
#include "base/error.h"

namespace brim::device {
namespace {

constexpr std::array kAll = {Isa::generic, Isa::avx2, Isa::avx512_vnni, Isa::avx512,
                             Isa::amx,     Isa::neon, Isa::neon_dot,    Isa::neon_mm};

#if defined(__x86_64__)
// Linux enables the AMX tile state only on request, once per process.
bool request_amx_tiles() {
  constexpr int kArchReqXcompPerm = 0x1023, kXfeatureXtiledata = 18;
  return ::syscall(SYS_arch_prctl, kArchReqXcompPerm, kXfeatureXtiledata) == 0;
}

bool has_amx() {
  unsigned a = 7, b = 0, c = 0, d = 0;
  asm volatile("cpuid" : "+a"(a), "=b"(b), "+c"(c), "=d"(d));
  const bool tile = d >> 24 & 1, int8 = d >> 25 & 1, bf16 = d >> 22 & 1;
  return tile && int8 && bf16 && request_amx_tiles();
}

bool has_avx512_vnni() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vnni");
}
#endif

}  // namespace

const char* isa_name(Isa isa) {
  static const char* const names[] = {"generic", "avx2", "avx512_vnni", "avx512", "amx", "neon", "neon_dot", "neon_mm"};
  return names[static_cast<int>(isa)];
}

bool isa_supported(Isa isa) {
#if defined(__x86_64__)
  static const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
  static const bool avx512_vnni = avx2 && has_avx512_vnni();
  static const bool avx512 = avx512_vnni && __builtin_cpu_supports("avx512bf16");
  static const bool amx = avx512 && has_amx();
  switch (isa) {
    case Isa::generic:
      return true;
    case Isa::avx2:
      return avx2;
    case Isa::avx512_vnni:
      return avx512_vnni;
    case Isa::avx512:
      return avx512;
    case Isa::amx:
      return amx;
    default:
      return false;
  }
#elif defined(__aarch64__)
  // Bits of AT_HWCAP and AT_HWCAP2 as documented by the kernel.
  static const unsigned long hwcap = getauxval(AT_HWCAP), hwcap2 = getauxval(AT_HWCAP2);
  switch (isa) {
    case Isa::generic:
    case Isa::neon:
      return true;
    case Isa::neon_dot:
      return hwcap >> 20 & 1;  // ASIMDDP
    case Isa::neon_mm:
      return (hwcap2 >> 13 & 1) && (hwcap2 >> 14 & 1);  // I8MM, BF16
    default:
      return false;
  }
#else
  return isa == Isa::generic;
#endif
}

std::vector<Isa> supported_isas() {
  std::vector<Isa> all;
  for (const Isa isa : kAll)
    if (isa_supported(isa)) all.push_back(isa);
  return all;
}

Isa best_isa() {
  if (const auto forced = env("BRIM_FORCE_ISA")) {
    for (const Isa isa : kAll)
      if (*forced == isa_name(isa)) {
        if (isa_supported(isa)) return isa;
        fail(ErrorCode::usage, "BRIM_FORCE_ISA={}: this CPU or build does not support {}", *forced, *forced);
      }
    fail(ErrorCode::usage,
         "BRIM_FORCE_ISA={}: unknown instruction set; use generic, avx2, avx512_vnni, avx512, amx, neon, neon_dot or "
         "neon_mm",
         *forced);
  }
  return supported_isas().back();
}

}  // namespace brim::device
