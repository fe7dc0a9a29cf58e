// SPDX-License-Identifier: Apache-2.0
#include "device/device.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/error.h"
#include "base/log.h"
#include "base/test_files.h"

namespace brim::device {
namespace {

TEST(CpuDevice, ReportsMemory) {
  auto device = open_device("cpu", 2);
  EXPECT_EQ(device->kind(), DeviceKind::cpu);
  const auto memory = device->memory();
  EXPECT_GT(memory.free_bytes, 0);
  EXPECT_LE(memory.free_bytes, memory.total_bytes);
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

TEST(Device, ChoiceRoundTripsAsText) {
  for (const char* text : {"auto", "cpu", "cuda:0", "cuda:12"}) EXPECT_EQ(device_text(read_device(text)), text);
  EXPECT_EQ(read_device("cuda"), read_device("cuda:0"));
  EXPECT_EQ(read_device("cuda:12").index, 12);
}

TEST(Device, DetectsADriverByItsFiles) {
  const TempDir wsl, linux;
  EXPECT_FALSE(nvidia_driver_present(wsl.path()));
  put_file(wsl / "dev/dxg", "");
  EXPECT_FALSE(nvidia_driver_present(wsl.path())) << "WSL2 has this file with GPUs of all vendors";
  put_file(wsl / "usr/lib/wsl/lib/libcuda.so.1", "");
  EXPECT_TRUE(nvidia_driver_present(wsl.path()));
  put_file(linux / "dev/nvidiactl", "");
  EXPECT_TRUE(nvidia_driver_present(linux.path()));
}

TEST(Device, AutoLogsOnceWhyAGpuIsNotUsed) {
  const auto reason = cuda_unavailable_reason(0);
  if (!reason) GTEST_SKIP() << "there is a GPU";
  const TempDir machine, bare;
  put_file(machine / "dev/nvidiactl", "");
  std::vector<std::string> lines;
  const LogSink before = set_log_sink([&](LogLevel level, std::string_view line) {
    if (level != LogLevel::debug) lines.emplace_back(line);
  });
  for (int i = 0; i < 2; ++i) EXPECT_EQ(open_device(DeviceChoice{}, 1, bare.path())->kind(), DeviceKind::cpu);
  EXPECT_EQ(lines.size(), 0u) << "no driver, no message";
  for (int i = 0; i < 2; ++i) EXPECT_EQ(open_device(DeviceChoice{}, 1, machine.path())->kind(), DeviceKind::cpu);
  set_log_sink(before);
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_NE(lines[0].find(*reason), std::string::npos) << lines[0];
  EXPECT_EQ(lines[0].find('\n'), std::string::npos);
}

TEST(Isa, UsesTheForcedIsa) {
  for (const Isa isa : supported_isas()) {
    ::setenv("BRIM_FORCE_ISA", isa_name(isa), 1);
    EXPECT_EQ(best_isa(), isa);
  }
  ::setenv("BRIM_FORCE_ISA", "mmx", 1);
  EXPECT_THROW((void)best_isa(), Error);
  ::unsetenv("BRIM_FORCE_ISA");
}

}  // namespace
}  // namespace brim::device
