// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>

#include "base/error.h"

namespace brim {
namespace {

TEST(CpuDevice, AllocatesAlignedAndReportsMemory) {
  auto device = open_device("cpu", 2);
  EXPECT_EQ(device->kind(), DeviceKind::cpu);
  const auto memory = device->memory();
  EXPECT_GT(memory.free_bytes, 0);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
  DeviceBuffer buffer = device->allocate(1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
  auto stream = device->make_stream();
  stream->fill_zero(buffer.data(), 1000);
  EXPECT_EQ(static_cast<char*>(buffer.data())[999], 0);
  DeviceBuffer moved = std::move(buffer);
  EXPECT_FALSE(buffer);
  EXPECT_TRUE(moved);
}

TEST(Device, UnknownNamesAreUsageErrors) {
  for (const char* bad : {"gpu", "cuda:", "cuda:x", "cuda:99999", ""}) {
    try {
      (void)open_device(bad, 0);
      FAIL() << bad;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::usage) << bad;
    }
  }
  EXPECT_THROW((void)open_device("cpu", -1), Error);
}

TEST(Isa, ForcedIsaIsTheOneTaken) {
  for (const Isa isa : supported_isas()) {
    ::setenv("BRIM_FORCE_ISA", isa_name(isa), 1);
    EXPECT_EQ(best_isa(), isa);
  }
  ::setenv("BRIM_FORCE_ISA", "mmx", 1);
  EXPECT_THROW((void)best_isa(), Error);
  ::unsetenv("BRIM_FORCE_ISA");
}

}  // namespace
}  // namespace brim
