// SPDX-License-Identifier: Apache-2.0
#include "ops/cuda/testing.h"
#include "ops/word_scores_testing.h"

namespace brim::ops {
namespace {

using namespace brim::ops::testing;
using CudaWords = CudaOps;

const auto upload = [](const HostTensor& t) { return DeviceTensor(t); };

TEST_F(CudaWords, PoolsWords) {
  for (const tensor::DType type : kActivationTypes) check_pool_words(Gpu::stream(), type, upload);
}

TEST_F(CudaWords, StepsLstmInBothDirections) {
  for (const tensor::DType type : kActivationTypes) check_lstm_step(Gpu::stream(), type, upload);
}

TEST_F(CudaWords, FindsTheBestLabelOfEachSpan) {
  for (const tensor::DType type : kActivationTypes) check_span_scores(Gpu::stream(), type, upload);
  check_span_ties(Gpu::stream(), upload);
}

TEST_F(CudaWords, ScoresPairsOfWordsAndLabels) {
  for (const tensor::DType type : kActivationTypes) check_pair_scores(Gpu::stream(), type, upload);
}

}  // namespace
}  // namespace brim::ops
