// SPDX-License-Identifier: Apache-2.0
// The cache of teachers' scores with damaged files and several writers, and the mean of teachers.
#include "train/soft_labels.h"

#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/test_files.h"
#include "train/soft_label_cache.h"

namespace brim::train {
namespace {

using Scores = std::map<TextKey, std::vector<float>>;

Scores all_of(SoftLabelCache& cache, size_t classes = 2) {
  Scores found;
  cache.read_new([&](const TextKey& key, const float* scores) { found[key] = {scores, scores + classes}; });
  return found;
}

void add(SoftLabelCache& cache, const char* text, float a, float b) {
  const TextKey key = text_key(text);
  const float scores[] = {a, b};
  cache.append({&key, 1}, scores);
}

constexpr int64_t kLimit = int64_t{1} << 20;

TEST(SoftLabelCache, KeepsScoresByText) {
  TempDir dir;
  {
    SoftLabelCache cache(dir / "", "x", 2, kLimit);
    EXPECT_TRUE(all_of(cache).empty());
    add(cache, "a", 0.25f, 0.75f);
    add(cache, "b", 1, 0);
  }
  SoftLabelCache cache(dir / "", "x", 2, kLimit), other(dir / "", "x", 2, kLimit);
  EXPECT_EQ(all_of(cache), (Scores{{text_key("a"), {0.25f, 0.75f}}, {text_key("b"), {1, 0}}}));
  add(other, "c", 0, 1);
  EXPECT_EQ(all_of(cache), (Scores{{text_key("c"), {0, 1}}}));  // only the new ones
  EXPECT_EQ(all_of(other).size(), 3u);
  EXPECT_TRUE(text_key("a", "b") != text_key("ab"));
  EXPECT_TRUE(text_key("a", "b") != text_key("a"));
}

TEST(SoftLabelCache, IgnoresDamagedAndIncompleteRecords) {
  TempDir dir;
  {
    SoftLabelCache cache(dir / "", "x", 2, kLimit);
    for (const char* text : {"a", "b", "c"}) add(cache, text, 0.5f, 0.5f);
  }
  std::string bytes = get_file(dir / "x.scores");
  const size_t record = (bytes.size() - 16) / 3;
  bytes[16 + record + 20] ^= 1;             // the second record's scores
  bytes.resize(bytes.size() - record / 2);  // the writer of the third was killed
  put_file(dir / "x.scores", bytes);
  {
    SoftLabelCache cache(dir / "", "x", 2, kLimit);
    EXPECT_EQ(all_of(cache).size(), 1u);
    add(cache, "d", 0, 1);
    EXPECT_EQ(all_of(cache), (Scores{{text_key("d"), {0, 1}}}));
  }
  SoftLabelCache cache(dir / "", "x", 2, kLimit);
  EXPECT_EQ(all_of(cache).size(), 2u);
  SoftLabelCache wider(dir / "", "x", 3, kLimit);  // not such a file: disabled
  EXPECT_TRUE(all_of(wider, 3).empty());
  put_file(dir / "y.scores", "BRIM");  // killed while it was created
  SoftLabelCache created(dir / "", "y", 2, kLimit);
  add(created, "a", 0, 1);
  EXPECT_EQ(all_of(created).size(), 1u);
}

TEST(SoftLabelCache, RemovesTheLeastRecentlyUsedFile) {
  TempDir dir;
  for (const char* name : {"a", "b"}) {
    SoftLabelCache cache(dir / "", name, 2, kLimit);
    add(cache, "a", 0, 1);
  }
  namespace fs = std::filesystem;
  fs::last_write_time(dir / "b.scores", fs::file_time_type::clock::now() - std::chrono::hours(1));
  SoftLabelCache cache(dir / "", "c", 2, 60);
  EXPECT_TRUE(fs::exists(dir / "a.scores"));
  EXPECT_FALSE(fs::exists(dir / "b.scores"));
}

TEST(SoftLabels, MixesTeachersByWeightAndClass) {
  Teacher a, b;
  a.labels = b.labels = {"x", "y"};
  a.weight = 0.75;
  a.class_of = {0, 1};
  b.weight = 0.25;
  b.class_of = {1, 0};
  const std::vector<float> of_a = {0.8f, 0.2f, 1, 0}, of_b = {0.3f, 0.7f, 0, 1};  // y first for the student
  for (const bool multi_label : {false, true}) {
    constexpr double kTemperature = 2;
    SoftLabelMixer mixer(2, 2, kTemperature, multi_label);
    mixer.add(a, of_a);
    mixer.add(b, of_b);
    const SoftLabels soft = mixer.finish();
    const auto softened = [&](double p) {
      if (multi_label) return 1 / (1 + std::sqrt((1 - p) / p));
      return std::sqrt(p) / (std::sqrt(p) + std::sqrt(1 - p));
    };
    const double want = 0.75 * softened(0.8) + 0.25 * softened(0.7);
    const double z0 = std::exp(soft.logits[0] / kTemperature), z1 = std::exp(soft.logits[1] / kTemperature);
    EXPECT_NEAR(multi_label ? z0 / (1 + z0) : z0 / (z0 + z1), want, 1e-6);
    for (const float z : soft.logits) EXPECT_TRUE(std::isfinite(z));
    EXPECT_NEAR(soft.votes[0].margin, 2 * (0.75 * 0.8 + 0.25 * 0.7) - 1, 1e-6);
    EXPECT_EQ(soft.votes[0].label, multi_label ? -1 : 0);
    if (multi_label) continue;
    EXPECT_NEAR(soft.votes[0].score, 0.775, 1e-6);
    EXPECT_EQ(soft.choices, (std::vector<std::vector<int32_t>>{{0, 0}, {0, 0}}));
  }
}

}  // namespace
}  // namespace brim::train
