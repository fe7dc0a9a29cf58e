// SPDX-License-Identifier: Apache-2.0
// Test support: the tiny seeded models in tests/data/models and packed batches of their golden sequences.
#pragma once
#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ops/batch_view.h"

namespace brim::model {

// BRIM_GOLDEN_MODELS: other models, made by tools/check_shapes.py.
inline std::filesystem::path golden_models() {
  if (const char* other = std::getenv("BRIM_GOLDEN_MODELS")) return other;
  return std::filesystem::path(BRIM_SOURCE_DIR) / "tests" / "data" / "models";
}

// Names of models that have this file: every model has golden.json, every trained one gradients.json.
inline std::vector<std::string> golden_names(const char* file) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(golden_models()))
    if (std::filesystem::exists(entry.path() / file)) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  return names;
}

// Copies a model into `dir` with a WordPiece vocabulary of made-up words w5 … w95, replacing an existing one.
inline void put_golden_model(const std::filesystem::path& dir, const std::string& model) {
  std::filesystem::create_directories(dir);
  for (const char* file : {"config.json", "model.safetensors"})
    std::filesystem::copy(golden_models() / model / file, dir / file,
                          std::filesystem::copy_options::overwrite_existing);
  std::ofstream vocab(dir / "vocab.txt");
  vocab << "[PAD]\n[UNK]\n[CLS]\n[SEP]\n[MASK]\n";
  for (int i = 5; i < 96; ++i) vocab << "w" << i << "\n";
}

// A tagger with the encoder of a BERT classifier: the same weights, with the last matrix as its head.
inline void put_tagger_twin(const std::filesystem::path& dir, const std::string& model) {
  put_golden_model(dir, model);
  nlohmann::json config = nlohmann::json::parse(std::ifstream(dir / "config.json"));
  config["architectures"] = {"BertForTokenClassification"};
  config["id2label"] = {{"0", "O"}, {"1", "B-PER"}, {"2", "I-PER"}};
  config.erase("label2id");
  std::ofstream(dir / "config.json") << config;
}

inline nlohmann::json golden_json(const std::string& model, const char* file) {
  std::ifstream stream(golden_models() / model / file);
  return nlohmann::json::parse(stream);
}

// Host arrays of a packed batch.
struct GoldenBatch {
  std::vector<int32_t> ids, positions, starts{0}, order;
  int64_t longest = 0, n_long = 0;

  GoldenBatch(const std::vector<std::vector<int32_t>>& sequences, int64_t position_offset) {
    for (const auto& s : sequences) {
      for (size_t i = 0; i < s.size(); ++i) {
        ids.push_back(s[i]);
        positions.push_back(static_cast<int32_t>(position_offset + static_cast<int64_t>(i)));
      }
      starts.push_back(static_cast<int32_t>(ids.size()));
      order.push_back(static_cast<int32_t>(order.size()));
      longest = std::max<int64_t>(longest, static_cast<int64_t>(s.size()));
      n_long += static_cast<int64_t>(s.size()) > ops::kShortTokens ? 1 : 0;
    }
    std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
      return sequences[static_cast<size_t>(a)].size() > sequences[static_cast<size_t>(b)].size();
    });
  }
  static tensor::TensorView ints(const std::vector<int32_t>& x) {
    return tensor::TensorView(const_cast<int32_t*>(x.data()), tensor::DType::i32, {static_cast<int64_t>(x.size())});
  }
  ops::BatchView view() const {
    ops::BatchView b;
    b.T = static_cast<int64_t>(ids.size());
    b.B = static_cast<int64_t>(starts.size()) - 1;
    b.S = longest;
    b.ids = ints(ids);
    b.positions = ints(positions);
    b.starts = ints(starts);
    b.order = ints(order);
    b.n_long = n_long;
    return b;
  }
};

}  // namespace brim::model
