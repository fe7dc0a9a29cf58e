// SPDX-License-Identifier: Apache-2.0
#include "ops/word_scores.h"

#include "base/error.h"
#include "ops/word_scores_testing.h"

namespace brim::ops {
namespace {

using namespace brim::ops::testing;
using device::CpuStream;
using tensor::DType;

const auto same = [](const HostTensor& t) -> const HostTensor& { return t; };

TEST(WordScores, PoolsWords) {
  for_each_cpu_stream([](CpuStream& stream) { check_pool_words(stream, DType::f32, same); });
}

TEST(WordScores, StepsLstmInBothDirections) {
  for_each_cpu_stream([](CpuStream& stream) { check_lstm_step(stream, DType::f32, same); });
}

TEST(WordScores, FindsTheBestLabelOfEachSpan) {
  for_each_cpu_stream([](CpuStream& stream) {
    check_span_scores(stream, DType::f32, same);
    check_span_ties(stream, same);
  });
}

TEST(WordScores, ScoresPairsOfWordsAndLabels) {
  for_each_cpu_stream([](CpuStream& stream) { check_pair_scores(stream, DType::f32, same); });
}

TEST(WordScores, RejectsStepsWithoutAState) {
  CpuStream stream(nullptr, device::Isa::generic);
  const HostTensor inputs(DType::f32, {1, 8}), cell(DType::f32, {2, 1}), state(DType::f32, {2, 1}),
      y(DType::f32, {1, 2});
  const HostTensor one = int_tensor({0});
  LstmStepArgs args;
  args.inputs = inputs;
  args.cell = cell;
  args.state = state;
  args.y = y;
  args.first_word = args.lengths = one;
  args.active = 1;
  args.step = 1;
  EXPECT_THROW(lstm_step(stream, args), Error);
}

}  // namespace
}  // namespace brim::ops
