// SPDX-License-Identifier: Apache-2.0
#include "hub/hf_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "base/fuzz_driver.h"
#include "base/log.h"
#include "base/test_files.h"

#define LLVMFuzzerTestOneInput fuzz_hf_config
#include "hub/hf_config_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::hub {
namespace {

HfConfig parse(const std::string& json) { return parse_hf_config(json, "m/config.json"); }

std::string hf_config_error(const std::string& json) {
  const std::string message = error_of(ErrorCode::bad_model, [&] { parse(json); });
  EXPECT_TRUE(message.starts_with("m/config.json:")) << message;
  return message;
}

TEST(HfConfig, DefaultsMatchTransformers) {
  const HfConfig bert = parse(R"({"model_type":"bert"})");
  EXPECT_EQ(bert.family, Family::bert);
  EXPECT_EQ(bert.hidden_size, 768);
  EXPECT_EQ(bert.num_layers, 12);
  EXPECT_EQ(bert.num_heads, 12);
  EXPECT_EQ(bert.head_size(), 64);
  EXPECT_EQ(bert.intermediate_size, 3072);
  EXPECT_EQ(bert.vocab_size, 30522);
  EXPECT_EQ(bert.max_position_embeddings, 512);
  EXPECT_EQ(bert.max_tokens(), 512);
  EXPECT_EQ(bert.type_vocab_size, 2);
  EXPECT_EQ(bert.pad_token_id, 0);
  EXPECT_FLOAT_EQ(bert.layer_norm_eps, 1e-12f);
  EXPECT_FLOAT_EQ(bert.hidden_dropout, 0.1f);
  EXPECT_FLOAT_EQ(bert.attention_dropout, 0.1f);
  EXPECT_FLOAT_EQ(bert.classifier_dropout, 0.1f);
  EXPECT_EQ(bert.hidden_act, "gelu");
  EXPECT_EQ(bert.activation, HiddenAct::gelu_erf);
  EXPECT_EQ(bert.id2label, (std::vector<std::string>{"LABEL_0", "LABEL_1"}));
  EXPECT_FALSE(bert.labels_given);

  const HfConfig distil = parse(R"({"model_type":"distilbert"})");
  EXPECT_EQ(distil.num_layers, 6);
  EXPECT_EQ(distil.type_vocab_size, 0);
  EXPECT_FLOAT_EQ(distil.classifier_dropout, 0.2f);
  EXPECT_FLOAT_EQ(distil.token_classifier_dropout, 0.1f);

  const HfConfig roberta = parse(R"({"model_type":"roberta","max_position_embeddings":514})");
  EXPECT_EQ(roberta.vocab_size, 50265);
  EXPECT_EQ(roberta.pad_token_id, 1);
  EXPECT_EQ(roberta.first_position(), 2);
  EXPECT_EQ(roberta.max_tokens(), 512);
  for (const char* type : {"xlm-roberta", "camembert"}) {
    const HfConfig other = parse(fmt::format(R"({{"model_type":"{}"}})", type));
    EXPECT_EQ(other.family, Family::roberta);
    EXPECT_EQ(other.model_type, type);
    EXPECT_EQ(other.pad_token_id, 1);
  }
}

TEST(HfConfig, ReadsDistilbertKeyNames) {
  const HfConfig config = parse(
      R"({"model_type":"distilbert","dim":128,"n_layers":3,"n_heads":4,"hidden_dim":256,"dropout":0.3,
          "attention_dropout":0.25,"seq_classif_dropout":0.5,"activation":"relu","vocab_size":100})");
  EXPECT_EQ(config.hidden_size, 128);
  EXPECT_EQ(config.num_layers, 3);
  EXPECT_EQ(config.num_heads, 4);
  EXPECT_EQ(config.intermediate_size, 256);
  EXPECT_FLOAT_EQ(config.hidden_dropout, 0.3f);
  EXPECT_FLOAT_EQ(config.attention_dropout, 0.25f);
  EXPECT_FLOAT_EQ(config.classifier_dropout, 0.5f);
  EXPECT_EQ(config.activation, HiddenAct::relu);
  EXPECT_EQ(parse(R"({"model_type":"distilbert","hidden_size":24})").hidden_size, 24);
}

TEST(HfConfig, TreatsNullAsMissingAndInfersTheTypeFromTheClass) {
  const HfConfig config = parse(
      R"({"architectures":["XLMRobertaForSequenceClassification"],"classifier_dropout":null,"hidden_dropout_prob":0.4,
          "problem_type":null,"id2label":null,"num_labels":5})");
  EXPECT_EQ(config.model_type, "xlm-roberta");
  EXPECT_FLOAT_EQ(config.classifier_dropout, 0.4f);
  EXPECT_EQ(config.num_labels, 5);
  EXPECT_EQ(config.label2id.at("LABEL_4"), 4);
  EXPECT_TRUE(config.labels_given);
}

TEST(HfConfig, ReadsLabelsInOrder) {
  std::string labels;
  for (int i = 11; i >= 0; --i) labels += fmt::format("\"{}\":\"l{}\"{}", i, i, i > 0 ? "," : "");
  const HfConfig config = parse("{\"model_type\":\"bert\",\"id2label\":{" + labels + "}}");
  ASSERT_EQ(config.num_labels, 12);
  EXPECT_EQ(config.id2label[2], "l2");
  EXPECT_EQ(config.id2label[11], "l11");
}

TEST(HfConfig, RejectsContradictions) {
  struct Case {
    const char *keys, *problem;
  };
  const Case cases[] = {
      {R"("hidden_size":100)", "\"hidden_size\" 100 is not divisible by \"num_attention_heads\" 12"},
      {R"("hidden_size":-768)", "\"hidden_size\" is '-768': must be at least 1"},
      {R"("hidden_size":0)", "\"hidden_size\" is '0'"},
      {R"("hidden_size":768.5)", "\"hidden_size\" is '768.5': must be an integer"},
      {R"("hidden_size":"768")", "must be an integer"},
      {R"("hidden_size":99999999999)", "must be at most"},
      {R"("hidden_size":18446744073709551615)", "must be at most"},
      {R"("hidden_size":true)", "must be an integer"},
      {R"("num_hidden_layers":0)", "num_hidden_layers"},
      {R"("vocab_size":-1)", "vocab_size"},
      {R"("vocab_size":3,"pad_token_id":3)", "\"pad_token_id\" 3 is not in the vocabulary of 3"},
      {R"("max_position_embeddings":0)", "max_position_embeddings"},
      {R"("type_vocab_size":0)", "type_vocab_size"},
      {R"("hidden_dropout_prob":1.0)", "hidden_dropout_prob"},
      {R"("hidden_dropout_prob":-0.1)", "hidden_dropout_prob"},
      {R"("hidden_dropout_prob":"0.1")", "must be a number"},
      {R"("layer_norm_eps":-1)", "\"layer_norm_eps\" is '-1'"},
      {R"("layer_norm_eps":0)", "\"layer_norm_eps\" is '0': must be above 0 and below 1"},
      {R"("layer_norm_eps":0.0)", "\"layer_norm_eps\" is '0.0': must be above 0"},
      {R"("layer_norm_eps":1e-60)", "\"layer_norm_eps\" is '1e-60': must be above 0"},
      {R"("layer_norm_eps":"1e-5")", "\"layer_norm_eps\" is '\"1e-5\"': must be a number"},
      {R"("layer_norm_eps":NaN)", "not valid JSON"},
      {R"("layer_norm_eps":1e400)", "m/config.json"},
      {R"("hidden_act":"mish")", "\"hidden_act\" is 'mish'"},
      {R"("hidden_act":7)", "must be a string"},
      {R"("position_embedding_type":"relative_key")", "\"position_embedding_type\" is 'relative_key'"},
      {R"("is_decoder":true)", "encoders"},
      {R"("add_cross_attention":true)", "encoders"},
      {R"("pruned_heads":{"0":[1]})", "pruned_heads"},
      {R"("problem_type":"ranking")", "problem_type"},
      {R"("id2label":{"0":"a","2":"b"})", "numbered 2"},
      {R"("id2label":{"0":"a","00":"b"})", "numbers 0 twice"},
      {R"("id2label":{"0":"a","x":"b"})", "has the key 'x'"},
      {R"("id2label":{"0":"a","-1":"b"})", "has the key '-1'"},
      {R"("id2label":{"0":"a","1":"a"})", "maps both 0 and 1 to 'a'"},
      {R"("id2label":{"0":"a","1":2})", "label 1 must be a string"},
      {R"("id2label":{})", "at least one label"},
      {R"("id2label":["a"])", "must be an object"},
      {R"("id2label":{"0":"a","1":"b"},"num_labels":3)", "\"num_labels\" is 3 but \"id2label\" has 2"},
      {R"("id2label":{"0":"a","1":"b"},"label2id":{"a":1,"b":0})", "\"label2id\" maps 'a' to '1'"},
      {R"("num_labels":0)", "num_labels"},
      {R"("num_labels":1000000000)", "num_labels"},
      {R"("architectures":"BertModel")", "must be a list"},
      {R"("architectures":["RobertaForMaskedLM"])", "they must agree"},
      {R"("quantization_config":{"quant_method":"gptq"})", "the unsupported method 'gptq'"},
      {R"("quantization_config":{"quant_method":"brim-int8","bits":4})", "bits"},
      {R"("vocab_size":3,"vocab_size":4)", "duplicate key 'vocab_size'"},
  };
  for (const Case& c : cases)
    EXPECT_HAS(hf_config_error(fmt::format("{{\"model_type\":\"bert\",{}}}", c.keys)), c.problem);
  EXPECT_HAS(hf_config_error(R"({"model_type":"roberta","max_position_embeddings":2})"), "must be greater than");
  EXPECT_HAS(hf_config_error(R"({"model_type":"gpt2"})"), "\"model_type\" is 'gpt2': supported are bert");
  EXPECT_HAS(hf_config_error(R"({})"), "\"model_type\" is missing");
  EXPECT_HAS(hf_config_error(R"([])"), "must contain a JSON object");
  EXPECT_HAS(hf_config_error("{\n  \"model_type\": bert\n}"), "m/config.json:2:17: not valid JSON");
  EXPECT_HAS(hf_config_error(""), "not valid JSON");
  EXPECT_HAS(hf_config_error(R"({"model_type":"distilbert","dim":10})"),
             "\"dim\" 10 is not divisible by \"n_heads\" 12");
}

TEST(HfConfig, RejectsResourceExhaustion) {
  EXPECT_HAS(hf_config_error("{\"a\":" + std::string(1'000'000, '[')), "nesting depth exceeds");
  std::string deep = "{\"model_type\":\"bert\",\"x\":";
  for (int i = 0; i < 100'000; ++i) deep += "{\"a\":";
  EXPECT_HAS(hf_config_error(deep), "nesting depth exceeds");
}

TEST(HfConfig, LeftoverDefaultLabel2IdIsOnlyAWarning) {
  int warnings = 0;
  const LogSink before =
      set_log_sink([&](LogLevel level, std::string_view) { warnings += level == LogLevel::warning; });
  const HfConfig config =
      parse(R"({"model_type":"bert","id2label":{"0":"neg","1":"pos"},"label2id":{"LABEL_0":0,"LABEL_1":1}})");
  set_log_sink(before);
  EXPECT_EQ(warnings, 1);
  EXPECT_EQ(config.label2id, (std::map<std::string, int>{{"neg", 0}, {"pos", 1}}));
}

TEST(HfConfig, HeadKind) {
  auto of = [](const std::string& type, const std::string& architecture, std::vector<std::string> names) {
    const std::string list = architecture.empty() ? "" : ",\"architectures\":[\"" + architecture + "\"]";
    return head_kind(parse("{\"model_type\":\"" + type + "\"" + list + "}"), names);
  };
  EXPECT_EQ(of("bert", "BertForSequenceClassification", {}), HeadKind::sequence);
  EXPECT_EQ(of("roberta", "RobertaForTokenClassification", {}), HeadKind::token);
  EXPECT_EQ(of("bert", "BertModel", {}), HeadKind::encoder);
  EXPECT_EQ(of("bert", "BertForMaskedLM", {"classifier.weight"}), HeadKind::encoder);
  EXPECT_EQ(of("bert", "BertForPreTraining", {}), HeadKind::encoder);
  EXPECT_EQ(of("bert", "", {"bert.pooler.dense.weight", "classifier.weight"}), HeadKind::sequence);
  EXPECT_EQ(of("bert", "", {"classifier.weight"}), HeadKind::token);
  EXPECT_EQ(of("bert", "", {"pooler.dense.weight"}), HeadKind::encoder);
  EXPECT_EQ(of("albert", "", {"albert.pooler.weight", "classifier.weight"}), HeadKind::sequence);
  EXPECT_EQ(of("albert", "", {"classifier.weight"}), HeadKind::token);
  EXPECT_EQ(of("distilbert", "", {"pre_classifier.weight", "classifier.weight"}), HeadKind::sequence);
  EXPECT_EQ(of("distilbert", "", {"classifier.weight"}), HeadKind::token);
  EXPECT_EQ(of("roberta", "", {"classifier.out_proj.weight"}), HeadKind::sequence);
  EXPECT_EQ(of("roberta", "", {"classifier.weight"}), HeadKind::token);
  EXPECT_EQ(of("deberta-v2", "", {"pooler.dense.weight", "classifier.weight"}), HeadKind::sequence);
  EXPECT_EQ(of("deberta-v2", "", {"classifier.weight"}), HeadKind::token);
  EXPECT_EQ(of("modernbert", "", {"head.dense.weight", "classifier.weight"}), HeadKind::sequence);
  EXPECT_EQ(of("modernbert", "ModernBertForTokenClassification", {"classifier.weight"}), HeadKind::token);
  EXPECT_EQ(of("modernbert", "ModernBertForMaskedLM", {"decoder.bias"}), HeadKind::encoder);
}

TEST(HfConfig, ReadsModernBertKeysAndDefaults) {
  const HfConfig plain = parse(R"({"model_type":"modernbert"})");
  EXPECT_EQ(plain.vocab_size, 50368);
  EXPECT_EQ(plain.num_layers, 22);
  EXPECT_EQ(plain.intermediate_size, 1152);
  EXPECT_EQ(plain.max_tokens(), 8192);
  EXPECT_EQ(plain.type_vocab_size, 0);
  EXPECT_EQ(plain.pad_token_id, 50283);
  EXPECT_EQ(plain.layer_norm_eps, 1e-5f);
  EXPECT_EQ(plain.hidden_dropout + plain.attention_dropout + plain.classifier_dropout, 0);
  const HfConfig given = parse(
      R"({"model_type":"modernbert","hidden_activation":"silu","hidden_act":"relu","norm_eps":1e-6,"layer_norm_eps":1e-3,
          "embedding_dropout":0.2,"attention_dropout":0.3,"classifier_dropout":0.4})");
  EXPECT_EQ(given.activation, HiddenAct::silu);
  EXPECT_EQ(given.layer_norm_eps, 1e-6f);
  EXPECT_EQ(given.hidden_dropout, 0.2f);
  EXPECT_EQ(given.attention_dropout, 0.3f);
  EXPECT_EQ(given.token_classifier_dropout, 0.4f);
}

TEST(HfConfig, ReadsDebertaKeysAndDefaults) {
  const HfConfig plain = parse(R"({"model_type":"deberta-v2"})");
  EXPECT_EQ(plain.vocab_size, 128100);
  EXPECT_EQ(plain.hidden_size, 1536);
  EXPECT_EQ(plain.num_layers, 24);
  EXPECT_EQ(plain.type_vocab_size, 0);
  EXPECT_EQ(plain.layer_norm_eps, 1e-7f);
  EXPECT_EQ(plain.max_tokens(), 512);
  const HfConfig given =
      parse(R"({"model_type":"deberta-v2","hidden_dropout_prob":0.2,"cls_dropout":0.3,"type_vocab_size":2})");
  EXPECT_EQ(given.classifier_dropout, 0.3f);
  EXPECT_EQ(given.token_classifier_dropout, 0.2f);
  EXPECT_EQ(given.type_vocab_size, 2);
  const std::string text =
      error_of(ErrorCode::bad_model, [] { parse(R"({"model_type":"deberta","vocab_size":50265})"); });
  EXPECT_HAS(text, "deberta-v2");
  EXPECT_HAS(text, "v1");
}

TEST(HfConfig, NamesTheNearestFamily) {
  for (const auto& [type, nearest] :
       {std::pair("modernbert-decoder", "Ettin"), std::pair("deberta-v3", "the nearest is deberta-v2"),
        std::pair("longformer", "the nearest is modernbert"), std::pair("xlm-roberta-xl", "the nearest is xlm-roberta"),
        std::pair("roberta-prelayernorm", "the nearest is roberta"), std::pair("mobilebert", "nearest is distilbert"),
        std::pair("megatron-bert", "the nearest is bert"), std::pair("eurobert", "mmBERT"),
        std::pair("gpt2", "the nearest is modernbert"), std::pair("brt", "the nearest is bert")}) {
    const std::string config = fmt::format(R"({{"model_type":"{}"}})", type);
    EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { parse(config); }), nearest);
  }
}

// A student's list of layer types has one entry per layer.
TEST(HfConfig, TruncatesLayerKindsToTheLayers) {
  const HfConfig config = parse(
      R"({"model_type":"modernbert","num_hidden_layers":3,
          "layer_types":["full_attention","sliding_attention","sliding_attention"]})");
  ConfigUpdate update;
  update.num_layers = 2;
  const std::string text = updated_config(config, update);
  EXPECT_EQ(nlohmann::json::parse(text)["layer_types"].size(), 2u);
  EXPECT_EQ(updated_config(parse(R"({"model_type":"bert"})"), update).find("layer_types"), std::string::npos);
}

TEST(HfConfig, UpdateKeepsEveryOtherKey) {
  const HfConfig config = parse(
      R"({"model_type":"bert","hidden_size":24,"custom":{"x":[1,2.5,null]},"layer_norm_eps":1e-12,
          "num_labels":2,"architectures":["BertForMaskedLM"]})");
  ConfigUpdate update;
  update.head = HeadKind::sequence;
  update.problem_type = "single_label_classification";
  update.torch_dtype = "float32";
  update.quantization = ConfigUpdate::Quantization::int8;
  update.extra = {{"brim_made_by", "\"train\""}};
  std::vector<std::string> labels;
  for (int i = 0; i < 12; ++i) labels.push_back(fmt::format("label \"{}\"", i));
  update.labels = labels;
  const std::string text = updated_config(config, update);
  const auto json = nlohmann::json::parse(text);
  EXPECT_EQ(json["custom"], nlohmann::json::parse(R"({"x":[1,2.5,null]})"));
  EXPECT_EQ(json["brim_made_by"], "train");
  EXPECT_FALSE(json.contains("num_labels"));
  EXPECT_LT(text.find("\"2\": "), text.find("\"10\": "));
  EXPECT_HAS(text, "\"layer_norm_eps\": 1e-12");
  const HfConfig again = parse(text);
  EXPECT_EQ(again.id2label, labels);
  EXPECT_EQ(again.label2id.at("label \"11\""), 11);
  EXPECT_EQ(again.architectures, std::vector<std::string>{"BertForSequenceClassification"});
  EXPECT_EQ(again.problem_type, "single_label_classification");
  EXPECT_TRUE(again.quantization.has_value());

  ConfigUpdate undo;
  undo.quantization = ConfigUpdate::Quantization::remove;
  undo.problem_type = "";
  undo.num_layers = 3;
  const HfConfig undone = parse(updated_config(again, undo));
  EXPECT_FALSE(undone.quantization.has_value());
  EXPECT_EQ(undone.problem_type, "");
  EXPECT_EQ(undone.num_layers, 3);
  EXPECT_EQ(undone.id2label, labels);
}

TEST(HfConfig, LoadsAndWritesADirectory) {
  const TempDir dir;
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { load_hf_config(dir.path()); }), "no config.json");
  put_file(dir / "config.json", R"({"model_type":"bert"})");
  const HfConfig config = load_hf_config(dir.path());
  std::filesystem::create_directory(dir / "out");
  ConfigUpdate update;
  update.labels = {"a", "b", "c"};
  write_config(config, update, dir / "out");
  EXPECT_EQ(load_hf_config(dir / "out").num_labels, 3);
  update.labels = {"a", "a"};
  EXPECT_THROW(write_config(config, update, dir / "out"), Error);
  EXPECT_EQ(load_hf_config(dir / "out").num_labels, 3);
}

TEST(HfConfig, CopiesTokenizerFiles) {
  const TempDir dir;
  put_file(dir / "in/tokenizer.json", "{}");
  put_file(dir / "in/vocab.txt", "a\nb\n");
  put_file(dir / "in/model.safetensors", "weights");
  put_file(dir / "in/README.md", "text");
  std::filesystem::create_directory(dir / "out");
  EXPECT_EQ(tokenizer_files(dir / "in").size(), 2u);
  copy_tokenizer_files(dir / "in", dir / "out");
  copy_tokenizer_files(dir / "in", dir / "in");
  EXPECT_EQ(get_file(dir / "out/vocab.txt"), "a\nb\n");
  EXPECT_EQ(get_file(dir / "in/vocab.txt"), "a\nb\n");
  EXPECT_FALSE(std::filesystem::exists(dir / "out/README.md"));
}

TEST(HfConfigFuzz, NeverCrashes) {
  drive_fuzz(
      fuzz_hf_config,
      {R"({"model_type":"bert","hidden_size":24,"id2label":{"0":"a","1":"b"},"label2id":{"a":0,"b":1},"num_labels":2})",
       R"({"architectures":["DistilBertForSequenceClassification"],"dim":24,"n_heads":2,"dropout":0.1})",
       R"({"model_type":"roberta","quantization_config":{"quant_method":"brim-int8","bits":8},"pad_token_id":1})"},
      5000);
}

}  // namespace
}  // namespace brim::hub
