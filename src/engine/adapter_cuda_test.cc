// SPDX-License-Identifier: Apache-2.0
// Adapters on the GPU: logits against PEFT's, merged or beside the weights of a base model, as graphs and op by op, and
// their memory.
#include <gtest/gtest.h>

#include <map>

#include "device/cuda/testing.h"
#include "device/cuda_info.h"
#include "engine/adapter_fixture.h"

namespace brim::engine {
namespace {

class AdapterCudaTest : public AdapterTest {
 protected:
  static ScorerOptions on_gpu(ScorerOptions o, const std::string& precision) {
    o.device = "cuda";
    o.precision = precision;
    o.memory_limit = "4GiB";
    return o;
  }
  struct Arithmetic {
    const char* precision;
    double roundings;  // in units of the last place of the largest logit, as for models without adapters
  };
  static std::vector<Arithmetic> arithmetics() {
    std::vector<Arithmetic> all{{"fp16", 16 * 0x1p-11}};
    if (cuda_info(*device::open_cuda_device(0)).bf16) all.push_back({"bf16", 16 * 0x1p-8});
    return all;
  }
};

TEST_F(AdapterCudaTest, LogitsMatchPeftMergedAndBesideTheBase) {
  BRIM_NEEDS_GPU();
  std::vector<Arithmetic> all = arithmetics();
  all.push_back({"fp32", 0});
  for (const char* name : {"roberta", "bert_new_head", "deberta", "modernbert", "albert"}) {
    const nlohmann::json golden = nlohmann::json::parse(get_file(kAdapters / name / "golden.json"));
    double size = 0;
    for (const auto& row : golden["rows"])
      for (const double v : row[0].get<std::vector<double>>()) size = std::max(size, std::abs(v));
    for (const Arithmetic& a : all)
      for (const bool shares : {false, true}) {
        SCOPED_TRACE(fmt::format("{} {} {}", name, a.precision, shares ? "beside its base" : "merged"));
        const auto scorer = Scorer::open(on_gpu(adapted(name, shares), a.precision));
        EXPECT_EQ(engine_of(*scorer).host().base() != nullptr, shares && std::string(name) != "deberta");
        for (size_t i = 0; i < golden["ids"].size(); ++i) {
          const auto ids = golden["ids"][i].get<std::vector<int32_t>>();
          const Prediction one = scorer->submit({.raw_scores = true, .ids = ids}).get();
          ASSERT_FALSE(one.error) << one.error->what();
          const auto want = golden["rows"][i][0].get<std::vector<float>>();
          ASSERT_EQ(one.scores.size(), want.size());
          for (size_t k = 0; k < want.size(); ++k)
            EXPECT_NEAR(one.scores[k], want[k], std::max(1e-4, a.roundings * size)) << i;
        }
      }
  }
}

TEST_F(AdapterCudaTest, EveryBatchSizeMatchesTheMergedModel) {
  BRIM_NEEDS_GPU();
  const std::vector<std::string> texts = make_texts(500, 7, 60);
  for (const char* name : {"roberta", "modernbert", "albert"}) {
    std::vector<Arithmetic> all = arithmetics();
    all.push_back({"fp32", 1e-4});
    for (const Arithmetic& a : all) {
      SCOPED_TRACE(fmt::format("{} {}", name, a.precision));
      const auto merged = Scorer::open(on_gpu(adapted(name, false), a.precision));
      const auto beside = Scorer::open(on_gpu(adapted(name, true), a.precision));
      expect_near(beside->score(views(texts)).scores, merged->score(views(texts)).scores, 2 * a.roundings);
      for (const std::string& text : make_texts(3, 9))
        expect_near(logits(*beside, text), logits(*merged, text), 2 * a.roundings);
    }
  }
}

TEST_F(AdapterCudaTest, AdaptersShareTheBaseUnderOneLimit) {
  BRIM_NEEDS_GPU();
  std::vector<ScorerOptions> all;
  for (int i = 1; i <= 8; ++i) all.push_back(on_gpu(variant(8 * i), "fp32"));
  const auto together = open_together(all);
  const memory::Ledger& of_device = ledger(*together[0]);
  std::vector<const plan::Plan*> plans;
  for (const auto& scorer : together) plans.push_back(&engine_of(*scorer).plan());
  EXPECT_LE(of_device.reserved_bytes(), plan::planned_bytes(plans));
  EXPECT_LE(engine_of(*together[0]).device().allocated_bytes(), of_device.reserved_bytes());
  EXPECT_EQ(engine_of(*together[0]).host().base()->users(), 8);
  const std::vector<std::string> texts = make_texts(40, 5);
  for (const auto& scorer : together) {
    ScorerOptions alone = all[static_cast<size_t>(&scorer - together.data())];
    alone.share_base = false;
    const auto merged = Scorer::open(alone);
    for (const std::string& text : texts) expect_near(logits(*scorer, text), logits(*merged, text), 1e-4);
  }
  const int64_t before = of_device.reserved_bytes();
  const std::vector<float> want = logits(*together[3], texts[0]);
  together[3]->park();
  EXPECT_EQ(of_device.reserved_bytes(), before - engine_of(*together[3]).host().own_bytes());
  EXPECT_NE(logits(*together[4], texts[0]), want);
  EXPECT_EQ(logits(*together[3], texts[0]), want) << "loaded again";
  EXPECT_LE(of_device.most_reserved_bytes(), int64_t{4} << 30);
}

TEST_F(AdapterCudaTest, SharedBatchesGiveTheResultsOfSeparateOnes) {
  BRIM_NEEDS_GPU();
  std::vector<Arithmetic> all = arithmetics();
  all.push_back({"fp32", 1e-4});
  for (const char* name : {"roberta", "albert", "modernbert"})
    for (const Arithmetic& a : all)
      for (const bool deterministic : {false, true})
        for (const size_t count : {6, 16, 300}) {
          SCOPED_TRACE(
              fmt::format("{} {} {} texts{}", name, a.precision, count, deterministic ? ", deterministic" : ""));
          std::vector<ScorerOptions> options;
          for (const double alpha : {2, 4, 6, 8}) options.push_back(on_gpu(variant(alpha, name), a.precision));
          for (ScorerOptions& o : options) o.deterministic = deterministic;
          const auto scorers = open_together(options);
          const std::vector<std::string> texts = make_texts(count, 3, 60);
          const auto got = together(scorers, texts);
          EXPECT_GT(shared_batches(scorers), 1);
          for (size_t t = 0; t < texts.size(); ++t) {
            ASSERT_FALSE(got[t].error) << got[t].error->what();
            expect_near(got[t].scores, logits(*scorers[t % scorers.size()], texts[t]), 2 * a.roundings);
          }
          EXPECT_LE(engine_of(*scorers[0]).device().allocated_bytes(), ledger(*scorers[0]).reserved_bytes());
        }
}

}  // namespace
}  // namespace brim::engine
