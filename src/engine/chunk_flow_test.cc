// SPDX-License-Identifier: Apache-2.0
#include "engine/chunk_flow.h"

#include <gtest/gtest.h>

#include <thread>

namespace brim::engine {
namespace {

struct Piece {
  uint64_t number = 0;
};
using Flow = ChunkFlow<Piece>;

class ChunkFlowTest : public ::testing::Test {
 protected:
  void read(Flow& flow, uint64_t number) {
    ASSERT_TRUE(flow.acquire_slot());
    flow.was_read();
    flow.was_tokenized(std::make_unique<Piece>(Piece{number}));
  }
  Flow::Ptr got_;
};

TEST_F(ChunkFlowTest, ReportsAnInputPauseToAHolderOfChunks) {
  Flow flow(4, nullptr);
  read(flow, 0);
  EXPECT_EQ(flow.next(got_, false), Flow::Next::chunk);
  ASSERT_TRUE(flow.acquire_slot());
  flow.await_input();
  EXPECT_EQ(flow.next(got_, true), Flow::Next::stalled);
  flow.was_read();
  flow.was_tokenized(std::make_unique<Piece>(Piece{1}));
  EXPECT_EQ(flow.next(got_, true), Flow::Next::chunk);
}

// All chunks in flight are held by the device or queued for writing behind a held one, so only the device can make
// progress.
TEST_F(ChunkFlowTest, ReportsAStallIfOnlyTheDeviceCanFreeASlot) {
  Flow flow(2, nullptr);
  read(flow, 0);
  read(flow, 1);
  Flow::Ptr first, second;
  EXPECT_EQ(flow.next(first, true), Flow::Next::chunk);
  EXPECT_EQ(flow.next(second, true), Flow::Next::chunk);
  flow.was_computed(std::move(second));
  std::thread reader([&] { EXPECT_TRUE(flow.acquire_slot()); });
  std::thread writer([&] {
    EXPECT_EQ(flow.next_computed()->number, 0u);
    flow.was_written();
  });
  EXPECT_EQ(flow.next(got_, true), Flow::Next::stalled);
  flow.was_computed(std::move(first));
  reader.join();
  writer.join();
}

TEST_F(ChunkFlowTest, SeesAStopWhileWaiting) {
  const std::atomic<bool> stop{true};
  Flow flow(4, &stop);
  EXPECT_EQ(flow.next(got_, false), Flow::Next::stopped);
}

TEST_F(ChunkFlowTest, ReturnsComputedChunksUpToTheFirstGapAfterClose) {
  Flow flow(4, nullptr);
  for (const uint64_t number : {0, 1, 3}) flow.was_computed(std::make_unique<Piece>(Piece{number}));
  flow.close();
  EXPECT_FALSE(flow.acquire_slot());
  EXPECT_EQ(flow.next_computed()->number, 0u);
  EXPECT_EQ(flow.next_computed()->number, 1u);
  EXPECT_EQ(flow.next_computed(), nullptr);
}

TEST_F(ChunkFlowTest, EndsAtTheChunkItWasClosedBefore) {
  Flow flow(4, nullptr);
  for (const uint64_t number : {0, 1}) flow.was_computed(std::make_unique<Piece>(Piece{number}));
  flow.close(1);
  EXPECT_EQ(flow.next_computed()->number, 0u);
  EXPECT_EQ(flow.next_computed(), nullptr);
}

}  // namespace
}  // namespace brim::engine
