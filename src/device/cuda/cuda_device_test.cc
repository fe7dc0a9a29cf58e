// SPDX-License-Identifier: Apache-2.0
#include "base/error.h"
#include "device/cuda/testing.h"
#include "device/cuda_info.h"
#include "device/event.h"
#include "device/graph.h"

namespace brim {
namespace {

TEST(CudaDevice, SaysInOneLineWhyThereIsNone) {
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

TEST(CudaDevice, NamesAnIndexPastTheLast) {
  BRIM_NEEDS_GPU();
  const auto reason = cuda_unavailable_reason(4096);
  ASSERT_TRUE(reason);
  EXPECT_NE(reason->find("only"), std::string::npos) << *reason;
}

TEST(CudaDevice, TellsItsFacts) {
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

TEST(CudaDevice, RefusesWhatDoesNotFit) {
  BRIM_NEEDS_GPU();
  const auto device = open_cuda_device(0);
  try {
    (void)device->allocate(size_t{1} << 50);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
  }
  EXPECT_TRUE(device->allocate(256));  // the refusal left the device usable
}

TEST(CudaStream, CopiesAndEventsOrderTwoStreams) {
  BRIM_NEEDS_GPU();
  const auto device = open_cuda_device(0);
  const auto copying = device->make_stream(), computing = device->make_stream();
  constexpr size_t kBytes = 64 << 20;
  const DeviceBuffer there = device->allocate(kBytes), host = device->allocate_host(kBytes),
                     back = device->allocate_host(kBytes);
  auto* values = static_cast<uint32_t*>(host.data());
  for (size_t i = 0; i < kBytes / 4; ++i) values[i] = static_cast<uint32_t>(i * 2654435761u);
  const auto begin = make_event(*device, true), copied = make_event(*device, true),
             ordered = make_event(*device, false);
  DeviceClock clock(*device, *copying);
  begin->record(*copying);
  copying->copy(there.data(), host.data(), kBytes);
  copied->record(*copying);
  ordered->record(*copying);
  ordered->wait(*computing);
  computing->copy(back.data(), there.data(), kBytes);
  computing->synchronize();
  EXPECT_TRUE(copied->done());
  EXPECT_GT(copied->ms_since(*begin), 0);
  EXPECT_LE(clock.host_ns(*begin), clock.host_ns(*copied));
  for (size_t i = 0; i < kBytes / 4; ++i) ASSERT_EQ(static_cast<uint32_t*>(back.data())[i], values[i]) << i;
}

TEST(CudaGraph, RepeatsWhatWasCaptured) {
  BRIM_NEEDS_GPU();
  const auto device = open_cuda_device(0);
  const auto stream = device->make_stream();
  const DeviceBuffer a = device->allocate(1024), b = device->allocate(1024), host = device->allocate_host(1024);
  ASSERT_TRUE(can_capture(*stream));
  begin_capture(*stream);
  stream->copy(b.data(), a.data(), 1024);
  const auto graph = end_capture(*stream);
  auto* bytes = static_cast<unsigned char*>(host.data());
  for (const int value : {3, 7}) {
    std::fill(bytes, bytes + 1024, static_cast<unsigned char>(value));
    stream->copy(a.data(), host.data(), 1024);
    graph->launch(*stream);
    stream->synchronize();
    std::fill(bytes, bytes + 1024, static_cast<unsigned char>(0));
    stream->copy(host.data(), b.data(), 1024);
    stream->synchronize();
    EXPECT_EQ(bytes[0], value);
    EXPECT_EQ(bytes[1023], value);
  }
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
}  // namespace brim
