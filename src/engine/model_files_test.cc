// SPDX-License-Identifier: Apache-2.0
// Tests model files that change on disk under a loaded scorer. Eviction and reloading are tested in residency_test.cc.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "base/test_files.h"
#include "brim/brim.h"
#include "engine/testing.h"
#include "model/export.h"
#include "model/golden_models.h"

namespace brim::engine {
namespace {

namespace fs = std::filesystem;

class LoadedScorer : public ::testing::TestWithParam<ops::Precision> {
 protected:
  void SetUp() override {
    model::put_golden_model(temp_ / "golden", "bert_sequence");
    model::export_model(temp_ / "golden", dir_, GetParam());
    scorer_ = Scorer::open(cpu_options(dir_));
    for (int i = 5; i < 96; ++i) texts_.push_back("w" + std::to_string(i));
    before_ = scores();
  }
  // Scores all texts in one bulk call and then one by one.
  std::vector<std::vector<float>> scores() const {
    const std::vector<std::string_view> views(texts_.begin(), texts_.end());
    const Predictions all = scorer_->score(views);
    std::vector<std::vector<float>> rows = {all.scores};
    for (const std::string& text : texts_) rows.push_back(scorer_->submit({.text = text}).get().scores);
    return rows;
  }

  const TempDir temp_;
  const fs::path dir_ = temp_ / "model", weights_ = dir_ / "model.safetensors";
  std::vector<std::string> texts_;
  std::shared_ptr<Scorer> scorer_;
  std::vector<std::vector<float>> before_;
};

TEST_P(LoadedScorer, GivesTheSameScoresAfterItsWeightsAreOverwrittenInPlace) {
  const auto size = fs::file_size(weights_);
  std::fstream file(weights_, std::ios::in | std::ios::out | std::ios::binary);
  file << std::string(size, '\x3c');
  file.close();
  ASSERT_EQ(fs::file_size(weights_), size);
  EXPECT_EQ(scores(), before_);
}

TEST_P(LoadedScorer, GivesTheSameScoresAfterItsFilesAreTruncated) {
  for (const auto& file : fs::directory_iterator(dir_)) fs::resize_file(file.path(), 0);
  EXPECT_EQ(scores(), before_);
}

INSTANTIATE_TEST_SUITE_P(StoredIn, LoadedScorer,
                         ::testing::Values(ops::Precision::fp32, ops::Precision::fp16, ops::Precision::bf16,
                                           ops::Precision::int8),
                         [](const auto& stored) { return std::string(ops::precision_name(stored.param)); });

}  // namespace
}  // namespace brim::engine
