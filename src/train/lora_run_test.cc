// SPDX-License-Identifier: Apache-2.0
// Runs with LoRA: losses of PEFT, the files that are written, adapters to continue, and refused settings. Gradients are
// tested in src/model, resuming in checkpoint_test.cc.
#include <gtest/gtest.h>

#include <cmath>

#include "model/export.h"
#include "model/golden_lora.h"
#include "model/weights.h"
#include "train/golden_losses.h"
#include "train/job.h"
#include "train/tiny_job.h"

namespace brim::train {
namespace {

namespace fs = std::filesystem;

TEST(LoraRun, LossesMatchPeft) {
  const auto device = device::open_cpu_device(1);
  for (const std::string& name : model::golden_lora_names()) {
    SCOPED_TRACE(name);
    const nlohmann::json golden = model::golden_lora(name);
    const auto training = model::start_golden_lora(*device, name, ops::Precision::fp32);
    const std::vector<double> losses = losses_of(*training, golden);
    ASSERT_EQ(losses.size(), golden["losses"].size());
    for (size_t i = 0; i < losses.size(); ++i) {
      const double want = golden["losses"][i];
      EXPECT_NEAR(losses[i], want, 2e-4 * std::abs(want) + 1e-5) << "step " << i;
    }
    EXPECT_LT(losses.back(), losses.front());
  }
}

struct LoraJob : TinyJob {
  explicit LoraJob(const std::string& model = "bert_sequence") : TinyJob(model) {
    settings.lora_r = 4;
    settings.lora_alpha = 8;
  }
};

TEST(LoraRun, WritesAnAdapterForPeft) {
  LoraJob t;
  t.settings.lora_targets = {"attention"};
  t.settings.num_train_epochs = 8;
  t.settings.learning_rate = 1e-2;
  const int64_t planned = open_train_job(t.to("all"), {[](const std::string&) {}}).plan.peak_bytes;
  TrainSettings whole = t.to("whole");
  whole.lora_r = 0;
  whole.lora_alpha.reset();
  whole.lora_targets.clear();
  EXPECT_LT(planned, open_train_job(whole, {[](const std::string&) {}}).plan.peak_bytes);
  const TrainOutcome o = t.run();
  EXPECT_GT(o.best_metric, 0.5) << "it learns";
  EXPECT_FALSE(fs::exists(t.out() / "model.safetensors"));
  const auto config = json_of(t.out() / hub::kAdapterConfig);
  EXPECT_EQ(config["r"], 4);
  EXPECT_EQ(config["lora_alpha"], 8);
  EXPECT_EQ(config["task_type"], "SEQ_CLS");
  EXPECT_EQ(config["base_model_name_or_path"], t.settings.model);
  EXPECT_EQ(config["modules_to_save"], (std::vector<std::string>{"pooler.dense", "classifier"}));
  EXPECT_EQ(config["target_modules"], (std::vector<std::string>{"attention.self.query", "attention.self.key",
                                                                "attention.self.value", "attention.output.dense"}));
  EXPECT_EQ(json_of(t.out() / "config.json")["id2label"]["2"], "positive");
  const auto base = hub::WeightSource::open(t.settings.model);
  const hub::Adapter adapter(t.out(), *base);
  EXPECT_EQ(adapter.matrices(), 8);
  const auto made = adapter.product("bert.encoder.layer.1.attention.output.dense.weight");
  ASSERT_TRUE(made);
  EXPECT_TRUE(std::any_of(made->b.begin(), made->b.end(), [](float v) { return v != 0; })) << "B has been trained";
  EXPECT_TRUE(adapter.own_tensor("bert.pooler.dense.weight"));
  EXPECT_TRUE(adapter.own_tensor("classifier.bias"));
  EXPECT_FALSE(adapter.own_tensor("bert.embeddings.word_embeddings.weight"));
}

// With a learning rate of zero, a continued adapter is written as it was read.
TEST(LoraRun, ContinuesAnAdapter) {
  for (const char* name : {"bert_sequence", "modernbert_sequence", "albert_groups", "roberta_sequence"}) {
    SCOPED_TRACE(name);
    TinyJob t(name);
    TrainSettings& s = t.settings;
    s.adapter = (model::golden_loras() / name).string();
    s.learning_rate = 1e-30;
    s.weight_decay = 0;
    s.max_steps = 2;
    s.lora_dropout = 0.2;
    const auto names = hub::load_hf_config(s.model).id2label;
    std::string csv = "text,label\n";
    for (int i = 0; i < 24; ++i) csv += "w" + std::to_string(5 + i) + " w9," + names[i % names.size()] + "\n";
    put_file(t.dir / "train.csv", csv);
    put_file(t.dir / "val.csv", csv);
    t.run();
    const auto before = hub::WeightSource::open_file(model::golden_loras() / name / hub::kAdapterWeights),
               after = hub::WeightSource::open_file(t.out() / hub::kAdapterWeights);
    for (const std::string& tensor : before->names()) {
      ASSERT_TRUE(after->has(tensor)) << tensor;
      const auto a = before->get(tensor), b = after->get(tensor);
      ASSERT_EQ(a.elements(), b.elements()) << tensor;
      std::vector<float> wide(static_cast<size_t>(a.elements()));  // some are stored in fp16
      convert_elements(a.data, a.dtype, wide.data(), tensor::DType::f32, a.elements());
      EXPECT_TRUE(std::equal(wide.begin(), wide.end(), b.as<float>())) << tensor;
    }
    EXPECT_EQ(before->names().size(), after->names().size());
    const auto was = json_of(model::golden_loras() / name / hub::kAdapterConfig),
               config = json_of(t.out() / hub::kAdapterConfig);
    for (const char* key : {"r", "lora_alpha", "use_rslora", "bias", "task_type"})
      EXPECT_EQ(config[key], was[key]) << key;
    EXPECT_EQ(config["lora_dropout"], 0.2);
  }
}

// The golden adapter has a head with two classes and no names for them.
TEST(LoraRun, ReplacesTheUnnamedHeadOfAnAdapter) {
  const fs::path golden = model::golden_models().parent_path() / "adapters/bert_new_head";
  for (const char* base : {"bert_encoder", "bert_sequence"})
    for (const int classes : {2, 3}) {
      SCOPED_TRACE(std::string(base) + " " + std::to_string(classes));
      TinyJob t(base);
      t.settings.adapter = golden.string();
      t.settings.validation_files.clear();
      const std::string third = classes == 3 ? "w70,positive\n" : "w8,neutral\n";
      put_file(t.dir / "train.csv", "text,label\nw5 w6,negative\nw40,neutral\n" + third);
      EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { train(t.settings, {}); }), "labels are unknown");
      t.settings.ignore_mismatched_head = true;
      t.settings.num_train_epochs = 1;
      std::string lines;
      TrainCallbacks callbacks;
      callbacks.say = [&](const std::string& line) { lines += line + "\n"; };
      train(t.settings, callbacks);
      EXPECT_HAS(lines, "the labels of the adapter's classifier are unknown; replacing it");
      const TrainJob job = open_train_job(t.to("again"), {});
      EXPECT_EQ(job.new_tensors, (std::vector<std::string>{"classifier.weight", "classifier.bias"}));
    }
}

TEST(LoraRun, RefusesAHeadOfAnotherSize) {
  TinyJob t;
  fs::copy(model::golden_models().parent_path() / "adapters/bert_new_head", t.dir / "adapter");
  fs::copy(t.dir / "model" / "config.json", t.dir / "adapter");
  t.settings.adapter = (t.dir / "adapter").string();
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { train(t.settings, {}); }),
             "classifier.weight': has shape [2,48], expected [3,48]");
}

TEST(LoraRun, DoesNotResumeWithAnEditedAdapter) {
  TinyJob t;
  fs::copy(model::golden_loras() / "bert_sequence", t.dir / "adapter");
  t.settings.adapter = (t.dir / "adapter").string();
  t.settings.save_strategy = Strategy::epoch;
  t.run();
  TrainSettings s = t.settings;
  s.resume_from_checkpoint = "last";
  EXPECT_EQ(train(s, {}).steps, 12);
  auto config = json_of(t.dir / "adapter" / hub::kAdapterConfig);
  config["lora_alpha"] = 32;
  put_file(t.dir / "adapter" / hub::kAdapterConfig, config.dump());
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(s, {}); }), "\n  adapter_config: was ");
  const fs::path path = t.out() / "checkpoint-6" / "trainer_state.json";
  auto state = nlohmann::ordered_json::parse(get_file(path));
  ASSERT_EQ(state["brim"]["settings"].erase("adapter_config"), 1u);
  put_file(path, state.dump());
  EXPECT_EQ(train(s, {}).steps, 12) << "checkpoints of earlier versions do not contain it";
}

TEST(LoraRun, DoesNotRemoveTheCheckpointItContinues) {
  LoraJob t;
  t.settings.save_strategy = Strategy::epoch;
  t.run();
  TrainSettings s = t.settings;
  s.lora_r = 0;
  s.lora_alpha.reset();
  s.adapter = (t.out() / "checkpoint-6").string();
  s.overwrite_output_dir = true;
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(s, {}); }), "is a checkpoint of the run that would be overwritten");
  EXPECT_TRUE(fs::exists(t.out() / "checkpoint-6"));
}

TEST(LoraRun, RefusesInt8WeightsBeforeTraining) {
  LoraJob t;
  model::export_model(t.settings.model, t.dir / "int8", ops::Precision::int8);
  t.settings.model = (t.dir / "int8").string();
  EXPECT_HAS(
      error_of(ErrorCode::bad_model, [&] { t.run(); }),
      "LoRA adapters cannot be added to int8 weights; convert the model with `brim models export precision=fp32`");
  EXPECT_FALSE(fs::exists(t.out()));
  t.settings.lora_r = 0;
  t.settings.lora_alpha.reset();
  t.settings.max_steps = 1;
  EXPECT_EQ(t.run().steps, 1) << "without LoRA, the weights are trained in fp32";
}

TEST(LoraRun, TrainsTagsAndBothHeads) {
  LoraJob t("bert_token");
  put_file(t.dir / "train.conll", TinyJob::conll(48, 1));
  put_file(t.dir / "val.conll", TinyJob::conll(12, 2));
  TrainSettings tags = t.settings;
  tags.train_files = {(t.dir / "train.conll").string()};
  tags.validation_files = {(t.dir / "val.conll").string()};
  tags.ignore_mismatched_head = true;
  train(tags, {});
  EXPECT_EQ(json_of(t.out() / hub::kAdapterConfig)["task_type"], "TOKEN_CLS");
  TrainSettings both = t.to("both");
  both.task = TaskChoice::multi;
  both.token_train_file = (t.dir / "train.conll").string();
  both.token_validation_file = (t.dir / "val.conll").string();
  both.ignore_mismatched_head = true;
  train(both, {});
  const fs::path out = both.output_dir;
  EXPECT_EQ(json_of(out / hub::kAdapterConfig)["task_type"], "SEQ_CLS");
  EXPECT_EQ(json_of(out / "ner" / hub::kAdapterConfig)["task_type"], "TOKEN_CLS");
  const auto base = hub::WeightSource::open(t.settings.model);
  EXPECT_EQ(hub::Adapter(out, *base).matrices(), hub::Adapter(out / "ner", *base).matrices());
}

TEST(LoraRun, SelectsTargetsAsPeftDoes) {
  const model::ModelShape shape = model::read_shape(model::golden_models() / "bert_sequence");
  const auto chosen = [&](const std::vector<const char*>& targets, const char* layers = "") {
    TrainSettings s;
    s.lora_r = 2;
    for (const char* target : targets) apply_setting(s, "target_modules", target);
    if (layers[0] != 0) apply_setting(s, "layers_to_transform", layers);
    return with_lora(shape, s, nullptr).lora.targets;
  };
  using Names = std::vector<std::string>;
  const Names all = {"attention.self.query",   "attention.self.key", "attention.self.value",
                     "attention.output.dense", "intermediate.dense", "output.dense"};
  EXPECT_EQ(chosen({}), all);
  EXPECT_EQ(chosen({"all-linear"}), all);
  EXPECT_EQ(chosen({"query,value"}), (Names{"attention.self.query", "attention.self.value"}));
  EXPECT_EQ(chosen({"query", "value"}), (Names{"attention.self.query", "attention.self.value"}));
  EXPECT_EQ(chosen({R"(.*layer\.\d+\.attention\.self\.(query|key))"}),
            (Names{"attention.self.query", "attention.self.key"}));
  EXPECT_EQ(chosen({"key"}, "1"), Names{"bert.encoder.layer.1.attention.self.key"});
  EXPECT_EQ(chosen({"dense"}), (Names{"attention.output.dense", "intermediate.dense", "output.dense"})) << "no pooler";
  for (const std::string& name : model::golden_names("gradients.json")) {
    const model::ModelShape s = model::read_shape(model::golden_models() / name);
    TrainSettings settings;
    settings.lora_r = 1;
    settings.lora_targets = {"attention"};
    size_t attention = 0;
    for (const auto& m : linear_modules(with_lora(s, settings, nullptr)))
      attention += m.adaptable && with_lora(s, settings, nullptr).lora.adapts(m.name);
    const bool fused = s.gated;
    const auto layers = static_cast<size_t>(s.layer_groups > 0 ? s.layer_groups : s.layers);
    EXPECT_GE(attention, layers * (fused ? 2 : 4)) << name;
  }
}

TEST(LoraRun, RefusesBadSettingsBeforeItWrites) {
  TinyJob t;
  const auto refused = [&](const std::vector<std::pair<const char*, std::string>>& keys,
                           ErrorCode code = ErrorCode::usage) {
    return error_of(code, [&] {
      TrainSettings s = t.to("refused");
      for (const auto& [key, value] : keys) apply_setting(s, key, value);
      train(s, {});
    });
  };
  EXPECT_HAS(refused({{"lora_r", "0"}}), "`lora_r=0`: must be above zero");
  EXPECT_HAS(refused({{"lora_r", "-2"}}), "`lora_r=-2`: must be above zero");
  EXPECT_HAS(refused({{"lora_r", "999"}}), "`lora_r=999`: must be at most 48, the width of bert.encoder.layer.0");
  EXPECT_HAS(refused({{"lora_r", "2"}, {"lora_targets", "qeury"}}),
             "`lora_targets=qeury`: the layers of this model have no such linear layer; they have query, key, value");
  EXPECT_HAS(refused({{"lora_r", "2"}, {"lora_targets", "classifier"}}), "is part of the head");
  EXPECT_HAS(refused({{"lora_r", "2"}, {"lora_targets", "word_embeddings"}}), "no such linear layer");
  EXPECT_HAS(refused({{"lora_r", "2"}, {"lora_targets", "(query"}}), "invalid regular expression");
  EXPECT_HAS(refused({{"lora_r", "2"}, {"lora_layers", "2"}}), "`lora_layers=2`: must be from 0 to 1");
  EXPECT_HAS(refused({{"lora_r", "2"}, {"lora_targets", "bert.encoder.layer.0.output.dense"}, {"lora_layers", "1"}}),
             "`lora_targets=bert.encoder.layer.0.output.dense` and `lora_layers=1` have no linear layer in common");
  EXPECT_HAS(refused({{"lora_r", "2"}, {"lora_alpha", "0"}}), "lora_alpha=0");
  EXPECT_HAS(refused({{"lora_r", "2"}, {"lora_dropout", "1"}}), "lora_dropout=1");
  EXPECT_HAS(refused({{"lora_alpha", "16"}}), "`lora_alpha`: requires `lora_r`");
  EXPECT_HAS(refused({{"lora_r", "2"}, {"freeze", "embeddings"}}), "`freeze=embeddings`: cannot be combined");
  EXPECT_HAS(refused({{"lora_r", "2"}, {"precision", "fp8"}}), "not supported with `precision=fp8`");
  EXPECT_HAS(refused({{"lora_r", "2"}, {"student_layers", "1"}}), "`student_layers=1`: not supported");
  EXPECT_HAS(refused({{"use_dora", "true"}}), "`use_dora=true`: DoRA is not supported");
  EXPECT_HAS(refused({{"bias", "all"}}), "`bias=all`: training of biases");
  EXPECT_HAS(refused({{"modules_to_save", "embeddings"}}), "only the head");
  EXPECT_HAS(refused({{"init_lora_weights", "pissa"}}), "`init_lora_weights=pissa`");
  EXPECT_HAS(refused({{"adapter", t.settings.model}}), "no adapter_config.json in this directory");
  const std::string roberta = (model::golden_loras() / "roberta_sequence").string(),
                    bert = (model::golden_loras() / "bert_sequence").string();
  EXPECT_HAS(refused({{"adapter", roberta}}, ErrorCode::bad_model), "belongs to another base model");
  EXPECT_HAS(refused({{"adapter", bert}, {"lora_r", "3"}}), "`lora_r=3`: the adapter");
  EXPECT_HAS(refused({{"adapter", bert}, {"lora_targets", "query"}}), "cannot be combined with `adapter`");
  EXPECT_FALSE(fs::exists(t.dir / "refused" / hub::kAdapterConfig));
  EXPECT_FALSE(fs::exists(t.dir / "refused"));
}

TEST(LoraRun, ReadsPeftKeysFromYaml) {
  TempDir dir;
  put_file(dir / "a.yaml",
           "training:\n  seed: 3\npeft:\n  peft_type: LORA\n  task_type: SEQ_CLS\n  r: 4\n  lora_alpha: 16\n"
           "  lora_dropout: 0.05\n  target_modules: [query, value]\n  layers_to_transform: [0, 1]\n  bias: none\n"
           "  use_rslora: true\n  use_dora: false\n  modules_to_save: [classifier]\n  init_lora_weights: true\n");
  TrainSettings s;
  const auto notes = apply_yaml(s, dir / "a.yaml");
  EXPECT_EQ(notes.size(), 1u);
  EXPECT_EQ(s.lora_r, 4);
  EXPECT_EQ(s.lora_alpha, 16);
  EXPECT_EQ(s.lora_dropout, 0.05);
  EXPECT_EQ(s.lora_targets, (std::vector<std::string>{"query", "value"}));
  EXPECT_EQ(s.lora_layers, (std::vector<int64_t>{0, 1}));
  EXPECT_TRUE(s.use_rslora);
  put_file(dir / "b.yaml", "peft:\n  r: 4\n  use_dora: true\n");
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { apply_yaml(s, dir / "b.yaml"); }), "b.yaml:3: use_dora: true: DoRA");
}

TEST(LoraRun, DoesNotResumeOnAnotherBase) {
  LoraJob t;
  t.settings.save_strategy = Strategy::epoch;
  t.run();
  EXPECT_TRUE(fs::exists(t.out() / "checkpoint-6" / hub::kAdapterWeights));
  EXPECT_FALSE(fs::exists(t.out() / "checkpoint-6" / "model.safetensors"));
  TrainSettings s = t.settings;
  s.resume_from_checkpoint = "last";
  std::string weights = get_file(t.dir / "model" / "model.safetensors");
  weights[weights.size() / 2] ^= 1;
  put_file(t.dir / "model" / "model.safetensors", weights);
  EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(s, {}); }), "\n  base: was ");
}

TEST(LoraRun, DoesNotResumeWithOtherSettings) {
  LoraJob t;
  t.settings.save_strategy = Strategy::epoch;
  t.run();
  const std::string before = t.weights();
  for (const char* which : {"last", "checkpoint-6"}) {
    SCOPED_TRACE(which);
    TrainSettings s = t.settings;
    s.resume_from_checkpoint = which == std::string("last") ? which : (t.out() / which).string();
    TrainSettings other = s;
    other.lora_r = 8;
    const std::string refusal = error_of(ErrorCode::usage, [&] { train(other, {}); });
    EXPECT_HAS(refusal, "\n  lora_r: was \"4\", now \"8\"");
    EXPECT_HAS(refusal, "with `adapter=" + (t.out() / "checkpoint-6").string() + "` and `output=NEW` instead of");
    other = s;
    other.lora_targets = {"query"};
    EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(other, {}); }), "\n  lora_targets: was unknown, now \"query\"");
    other = s;
    other.lora_r = 0;
    other.lora_alpha.reset();
    EXPECT_HAS(error_of(ErrorCode::usage, [&] { train(other, {}); }), "\n  lora_r: was \"4\", now none");
  }
  EXPECT_TRUE(fs::exists(t.out() / "checkpoint-6"));
  EXPECT_TRUE(t.weights() == before);
}

}  // namespace
}  // namespace brim::train
