// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "device/cuda/testing.h"
#include "device/cuda_info.h"
#include "device/event.h"
#include "device/graph.h"

namespace brim::device {
namespace {

TEST(CudaDevice, ReportsInOneLineWhyItIsUnavailable) {
  const auto reason = cuda_unavailable_reason(0);
  if (!reason) GTEST_SKIP() << "there is a GPU";
  EXPECT_FALSE(reason->empty());
  EXPECT_EQ(reason->find('\n'), std::string::npos);
  try {
    (void)open_device("cuda", 0);
    FAIL();
  } catch (const Error& e) {
    const bool built = reason->find("no CUDA backend") == std::string::npos;
    EXPECT_EQ(e.code(), built ? ErrorCode::device_lost : ErrorCode::usage);
    EXPECT_NE(std::string(e.what()).find(*reason), std::string::npos) << e.what();
  }
  EXPECT_EQ(open_device("auto", 1)->kind(), DeviceKind::cpu);
}

TEST(CudaDevice, RejectsAnIndexPastTheLastDevice) {
  BRIM_NEEDS_GPU();
  const auto reason = cuda_unavailable_reason(4096);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("only"), std::string::npos) << *reason;
}

TEST(CudaDevice, ReportsItsProperties) {
  BRIM_NEEDS_GPU();
  const auto device = open_cuda_device(0);
  const CudaInfo& info = cuda_info(*device);
  EXPECT_FALSE(info.name.empty());
  EXPECT_GE(info.capability, 75);
  EXPECT_GE(info.capability, info.kernel_arch);
  EXPECT_GT(info.sm_count, 0);
  EXPECT_GT(info.memory_bytes, 0);
  EXPECT_LE(device->memory().free_bytes, device->memory().total_bytes);
}

TEST(Event, OnTheCpuIsAClockReading) {
  const auto device = open_device("cpu", 1);
  const auto stream = device->make_stream();
  const auto a = make_event(*device, true), b = make_event(*device, true);
  a->record(*stream);
  b->record(*stream);
  EXPECT_GE(b->ms_since(*a), 0);
  EXPECT_FALSE(can_capture(*stream));
  EXPECT_THROW(begin_capture(*stream), Error);
}

}  // namespace
}  // namespace brim::device
