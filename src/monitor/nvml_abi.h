// SPDX-License-Identifier: Apache-2.0
// The types of NVML's binary interface used by Brim, declared here so that building needs no vendor headers. Shared by
// nvml.cc and the fake library of its tests.
#pragma once
#include <cstdint>

namespace brim::monitor::nvml_abi {

using Return = int;
enum : Return {
  kSuccess = 0,
  kNotSupported = 3,
  kNoPermission = 4,
  kNotFound = 6,
  kInsufficientSize = 7,
  kDriverNotLoaded = 9,
  kLibraryNotFound = 12,
  kGpuIsLost = 15,
};

using Device = void*;
using GpmSample = void*;

struct Utilization {
  unsigned gpu, memory;
};
struct Memory {
  unsigned long long total, free, used;
};
struct MemoryWithReserved {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
constexpr unsigned kMemoryWithReservedVersion = sizeof(MemoryWithReserved) | (2U << 24);

struct Temperature {
  unsigned version;
  unsigned sensor;
  int celsius;
};
constexpr unsigned kTemperatureVersion = sizeof(Temperature) | (1U << 24);

// Newest version; older ones are shorter, with the same layout up to `device`.
struct PciInfo {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_id, subsystem_id;
  char bus_id[32];
};

// Filled by the _v2 and _v3 calls; the first version had only pid and bytes.
struct ProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};
struct OldProcessInfo {
  unsigned pid;
  unsigned long long used_bytes;
};
constexpr unsigned long long kNotAvailable = ~0ULL;

enum Clock : unsigned { kSmClock = 1, kMemoryClock = 2 };
enum PcieCounter : unsigned { kPcieTx = 0, kPcieRx = 1 };

struct GpmSupport {
  unsigned version;
  unsigned supported;
};
enum GpmId : unsigned { kGpmSm = 2, kGpmSmOccupancy = 3, kGpmTensor = 5, kGpmDram = 10 };
struct GpmMetric {
  unsigned id;
  Return result;
  double value;
  const char *short_name, *long_name, *unit;
};
// The library's own array is longer and grows with its versions; it reads `count` entries.
struct GpmMetrics {
  unsigned version;
  unsigned count;
  GpmSample first, second;
  GpmMetric metrics[512];
};

constexpr int kTextSize = 96;

}  // namespace brim::monitor::nvml_abi
