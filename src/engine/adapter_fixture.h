// SPDX-License-Identifier: Apache-2.0
// Fixture of tests of adapters: those that PEFT wrote for the tiny models (tests/data/adapters), and variants of them.
#pragma once
#include <cmath>
#include <future>
#include <nlohmann/json.hpp>
#include <thread>

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
  // The adapter `name` with another factor, so that its results differ.
  ScorerOptions variant(double alpha, const std::string& name = "roberta") {
    ScorerOptions o = adapted(name, true);
    const auto dir = temp_.path() / (name + "-alpha" + std::to_string(static_cast<int>(alpha)));
    std::filesystem::create_directories(dir);
    for (const char* file : {"adapter_config.json", "adapter_model.safetensors"})
      std::filesystem::copy(kAdapters / name / file, dir / file, std::filesystem::copy_options::overwrite_existing);
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
  // Requests that wait while the scheduler is busy, so that they are packed together.
  static std::vector<Prediction> together(std::span<const std::shared_ptr<Scorer>> scorers,
                                          const std::vector<std::string>& texts) {
    std::promise<void> waiting, release;
    std::thread blocker([&] {
      engine_of(*scorers[0]).scheduler().call([&] {
        waiting.set_value();
        release.get_future().wait();
      });
    });
    waiting.get_future().wait();
    std::vector<std::future<Prediction>> answers;
    for (size_t t = 0; t < texts.size(); ++t)
      answers.push_back(scorers[t % scorers.size()]->submit({.text = texts[t], .raw_scores = true}));
    release.set_value();
    blocker.join();
    std::vector<Prediction> all;
    for (auto& answer : answers) all.push_back(answer.get());
    return all;
  }
  static ModelHost::Work work_of(const Scorer& scorer) {
    Engine& engine = engine_of(const_cast<Scorer&>(scorer));
    return engine.scheduler().work_of(engine.host());
  }
  static int64_t shared_batches(std::span<const std::shared_ptr<Scorer>> scorers) {
    int64_t sum = 0;
    for (const auto& scorer : scorers) sum += work_of(*scorer).shared_batches;
    return sum;
  }
};

}  // namespace brim::engine
