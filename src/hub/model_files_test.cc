// SPDX-License-Identifier: Apache-2.0
// A base model and an adapter opened as one model. The logits are compared with PEFT's in model/model_test.cc.
#include "hub/model_files.h"

#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "base/test_files.h"
#include "hub/adapter.h"

namespace brim::hub {
namespace {

const std::filesystem::path kData = std::filesystem::path(BRIM_SOURCE_DIR) / "tests/data";

std::vector<float> values_of(const WeightSource& source, const std::string& name) {
  const LoadedTensor t = source.get(name);
  std::vector<float> wide(static_cast<size_t>(t.elements()));
  convert_elements(t.data, t.dtype, wide.data(), tensor::DType::f32, t.elements());
  return wide;
}

TEST(ModelFiles, AdaptedTensorsHaveMergedValuesInAnyPieces) {
  const std::filesystem::path dir = kData / "models/roberta_sequence", lora = kData / "adapters/roberta";
  const auto base = WeightSource::open(dir);
  const Adapter adapter(lora, *base);
  const OpenModel model = open_model({dir, lora});
  EXPECT_EQ(model.weights->names(), base->names());
  size_t changed = 0;
  for (const std::string& name : base->names()) {
    std::vector<float> want = values_of(*base, name);
    const std::vector<float> before = want;
    adapter.apply(name, want);
    EXPECT_EQ(values_of(*model.weights, name), want) << name;
    if (want == before) continue;
    ++changed;
    const auto elements = static_cast<int64_t>(want.size());
    std::vector<float> pieces(want.size());
    for (int64_t at = 0; at < elements; at += 77)
      model.weights->read(name, at, std::min(at + 77, elements), pieces.data() + at);
    EXPECT_EQ(pieces, want) << name;
  }
  EXPECT_GE(changed, 4u);
  model.weights->check_unchanged();
}

TEST(ModelFiles, TheHeadIsTheAdapters) {
  const std::filesystem::path dir = kData / "models/bert_encoder", lora = kData / "adapters/bert_new_head";
  const OpenModel model = open_model({dir, lora});
  EXPECT_EQ(head_kind(open_model(dir).config, open_model(dir).weights->names()), HeadKind::encoder);
  EXPECT_EQ(head_kind(model.config, model.weights->names()), HeadKind::sequence);
  EXPECT_EQ(model.config.id2label, (std::vector<std::string>{"LABEL_0", "LABEL_1"}));
  EXPECT_TRUE(model.weights->has("classifier.weight"));
  EXPECT_NE(model_facts(ModelFiles(dir, lora)), model_facts(dir));
}

// Its head has two layers with a row per output.
TEST(ModelFiles, AHeadlessDistilBertGetsTheHeadOfTheAdapter) {
  const std::filesystem::path whole = kData / "models/distilbert_sequence";
  const TempDir temp;
  const auto source = WeightSource::open(whole);
  std::map<std::string, LoadedTensor> loaded;
  std::map<std::string, tensor::TensorView> tensors;
  for (const std::string& name : source->names())
    if (name.find("classifier") == std::string::npos) loaded.emplace(name, source->get(name));
  for (const auto& [name, t] : loaded) tensors[name] = t;
  write_safetensors(temp / "model.safetensors", tensors);
  nlohmann::json config = nlohmann::json::parse(get_file(whole / "config.json"));
  config["architectures"] = {"DistilBertModel"};
  for (const char* key : {"id2label", "label2id", "num_labels"}) config.erase(key);
  put_file(temp / "config.json", config.dump());
  const OpenModel model = open_model({temp.path(), kData / "lora/distilbert_sequence"});
  EXPECT_EQ(head_kind(model.config, model.weights->names()), HeadKind::sequence);
  EXPECT_EQ(model.config.id2label, (std::vector<std::string>{"LABEL_0", "LABEL_1", "LABEL_2"}));
}

TEST(ModelFiles, LabelsComeFromTheConfigOfTheAdapter) {
  const std::filesystem::path dir = kData / "models/roberta_sequence";
  const TempDir temp;
  std::filesystem::copy(kData / "adapters/roberta", temp.path() / "lora");
  nlohmann::json config = nlohmann::json::parse(get_file(dir / "config.json"));
  nlohmann::json labels;
  const size_t classes = open_model(dir).config.id2label.size();
  for (size_t i = 0; i < classes; ++i) labels[std::to_string(i)] = "own " + std::to_string(i);
  config["id2label"] = labels;
  config.erase("label2id");
  put_file(temp / "lora/config.json", config.dump());
  EXPECT_EQ(open_model({dir, temp.path() / "lora"}).config.id2label[0], "own 0");
  config["hidden_size"] = config["hidden_size"].get<int>() * 2;
  put_file(temp / "lora/config.json", config.dump());
  const std::string message = error_of(ErrorCode::bad_model, [&] { open_model({dir, temp.path() / "lora"}); });
  EXPECT_HAS(message, "\"hidden_size\" is");
  EXPECT_HAS(message, "belongs to another base model");
}

TEST(ModelFiles, RefusesAdaptersOfOtherModelsAndDirectoriesWithoutOne) {
  const std::filesystem::path dir = kData / "models/bert_sequence";
  EXPECT_HAS(error_of(ErrorCode::bad_model,
                      [&] {
                        open_model({dir, kData / "adapters/roberta"});
                      }),
             "the adapter belongs to another base model");
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { open_model({dir, kData / "models"}); }), "no adapter_config.json");
}

}  // namespace
}  // namespace brim::hub
