// SPDX-License-Identifier: Apache-2.0
// GLiNER models on CUDA, from texts to entities. The head alone is tested in word_head_cuda_test.cc.
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "device/cuda/testing.h"
#include "device/cuda_info.h"
#include "engine/engine.h"
#include "memory/ledger.h"

namespace brim::engine {
namespace {

using memory::Ledger;
using model::Output;

EngineOptions gliner_options(const std::string& name, const std::string& precision) {
  EngineOptions options;
  options.model_dir = std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data/gliner" / name;
  options.device = device::read_device("cuda");
  options.precision = plan::read_precision(precision);
  options.memory_limit = plan::MemoryLimit::read("4GiB");
  return options;
}

// Entities of the gliner package: the same spans and labels, scores within 1e-4 in fp32.
TEST(EngineCuda, GlinerEntitiesEqualThoseOfGliner) {
  BRIM_NEEDS_GPU();
  for (const char* name : {"span", "span_rnn", "token", "token_rnn", "bi_span", "bi_token"}) {
    SCOPED_TRACE(name);
    const auto engine = Engine::open(gliner_options(name, "fp32"));
    const auto golden = nlohmann::json::parse(std::ifstream(engine->model_dir() / "golden.json"));
    const auto texts = golden["texts"].get<std::vector<std::string>>();
    const std::vector<std::string_view> views(texts.begin(), texts.end());
    for (const auto& c : golden["cases"]) {
      SCOPED_TRACE(c["labels"].dump() + c["threshold"].dump() + c["nested"].dump());
      const auto task = engine->prepare_entities({c["labels"], c["threshold"].get<float>(), c["nested"].get<bool>()});
      TextOptions reading = engine->text_options();
      reading.zero_shot = task.get();
      TokenizedTexts tokens;
      for (const std::string_view text : views) ASSERT_FALSE(engine->tokenize(text, tokens, reading));
      const auto found = engine->entities(views, tokens);
      for (size_t t = 0; t < texts.size(); ++t) {
        SCOPED_TRACE(texts[t]);
        const auto& want = c["entities"][t];
        ASSERT_EQ(found[t].size(), want.size());
        for (size_t i = 0; i < want.size(); ++i) {
          EXPECT_EQ(found[t][i].start, want[i][0]);
          EXPECT_EQ(found[t][i].end, want[i][1]);
          EXPECT_EQ(found[t][i].group, want[i][2]);
          EXPECT_NEAR(found[t][i].score, want[i][3].get<float>(), 1e-4f);
        }
      }
    }
  }
}

// Texts alone have the entities that they have in large batches, with few exceptions at the threshold, and a model that
// was parked loads its head again.
TEST(EngineCuda, GlinerHeadWorksInLargeBatchesAndAfterParking) {
  BRIM_NEEDS_GPU();
  for (const char* name : {"span_rnn", "token_rnn", "bi_span"})
    for (const char* precision : {"fp32", cuda_info(*device::open_cuda_device(0)).bf16 ? "bf16" : "fp16"}) {
      SCOPED_TRACE(std::string(name) + " " + precision);
      EngineOptions options = gliner_options(name, precision);
      const auto golden = nlohmann::json::parse(std::ifstream(options.model_dir / "golden.json"));
      const auto& c = golden["cases"][3];
      options.entities = EntityLabels{c["labels"], c["threshold"].get<float>(), c["nested"].get<bool>()};
      const auto engine = Engine::open(options);
      EXPECT_EQ(engine->output(), Output::word_scores);
      std::vector<std::string> texts;
      for (int i = 0; i < 100; ++i)
        for (const auto& text : golden["texts"]) texts.push_back(text);
      const std::vector<std::string_view> views(texts.begin(), texts.end());
      const auto all = engine->entities(views);
      size_t entities = 0, differences = 0;
      for (size_t t = 0; t < texts.size(); t += 101) {
        const auto alone = engine->entities(std::span(views).subspan(t, 1))[0];
        entities += all[t].size();
        differences += alone.size() != all[t].size();
      }
      EXPECT_GT(entities, 0u);
      EXPECT_LE(differences, precision == std::string("fp32") ? 1u : 5u);
      engine->park();
      EXPECT_EQ(engine->entities(views).size(), all.size());
      EXPECT_LE(Ledger::of(engine->device()).most_reserved_bytes(), int64_t{4} << 30);
    }
}

// The labels of a request to a word model are bounded by the planned width.
TEST(EngineCuda, GlinerWordModelRejectsMoreLabelsThanPlanned) {
  BRIM_NEEDS_GPU();
  const auto engine = Engine::open(gliner_options("bi_token", "fp32"));
  EntityLabels labels{{}, 0.5f, false};
  for (int i = 0; i < 300; ++i) labels.labels.push_back("label " + std::to_string(i));
  EXPECT_THROW((void)engine->prepare_entities(labels), Error);
  labels.labels.resize(200);
  EXPECT_NE(engine->prepare_entities(labels), nullptr);
}

}  // namespace
}  // namespace brim::engine
