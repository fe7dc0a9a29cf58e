// SPDX-License-Identifier: Apache-2.0
#include "ops/gemm_tuner.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>

#include "ops/gemm_file.h"

namespace brim::ops {
namespace {

// Any error in a result must give a large distance, because an accepted algorithm is used for all later products.
TEST(ProductDistance, DetectsEveryKindOfWrongResult) {
  std::vector<float> right(4096);
  for (size_t i = 0; i < right.size(); ++i) right[i] = static_cast<float>(static_cast<int>(i * 37 % 101) - 50);
  EXPECT_EQ(product_distance(right, right), 0);
  std::vector<float> near = right, wrong = right;
  for (float& v : near) v *= 1.01f;
  EXPECT_NEAR(product_distance(right, near), 0.01, 1e-4);
  for (size_t i = 0; i < 64; ++i) wrong[i] = 0;  // one row of 64
  EXPECT_GT(product_distance(right, wrong), 0.05);
  for (float& v : wrong) v = -v;
  EXPECT_GT(product_distance(right, wrong), 1);
  for (const float bad : {std::nanf(""), std::numeric_limits<float>::infinity()}) {
    wrong = right;
    wrong[7] = bad;
    EXPECT_EQ(product_distance(right, wrong), std::numeric_limits<double>::infinity());
    EXPECT_EQ(product_distance(wrong, right), std::numeric_limits<double>::infinity());
  }
  const std::vector<float> zeros(right.size());
  EXPECT_GT(product_distance(zeros, right), 1);
  EXPECT_EQ(product_distance(right, {}), std::numeric_limits<double>::infinity());  // the algorithm failed to run
}

TEST(GemmFile, HasAVersionAndAcceptsFilesWithoutOne) {
  const std::vector<GemmChoice> kept = {{"n 768 k 768", "00ff", 12.5, 14, 9}};
  const std::string text = gemm_file_text("lib 1", kept);
  EXPECT_EQ(text.find("{\n \"version\": 1"), 0u) << text;
  const auto read = read_gemm_file(text, "lib 1");
  ASSERT_TRUE(read && read->size() == 1);
  EXPECT_EQ(gemm_choice_text(read->at(0)), gemm_choice_text(kept[0]));
  EXPECT_EQ(read->at(0).algorithm, "00ff");
  EXPECT_FALSE(read_gemm_file(text, "lib 2"));
  EXPECT_TRUE(read_gemm_file(R"({"library":"lib 1","choices":[]})", "lib 1"));
  EXPECT_FALSE(read_gemm_file(R"({"version":2,"library":"lib 1"})", "lib 1"));
  EXPECT_ANY_THROW(read_gemm_file("{}", "lib 1"));
  EXPECT_ANY_THROW(read_gemm_file("no json", "lib 1"));
}

TEST(KnownGemms, AreForOneGpuAndOneLibrary) {
  const std::vector<GemmChoice> known = known_gemm_choices("NVIDIA H200 driver 13000 cublaslt 130100");
  ASSERT_FALSE(known.empty());
  for (const GemmChoice& c : known) {
    EXPECT_EQ(c.algorithm.size(), 128u) << c.key;
    EXPECT_EQ(c.algorithm.find_first_not_of("0123456789abcdef"), std::string::npos) << c.key;
    EXPECT_EQ(c.key.find("tn m "), 0u) << c.key;
  }
  for (const char* other : {"NVIDIA H200 driver 13000 cublaslt 130101", "NVIDIA H200 NVL driver 13000 cublaslt 130100",
                            "NVIDIA A100 driver 13000 cublaslt 130100", ""})
    EXPECT_TRUE(known_gemm_choices(other).empty()) << other;
}

}  // namespace
}  // namespace brim::ops
