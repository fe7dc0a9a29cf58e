// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include <random>

#include "memory/allocator.h"
#include "memory/placement.h"

namespace brim::memory {

using tensor::DType;

namespace {

void expect_valid(const std::vector<Lifetime>& lives, const Placement& p) {
  ASSERT_EQ(p.offsets.size(), lives.size());
  for (size_t i = 0; i < lives.size(); ++i) {
    ASSERT_EQ(p.offsets[i] % kArenaAlignment, 0);
    ASSERT_LE(p.offsets[i] + lives[i].bytes, p.peak_bytes);
    for (size_t j = 0; j < i; ++j) {
      const bool together = lives[i].first <= lives[j].last && lives[j].first <= lives[i].last;
      const bool overlap = lives[i].bytes > 0 && lives[j].bytes > 0 && p.offsets[i] < p.offsets[j] + lives[j].bytes &&
                           p.offsets[j] < p.offsets[i] + lives[i].bytes;
      ASSERT_FALSE(together && overlap) << i << " and " << j;
    }
  }
  ASSERT_GE(p.peak_bytes, p.lower_bound_bytes);
  ASSERT_EQ(p.at_peak.total(), p.peak_bytes);
}

TEST(Placement, RandomGraphsNeverOverlap) {
  std::mt19937 rng(7);
  for (int round = 0; round < 300; ++round) {
    std::vector<Lifetime> lives;
    const int n = static_cast<int>(rng() % 60);
    for (int i = 0; i < n; ++i) {
      const int64_t first = rng() % 50;
      lives.push_back({rng() % 4 ? Tag::activations : Tag::workspace,
                       static_cast<int64_t>(rng() % 5 ? rng() % 100000 : 0), first,
                       first + static_cast<int64_t>(rng() % 20)});
    }
    expect_valid(lives, place(lives));
  }
}

TEST(Placement, DisjointLifetimesShareMemory) {
  const std::vector<Lifetime> lives = {
      {Tag::activations, 1000, 0, 1}, {Tag::activations, 1000, 2, 3}, {Tag::activations, 500, 0, 3}};
  const Placement p = place(lives);
  expect_valid(lives, p);
  EXPECT_EQ(p.peak_bytes, 1024 + 512);
  EXPECT_EQ(p.peak_bytes, p.lower_bound_bytes);
}

TEST(Placement, EmptyGraphNeedsNoMemory) { EXPECT_EQ(place({}).peak_bytes, 0); }

TEST(LifetimeRecorder, LastUseEndsATensorAndKeepExtendsIt) {
  LifetimeRecorder rec;
  device::NullStream stream(&rec, device::DeviceKind::cpu, device::Isa::generic);
  const tensor::TensorView a = rec.allocate(Tag::activations, DType::f32, {10});
  const tensor::TensorView b = rec.allocate(Tag::activations, DType::f32, {20});
  rec.on_use(a.slice_rows(5, 6));  // using a slice uses the whole tensor
  rec.on_use(b);
  rec.on_op("first", 100, 8);
  rec.on_use(b);
  rec.on_op("second", 1, 1);
  const tensor::TensorView c = rec.allocate(Tag::workspace, DType::u8, {3});
  rec.keep(b);
  rec.on_use(c);
  rec.on_op("first", 1, 1);
  const auto lives = rec.lifetimes();
  ASSERT_EQ(lives.size(), 3u);
  EXPECT_EQ(lives[0].last, 0);
  EXPECT_EQ(lives[1].last, 3);
  EXPECT_EQ(lives[2].first, 2);
  EXPECT_EQ(rec.ops().at("first").calls, 2);
  EXPECT_EQ(rec.flops(), 102);
  float foreign = 0;
  rec.on_use(tensor::TensorView(&foreign, DType::f32, {1}));  // a weight: ignored
}

TEST(LifetimeRecorder, ExtendedTensorsLiveUntilTheLastOp) {
  LifetimeRecorder rec;
  const tensor::TensorView input = rec.allocate(Tag::activations, DType::f32, {10});
  rec.on_use(input);
  rec.on_op("first", 1, 1);
  const tensor::TensorView scratch = rec.allocate(Tag::workspace, DType::u8, {40});
  rec.on_use(scratch);
  rec.on_op("second", 1, 1);
  rec.extend(input);
  const tensor::TensorView next = rec.allocate(Tag::activations, DType::f32, {10});
  rec.on_use(next);
  rec.on_op("third", 1, 1);
  const Placement p = place(rec.lifetimes());
  EXPECT_NE(p.offsets[0], p.offsets[1]) << "parts read the input again";
  EXPECT_EQ(rec.lifetimes()[0].last, 1);
}

TEST(PlannedAllocator, RewindsToEarlierAllocations) {
  LifetimeRecorder rec;
  for (int i = 0; i < 3; ++i) (void)rec.allocate(Tag::activations, DType::f32, {100});
  const Placement p = place(rec.lifetimes());
  alignas(256) char memory[4096];
  PlannedAllocator alloc(memory, &p);
  (void)alloc.allocate(Tag::activations, DType::f32, {100});
  const size_t position = alloc.position();
  const void* second = alloc.allocate(Tag::activations, DType::f32, {90}).data;
  const void* third = alloc.allocate(Tag::activations, DType::f32, {90}).data;
  alloc.rewind(position);
  EXPECT_EQ(alloc.allocate(Tag::activations, DType::f32, {10}).data, second);
  EXPECT_EQ(alloc.allocate(Tag::activations, DType::f32, {10}).data, third);
}

TEST(PlannedAllocator, ReplaysOffsetsAndRejectsLargerTensors) {
  LifetimeRecorder rec;
  (void)rec.allocate(Tag::activations, DType::f32, {100});
  (void)rec.allocate(Tag::activations, DType::f32, {50});
  const Placement p = place(rec.lifetimes());
  alignas(256) char memory[1024];
  PlannedAllocator alloc(memory, &p);
  EXPECT_EQ(alloc.allocate(Tag::activations, DType::f32, {60}).data, memory + p.offsets[0]);
  EXPECT_THROW((void)alloc.allocate(Tag::activations, DType::f32, {51}), Error);
  alloc.restart();
  EXPECT_EQ(alloc.allocate(Tag::activations, DType::f32, {100}).data, memory + p.offsets[0]);
}

}  // namespace
}  // namespace brim::memory
