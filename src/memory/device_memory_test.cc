// SPDX-License-Identifier: Apache-2.0
// Device memory, allocated through a ledger.
#include <algorithm>

#include "base/error.h"
#include "device/cuda/testing.h"
#include "device/event.h"
#include "device/graph.h"
#include "memory/ledger.h"

namespace brim::memory {

using device::DeviceBuffer;

namespace {

DeviceBuffer block(device::Device& device, int64_t bytes) {
  return Ledger::allocate(device, nullptr, Tag::workspace, "test", bytes);
}

TEST(CpuDevice, AllocatesAlignedMemory) {
  auto device = device::open_device("cpu", 2);
  DeviceBuffer buffer = block(*device, 1000);
  EXPECT_EQ(reinterpret_cast<uintptr_t>(buffer.data()) % 256, 0u);
  auto stream = device->make_stream();
  stream->fill_zero(buffer.data(), 1000);
  EXPECT_EQ(static_cast<char*>(buffer.data())[999], 0);
  DeviceBuffer moved = std::move(buffer);
  EXPECT_FALSE(buffer);
  EXPECT_TRUE(moved);
}

TEST(CudaDevice, RejectsAllocationsThatDoNotFit) {
  BRIM_NEEDS_GPU();
  const auto device = device::open_cuda_device(0);
  try {
    (void)block(*device, int64_t{1} << 50);
    FAIL();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::does_not_fit) << e.what();
  }
  EXPECT_TRUE(block(*device, 256));  // the device is still usable after the failure
}

TEST(CudaStream, CopiesAndEventsOrderTwoStreams) {
  BRIM_NEEDS_GPU();
  const auto device = device::open_cuda_device(0);
  const auto copying = device->make_stream(), computing = device->make_stream();
  constexpr size_t kBytes = 64 << 20;
  const DeviceBuffer there = block(*device, kBytes), host = device->allocate_host(kBytes),
                     back = device->allocate_host(kBytes);
  auto* values = static_cast<uint32_t*>(host.data());
  for (size_t i = 0; i < kBytes / 4; ++i) values[i] = static_cast<uint32_t>(i * 2654435761u);
  const auto begin = make_event(*device, true), copied = make_event(*device, true),
             ordered = make_event(*device, false);
  device::DeviceClock clock(*device, *copying);
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

TEST(CudaGraph, ReplaysCapturedWork) {
  BRIM_NEEDS_GPU();
  const auto device = device::open_cuda_device(0);
  const auto stream = device->make_stream();
  const DeviceBuffer a = block(*device, 1024), b = block(*device, 1024), host = device->allocate_host(1024);
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

// Other processes may allocate or free memory at the same time, so retry until the difference matches.
TEST(CudaMemory, RoundsAllocationsAsTheLedgerCharges) {
  BRIM_NEEDS_GPU();
  const auto device = device::open_cuda_device(0);
  for (const int64_t bytes : {int64_t{1} << 20, (int64_t{2} << 20) + 1, int64_t{4} << 20, (int64_t{33} << 20) + 512}) {
    int64_t taken = 0;
    for (int i = 0; i < 20 && taken != device->rounded_bytes(bytes); ++i) {
      const int64_t before = device->memory().free_bytes;
      const DeviceBuffer held = block(*device, bytes);
      taken = before - device->memory().free_bytes;
    }
    EXPECT_EQ(taken, device->rounded_bytes(bytes)) << bytes;
  }
  EXPECT_EQ(Ledger::of(*device).reserved_bytes(), 0);
}

}  // namespace
}  // namespace brim::memory
