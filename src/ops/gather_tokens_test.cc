// SPDX-License-Identifier: Apache-2.0
#include "ops/gather_tokens.h"

#include <numeric>

#include "ops/testing.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

HostTensor token_set(int64_t n) {
  HostTensor t(DType::i32, {n});
  std::iota(t.as<int32_t>(), t.as<int32_t>() + n, 1000);
  return t;
}

TEST(GatherTokens, CopiesEachSequenceFromTheSet) {
  for_each_cpu_stream([](device::CpuStream& stream) {
    const HostTensor tokens = token_set(400);
    auto all = ragged_lengths();
    all.emplace_back(200, 1);  // more sequences than one piece of a thread
    for (const auto& lengths : all)
      for (const int64_t offset : {0, 2}) {
        const std::vector<int32_t> starts = starts_of(lengths);
        const int64_t T = starts.back();
        std::vector<int64_t> begins;
        for (size_t b = 0; b < lengths.size(); ++b)
          begins.push_back(400 - lengths[b] - static_cast<int64_t>(b));  // the first one ends at the end of the set
        const HostTensor begin_view = long_tensor(begins), start_view = int_tensor(starts), ids(DType::i32, {T}),
                         positions(DType::i32, {T});
        gather_tokens(stream, {.tokens = tokens,
                               .begins = begin_view,
                               .starts = start_view,
                               .ids = ids,
                               .positions = positions,
                               .position_offset = offset});
        for (size_t b = 0; b < lengths.size(); ++b)
          for (int32_t i = 0; i < lengths[b]; ++i) {
            EXPECT_EQ(ids.as<int32_t>()[starts[b] + i], 1000 + begins[b] + i);
            EXPECT_EQ(positions.as<int32_t>()[starts[b] + i], offset + i);
          }
      }
  });
}

TEST(GatherTokens, RejectsRangesOutsideTheSet) {
  for_each_cpu_stream([](device::CpuStream& stream) {
    const HostTensor tokens = token_set(10), starts = int_tensor({0, 3}), ids(DType::i32, {3}),
                     positions(DType::i32, {3}), few(DType::i32, {2});
    const HostTensor last = long_tensor({7}), past = long_tensor({8}), before = long_tensor({-1});
    gather_tokens(stream, {.tokens = tokens, .begins = last, .starts = starts, .ids = ids, .positions = positions});
    EXPECT_THROW(
        gather_tokens(stream, {.tokens = tokens, .begins = past, .starts = starts, .ids = ids, .positions = positions}),
        Error);
    EXPECT_THROW(
        gather_tokens(stream,
                      {.tokens = tokens, .begins = before, .starts = starts, .ids = ids, .positions = positions}),
        Error);
    EXPECT_THROW(
        gather_tokens(stream, {.tokens = tokens, .begins = last, .starts = starts, .ids = ids, .positions = few}),
        Error);
    EXPECT_THROW(
        gather_tokens(stream, {.tokens = tokens, .begins = last, .starts = starts, .ids = few, .positions = few}),
        Error);
    EXPECT_THROW(
        gather_tokens(stream,
                      {.tokens = tokens, .begins = starts, .starts = starts, .ids = ids, .positions = positions}),
        Error);
  });
}

TEST(GatherTokens, IsRecordedOnTheNullDevice) {
  struct Sink final : device::UseSink {
    void on_use(const tensor::TensorView&) override { ++uses; }
    void on_op(const char* op, double, double moved) override {
      name = op;
      bytes = moved;
    }
    int uses = 0;
    std::string name;
    double bytes = 0;
  } sink;
  device::NullStream stream(&sink, device::DeviceKind::cuda, device::Isa::generic);
  const HostTensor tokens = token_set(10), starts = int_tensor({0, 3}), ids(DType::i32, {3}),
                   positions(DType::i32, {3}), begins = long_tensor({7});
  gather_tokens(stream, {.tokens = tokens, .begins = begins, .starts = starts, .ids = ids, .positions = positions});
  EXPECT_EQ(sink.uses, 5);
  EXPECT_EQ(sink.name, "gather_tokens");
  EXPECT_EQ(sink.bytes, 12 + 12 + 12 + 8 + 8);  // tokens read, ids and positions written; begins; starts
}

}  // namespace
}  // namespace brim::ops
