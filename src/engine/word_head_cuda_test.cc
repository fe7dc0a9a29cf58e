// SPDX-License-Identifier: Apache-2.0
// The head of GLiNER models on CUDA: scores equal those of the head on the host, in one chunk and in several.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "device/cuda/testing.h"
#include "device/cuda_info.h"
#include "engine/word_head.h"
#include "model/weights.h"

namespace brim::engine {
namespace {

using batch::WordTokens;
using tensor::TensorView;

constexpr float kThreshold = 0.3f;

// A batch of random hidden states, whose windows have words of several tokens and some that were dropped.
struct RandomBatch {
  batch::PackedBatch batch;
  std::vector<std::vector<int32_t>> ids, labels;
  std::vector<std::vector<WordTokens>> words;
  std::vector<float> hidden;

  RandomBatch(const std::vector<int>& lengths, int64_t size, const GlinerHead::Labels* prepared) {
    std::mt19937 random(5);
    for (const int n : lengths) {
      const int count = prepared != nullptr ? 0 : 1 + static_cast<int>(random() % 4);
      labels.emplace_back();
      for (int c = 0; c < count; ++c) labels.back().push_back(1 + 2 * c);
      int32_t token = 2 + 2 * count;
      words.emplace_back();
      for (int w = 0; w < n; ++w) {
        const auto tokens = static_cast<int32_t>(1 + random() % 3);
        words.back().push_back({token, tokens});
        token += tokens;
      }
      if (n > 2) words.back().push_back({0, 0});
      ids.emplace_back(static_cast<size_t>(token), 1);
    }
    for (size_t b = 0; b < ids.size(); ++b)
      batch.add({ids[b].data(), static_cast<int32_t>(ids[b].size()), b, {words[b], labels[b], prepared}}, 0);
    batch.finish();
    std::normal_distribution<float> normal(0, 1.5f);
    for (int64_t i = 0; i < batch.tokens() * size; ++i) hidden.push_back(normal(random));
  }
};

class CudaWordHead : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    BRIM_NEEDS_GPU();
    gpu_ = device::open_cuda_device(0);
    stream_ = gpu_->make_stream();
    dir_ = std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data/gliner" / GetParam();
    config_ = hub::load_gliner_config(dir_);
    encoder_ = model::read_shape(dir_).hidden;
    if (!config_.labels_encoder.empty()) labels_ = model::read_shape(hub::labels_encoder_dir(dir_)).hidden;
  }
  std::vector<float> scores_of(WordHead& head, const RandomBatch& random, int64_t width) {
    const int64_t T = random.batch.tokens();
    const auto bytes = static_cast<int64_t>(random.hidden.size() * sizeof(float));
    const auto hidden = memory::Ledger::allocate(*gpu_, nullptr, memory::Tag::activations, "test", bytes);
    const model::BatchLimits limits{T, random.batch.sequences(), T};
    const auto staged = gpu_->allocate_host(static_cast<size_t>(WordStaging::batch_bytes(limits)));
    const auto result = gpu_->allocate_host(static_cast<size_t>(T * width) * sizeof(float));
    stream_->copy(hidden.data(), random.hidden.data(), static_cast<size_t>(bytes));
    head.run(*stream_, TensorView(hidden.data(), tensor::DType::f32, {T, encoder_}), random.batch,
             static_cast<int32_t*>(staged.data()), static_cast<float*>(result.data()));
    stream_->synchronize();
    const auto* const first = static_cast<const float*>(result.data());
    return {first, first + T * width};
  }
  std::unique_ptr<device::Device> gpu_;
  std::unique_ptr<device::Stream> stream_;
  std::filesystem::path dir_;
  hub::GlinerConfig config_;
  int64_t encoder_ = 0, labels_ = 0;
};

TEST_P(CudaWordHead, ScoresEqualThoseOfTheHeadOnTheHost) {
  const auto host = GlinerHead::load(dir_, config_, encoder_, labels_, ops::Precision::fp32);
  const auto head = GlinerHead::load_for_device(dir_, config_, encoder_, labels_);
  std::vector<float> vectors;
  for (int64_t i = 0; i < 3 * labels_; ++i) vectors.push_back(static_cast<float>(i % 7) / 4 - 0.7f);
  const auto prepared = labels_ > 0 ? head->prepare(vectors) : nullptr,
             of_host = labels_ > 0 ? host->prepare(vectors) : nullptr;
  const RandomBatch random({3, 0, 1, 17, 2, 9, 5}, encoder_, prepared.get());
  const int64_t width = word_width(config_, 4);
  for (const int64_t chunk : {random.batch.longest, int64_t{120}, int64_t{4096}}) {
    WordHead device_head({head->device_weights(), config_, ops::Precision::fp32, chunk, width}, *gpu_, *stream_,
                         nullptr);
    size_t spans = 0;
    for (int again = 0; again < 2; ++again) {
      const std::vector<float> scores = scores_of(device_head, random, width);
      for (size_t b = 0; b < random.ids.size(); ++b) {
        SCOPED_TRACE(fmt::format("chunks of {} tokens, sequence {}", chunk, b));
        const auto& words = random.words[b];
        const size_t labels = labels_ > 0 ? 3 : random.labels[b].size();
        const auto first = static_cast<size_t>(random.batch.starts[b]), n = static_cast<size_t>(width);
        std::vector<SpanScore> got, want;
        head->read_scores({scores.data() + first * n, words.size() * n}, n, labels, kThreshold, got);
        const HeadWindow window{random.hidden.data() + static_cast<int64_t>(first) * encoder_, random.labels[b], words};
        host->score({&window, 1}, of_host.get(), kThreshold, {&want, 1});
        ASSERT_EQ(got.size(), want.size());
        spans += want.size();
        for (size_t i = 0; i < got.size(); ++i) {
          EXPECT_EQ(std::tuple(got[i].first, got[i].last, got[i].label),
                    std::tuple(want[i].first, want[i].last, want[i].label));
          EXPECT_NEAR(got[i].score, want[i].score, 1e-4f);
        }
        for (size_t t = words.size() * n; t < random.ids[b].size() * n; ++t) ASSERT_EQ(scores[first * n + t], 0.0f);
      }
    }
    EXPECT_GT(spans, 0u);
  }
}
INSTANTIATE_TEST_SUITE_P(Variants, CudaWordHead,
                         ::testing::Values("span", "span_rnn", "token", "token_rnn", "bi_span", "bi_token"));

}  // namespace
}  // namespace brim::engine
