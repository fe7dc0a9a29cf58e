// SPDX-License-Identifier: Apache-2.0
// Test fixture for training: a tiny seeded model with a vocabulary of made-up words, learnable data files, and settings
// that train in well under a second.
#pragma once
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "base/test_files.h"
#include "model/golden_models.h"
#include "train/trainer.h"

namespace brim::train {

// Words w5 … w35 are negative, w36 … w65 neutral, w66 … w95 positive.
inline std::string tiny_text(std::mt19937& random, int lean, size_t words) {
  std::string out;
  for (size_t i = 0; i < words; ++i) {
    const unsigned word = random() % 4 == 0 ? 5 + random() % 91 : 5 + static_cast<unsigned>(lean) * 30 + random() % 30;
    out += (i > 0 ? " w" : "w") + std::to_string(word);
  }
  return out;
}

inline const char* tiny_label(int lean) {
  constexpr const char* names[] = {"negative", "neutral", "positive"};
  return names[lean];
}

inline nlohmann::json json_of(const std::filesystem::path& path) { return nlohmann::json::parse(get_file(path)); }

struct TinyJob {
  TempDir dir;
  TrainSettings settings;

  explicit TinyJob(const std::string& model = "bert_sequence", int rows = 48) {
    ::setenv("BRIM_CACHE", (dir / "cache").c_str(), 1);
    model::put_golden_model(dir / "model", model);
    put_file(dir / "train.csv", csv(rows, 1));
    put_file(dir / "val.csv", csv(24, 2));
    settings.model = (dir / "model").string();
    settings.train_files = {(dir / "train.csv").string()};
    settings.validation_files = {(dir / "val.csv").string()};
    settings.output_dir = (dir / "out").string();
    settings.device = {device::DeviceChoice::Kind::cpu};
    settings.threads = 1;
    settings.memory_limit = plan::MemoryLimit::read("1GiB");
    settings.num_train_epochs = 2;
    settings.train_batch_size = 8;
    settings.learning_rate = 1e-3;
    settings.logging_steps = 1;
    settings.save_strategy = Strategy::no;
  }

  static std::string csv(int rows, unsigned seed) {
    std::mt19937 random(seed);
    std::string text = "text,label\n";
    for (int r = 0; r < rows; ++r) text += tiny_text(random, r % 3, 2 + random() % 20) + "," + tiny_label(r % 3) + "\n";
    return text;
  }
  static std::string conll(int sentences, unsigned seed) {
    std::mt19937 random(seed);
    std::string text;
    for (int s = 0; s < sentences; ++s) {
      for (unsigned i = 0; i < 3 + random() % 8; ++i) {
        const unsigned word = 5 + random() % 91;
        text += "w" + std::to_string(word) + "\t" + (word < 60 ? "O" : word < 80 ? "B-PER" : "B-LOC") + "\n";
      }
      text += "\n";
    }
    return text;
  }

  std::filesystem::path out() const { return settings.output_dir; }
  std::string weights(const std::string& output = "") const {
    return get_file((output.empty() ? out() : dir / output) /
                    (settings.lora() ? hub::kAdapterWeights : "model.safetensors"));
  }
  TrainOutcome run() const { return train(settings, {}); }
  // Same job with another output directory.
  TrainSettings to(const std::string& output) const {
    TrainSettings s = settings;
    s.output_dir = (dir / output).string();
    return s;
  }
};

}  // namespace brim::train
