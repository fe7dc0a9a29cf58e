// SPDX-License-Identifier: Apache-2.0
// Fixture of tests of adapters: those that PEFT wrote for the tiny models (tests/data/adapters), and variants of them.
#pragma once
#include <cmath>
#include <nlohmann/json.hpp>

#include "engine/engine.h"
#include "engine/scorer_access.h"
#include "engine/scorer_fixture.h"
#include "memory/ledger.h"

namespace brim::engine {

inline const std::filesystem::path kAdapters = model::golden_models().parent_path() / "adapters";

class AdapterTest : public ScorerTest {
 protected:
  ScorerOptions adapted(const std::string& name, bool shares) {
    const nlohmann::json golden = nlohmann::json::parse(get_file(kAdapters / name / "golden.json"));
    ScorerOptions o = options(golden["base"].get<std::string>().c_str());
    o.adapter = (kAdapters / name).string();
    o.raw_scores = true;
    o.share_base = shares;
    return o;
  }
  // The adapter of roberta_sequence with another factor, so that its results differ.
  ScorerOptions variant(double alpha) {
    ScorerOptions o = adapted("roberta", true);
    const auto dir = temp_.path() / ("alpha" + std::to_string(static_cast<int>(alpha)));
    std::filesystem::create_directories(dir);
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
      std::filesystem::copy(kAdapters / "roberta" / file, dir / file,
                            std::filesystem::copy_options::overwrite_existing);
    nlohmann::json config = nlohmann::json::parse(get_file(dir / "adapter_config.json"));
    config["lora_alpha"] = alpha;
    put_file(dir / "adapter_config.json", config.dump());
    o.adapter = dir.string();
    return o;
  }
  static std::vector<float> logits(Scorer& scorer, const std::string& text) {
    return scorer.submit({.text = text, .raw_scores = true}).get().scores;
  }
  static void expect_near(const std::vector<float>& got, const std::vector<float>& want, double share) {
    ASSERT_EQ(got.size(), want.size());
    double difference = 0, norm = 0;
    for (size_t i = 0; i < got.size(); ++i) {
      difference += std::pow(got[i] - want[i], 2);
      norm += std::pow(want[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), share * std::sqrt(norm));
  }
  static int64_t weights(std::span<const std::shared_ptr<Scorer>> scorers) {
    for (const auto& [purpose, bytes] : plan_together(scorers).bytes)
      if (purpose == "weights") return bytes;
    return 0;
  }
  static const memory::Ledger& ledger(const Scorer& scorer) { return memory::Ledger::of(engine_of(scorer).device()); }
};

}  // namespace brim::engine
