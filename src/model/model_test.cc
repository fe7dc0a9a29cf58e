// SPDX-License-Identifier: Apache-2.0
// Compares whole models with transformers: tests/data/models has one tiny seeded model per family and head, with values
// computed by PyTorch in fp32, one sequence at a time. Brim computes them packed.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "base/error.h"
#include "base/fuzz_driver.h"
#include "base/test_files.h"
#include "base/thread_pool.h"
#include "memory/ledger.h"
#include "model/export.h"
#include "model/forward_runner.h"
#include "model/golden_models.h"
#include "model/weights.h"

#define LLVMFuzzerTestOneInput fuzz_shape
#include "model/shape_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::model {

using ops::Precision;
using tensor::DType;

namespace {

const std::filesystem::path kModels = golden_models();

struct Golden {
  std::vector<std::vector<int32_t>> ids;
  std::vector<std::vector<std::vector<float>>> rows;
  explicit Golden(const std::string& name) {
    const auto j = golden_json(name, "golden.json");
    ids = j["ids"].get<decltype(ids)>();
    rows = j["rows"].get<decltype(rows)>();
  }
  std::vector<float> flat() const {
    std::vector<float> all;
    for (const auto& r : rows)
      for (const auto& v : r) all.insert(all.end(), v.begin(), v.end());
    return all;
  }
};

std::vector<float> run(const std::string& name, Output output, Precision precision, int threads,
                       int64_t budget_scale = 1, const std::filesystem::path& adapter = {}) {
  auto device = device::open_cpu_device(threads);
  const auto model = Model::load({kModels / name, adapter}, *device, precision);
  const Golden golden(name);
  auto sequences = golden.ids;
  for (int64_t i = 1; i < budget_scale; ++i) sequences.insert(sequences.end(), golden.ids.begin(), golden.ids.end());
  const GoldenBatch batch(sequences, model->shape().position_offset);
  const ops::BatchView view = batch.view();
  const ForwardPlan plan = plan_forward(model->shape(), precision, device::DeviceKind::cpu, device::best_isa(), threads,
                                        {view.T, view.B, model->shape().max_tokens()}, output);
  const device::DeviceBuffer arena = memory::Ledger::allocate(*device, nullptr, plan.arena_tags(), "test");
  std::fill_n(static_cast<uint8_t*>(arena.data()), arena.bytes(),
              uint8_t{0xFF});  // NaN, to detect reads of uninitialized memory
  auto stream = device->make_stream();
  ForwardRunner runner(model->shape(), model->weights(), plan, arena.data(),
                       static_cast<device::CpuStream&>(*stream).pool());
  const tensor::TensorView result = runner.run(*stream, view);
  return {result.as<float>(), result.as<float>() + result.elements()};
}

void expect_close(const std::vector<float>& got, const std::vector<float>& want, float tolerance) {
  ASSERT_GE(got.size(), want.size());
  float worst = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    ASSERT_FALSE(std::isnan(got[i])) << i;
    worst = std::max(worst, std::abs(got[i] - want[i % want.size()]));
  }
  EXPECT_LE(worst, tolerance);
}

// ‖Δ‖ ≤ 1e-5 ‖reference‖: the error of fp32 sums of up to 80 terms over two layers is a tenth of that.
void expect_equal(const std::vector<float>& got, const std::vector<float>& want) {
  ASSERT_GE(got.size(), want.size());
  double difference = 0, norm = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    const double reference = want[i % want.size()];
    difference += (got[i] - reference) * (got[i] - reference);  // propagates NaN
    norm += reference * reference;
  }
  ::testing::Test::RecordProperty("relative_difference", std::to_string(1e6 * std::sqrt(difference / norm)) + "e-6");
  EXPECT_LE(std::sqrt(difference), 1e-5 * std::sqrt(norm));
}

// Output type of a model's golden values.
Output output_of(const std::string& name) {
  const ModelShape shape = read_shape(kModels / name);
  return shape.token_classes > 0      ? Output::token_logits
         : shape.sequence_classes > 0 ? Output::sequence_logits
                                      : Output::hidden;
}

TEST(Adapter, MergedModelsHaveTheLogitsOfPeft) {
  const std::filesystem::path adapters = kModels.parent_path() / "adapters";
  size_t tested = 0;
  for (const auto& entry : std::filesystem::directory_iterator(adapters)) {
    SCOPED_TRACE(entry.path().filename().string());
    const TempDir dir;
    std::filesystem::copy(entry.path() / "golden.json", dir / "golden.json");
    const auto golden = nlohmann::json::parse(get_file(entry.path() / "golden.json"));
    const std::string base = golden["base"];
    const ExportReport report = export_model(kModels / base, dir / "merged", Precision::fp32, entry.path());
    EXPECT_GT(report.adapted, 0);
    std::filesystem::rename(dir / "golden.json", dir / "merged/golden.json");
    const std::string merged = (dir / "merged").string();
    const std::vector<float> want = Golden(merged).flat(), got = run(merged, output_of(merged), Precision::fp32, 1);
    expect_equal(got, want);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-5) << i;
    EXPECT_NE(want, Golden(base).flat());
    // Added while loading.
    expect_equal(run(base, output_of(merged), Precision::fp32, 1, 1, entry.path()), want);
    for (const Precision precision : {Precision::bf16, Precision::int8})
      EXPECT_EQ(run(base, output_of(merged), precision, 2, 1, entry.path()),
                run(merged, output_of(merged), precision, 2))
          << precision_name(precision);
    ++tested;
  }
  EXPECT_GE(tested, 6u);
}

TEST(Export, LeavesNoDirectoryWhenStopped) {
  const TempDir dir;
  const std::atomic<bool> stop{true};
  EXPECT_HAS(error_of(ErrorCode::interrupted,
                      [&] { export_model(kModels / "bert_sequence", dir / "out", Precision::fp32, {}, &stop); }),
             "interrupted");
  EXPECT_FALSE(std::filesystem::exists(dir / "out"));
}

class Parity : public ::testing::TestWithParam<std::string> {};

TEST_P(Parity, PackedLogitsMatchTransformers) {
  const Output output = output_of(GetParam());
  for (const int threads : {1, 2, 3})
    expect_equal(run(GetParam(), output, Precision::fp32, threads), Golden(GetParam()).flat());
}

TEST_P(Parity, ChunkedMatchesOpByOp) {
  expect_equal(run(GetParam(), output_of(GetParam()), Precision::fp32, 2, 40), Golden(GetParam()).flat());
}

INSTANTIATE_TEST_SUITE_P(Models, Parity, ::testing::ValuesIn(golden_names("golden.json")),
                         [](const auto& p) { return p.param; });

TEST(Model, HalfAndInt8StayNearFp32) {
  // bf16 rounds each operand to 2^-9 relative, int8 to about 2^-8 of the row's largest value; over two layers of
  // products with random signs, the error of the logits stays within a few percent.
  const auto want = Golden("bert_sequence").flat();
  float size = 0;
  for (const float v : want) size = std::max(size, std::abs(v));
  expect_close(run("bert_sequence", Output::sequence_logits, Precision::bf16, 2), want, 0.05f * size);
  expect_close(run("bert_sequence", Output::sequence_logits, Precision::int8, 2), want, 0.10f * size);
}

// Vectors of an encoder without a head. CPUs with bf16 matrix instructions compute most products of narrow models in
// bf16; on others, the weights' rounding to int8 remains.
TEST(Model, Int8VectorsStayNearFp32) {
  const device::Isa isa = device::best_isa();
  const double bound = isa == device::Isa::amx || isa == device::Isa::neon_mm ? 0.01 : 0.03;
  for (const char* name : {"bert_encoder", "deberta_encoder"}) {
    SCOPED_TRACE(name);
    const auto want = Golden(name).flat();
    const auto got = run(name, Output::hidden, Precision::int8, 2);
    double difference = 0, size = 0;
    for (size_t i = 0; i < want.size(); ++i) {
      difference += std::pow(got[i] - want[i], 2);
      size += std::pow(want[i], 2);
    }
    EXPECT_LE(std::sqrt(difference), bound * std::sqrt(size));
    EXPECT_GT(difference, 0);
  }
}

// Gated products and four layers, or terms by distance: the same rounding, with somewhat larger errors.
TEST(Model, OtherLayersStayNearFp32Too) {
  for (const char* name : {"modernbert_sequence", "modernbert_mean", "modernbert_token", "deberta_sequence",
                           "deberta_keys", "deberta_convolution"}) {
    SCOPED_TRACE(name);
    const auto want = Golden(name).flat();
    double size = 0;
    for (const float v : want) size += static_cast<double>(v) * v;
    for (const auto& [precision, share] : {std::pair{Precision::bf16, 0.05}, {Precision::int8, 0.10}}) {
      const auto got = run(name, output_of(name), precision, 2);
      double difference = 0;
      for (size_t i = 0; i < want.size(); ++i) difference += std::pow(got[i] - want[i], 2);
      EXPECT_LE(std::sqrt(difference), share * std::sqrt(size)) << precision_name(precision);
      EXPECT_GT(difference, 0);
    }
  }
}

// Older files use other keys.
TEST(Model, OlderModernBertKeysGiveTheSameShape) {
  TempDir dir;
  put_golden_model(dir.path(), "modernbert_sequence");
  auto config = golden_json("modernbert_sequence", "config.json");
  config.erase("layer_types");
  config.erase("rope_parameters");
  put_file(dir / "config.json", config.dump());
  const ModelShape shape = read_shape(kModels / "modernbert_sequence");
  EXPECT_EQ(read_shape(dir.path()), shape);
  EXPECT_EQ(shape.local_layers, 0b0110u);
  EXPECT_EQ(shape.window, 8);
  config["global_attn_every_n_layers"] = 2;
  config["global_rope_theta"] = 80000;
  config["local_rope_theta"] = 5000;
  put_file(dir / "config.json", config.dump());
  EXPECT_EQ(read_shape(dir.path()).local_layers, 0b1010u);
  EXPECT_EQ(read_shape(dir.path()).rope_theta, 80000);
  EXPECT_EQ(read_shape(dir.path()).local_rope_theta, 5000);
  config["local_rope_theta"] = nullptr;
  put_file(dir / "config.json", config.dump());
  EXPECT_EQ(read_shape(dir.path()).local_rope_theta, 80000);
  config.erase("local_rope_theta");
  put_file(dir / "config.json", config.dump());
  EXPECT_EQ(read_shape(dir.path()).local_rope_theta, 10000);
}

TEST(Model, ScoresAreProbabilities) {
  const auto soft = run("bert_sequence", Output::sequence_scores, Precision::fp32, 2);
  for (size_t i = 0; i < soft.size(); i += 3) EXPECT_NEAR(soft[i] + soft[i + 1] + soft[i + 2], 1, 1e-6);
  const auto logits = run("bert_multilabel", Output::sequence_logits, Precision::fp32, 1);
  const auto sigmoid = run("bert_multilabel", Output::sequence_scores, Precision::fp32, 1);
  for (size_t i = 0; i < logits.size(); ++i) EXPECT_NEAR(sigmoid[i], 1 / (1 + std::exp(-logits[i])), 1e-6);
}

TEST(Model, PlanStaysNearTheLowerBound) {
  for (const char* name : {"bert_sequence", "roberta_token", "distilbert_sequence"}) {
    const ModelShape shape = read_shape(kModels / name);
    for (const auto target : {device::DeviceKind::cpu, device::DeviceKind::cuda}) {
      const auto output = shape.token_classes > 0 ? Output::token_scores : Output::sequence_scores;
      const ForwardPlan plan =
          plan_forward(shape, Precision::fp32, target, device::Isa::generic, 2, {4096, 512, 40}, output);
      EXPECT_LE(static_cast<double>(plan.whole.peak_bytes), 1.1 * static_cast<double>(plan.whole.lower_bound_bytes));
      EXPECT_EQ(plan.arena_tags().total(), plan.arena_bytes());
    }
  }
}

// A config that contradicts its weights or is unsupported: the error has the key or tensor, and both values.
struct UnsupportedConfig {
  const char *model, *key;
  nlohmann::json value;
  std::vector<const char*> parts;
};

std::vector<UnsupportedConfig> unsupported_configs() {
  return {
      {"electra_sequence",
       "embedding_size",
       40,
       {"word_embeddings.weight", "[96,32]", "[96,40]", "\"embedding_size\" is 40"}},
      {"electra_sequence", "embedding_size", "wide", {"\"embedding_size\" is", "wide", "must be an integer"}},
      {"mpnet_sequence",
       "relative_attention_num_buckets",
       16,
       {"\"relative_attention_num_buckets\" is 16", "must be at least 32"}},
      {"mpnet_sequence", "relative_attention_num_buckets", 40, {"relative_attention_bias.weight", "[32,3]", "[40,3]"}},
      {"mpnet_sequence", "pad_token_id", 0, {"\"pad_token_id\" is 0", "must be 1"}},
      {"albert_token",
       "num_hidden_groups",
       2,
       {"albert_layer_groups.1.", "requires at least 2 groups of layers", "\"num_hidden_groups\"", "have 1"}},
      {"albert_groups", "num_hidden_groups", 4, {"albert_layer_groups.2.", "requires at least 3 groups", "have 2"}},
      {"albert_token", "num_hidden_groups", 0, {"\"num_hidden_groups\" is", "0", "at least 1"}},
      {"albert_token", "inner_group_num", 3, {"\"inner_group_num\" is 3", "only 1 is supported"}},
      {"albert_token", "intermediate_size", 96, {"ffn.weight", "[80,48]", "[96,48]", "\"intermediate_size\" is 96"}},
      {"bert_token",
       "num_hidden_layers",
       4,
       {"encoder.layer.2.", "requires at least 3 layers", "num_hidden_layers", "have 2"}},
      {"mpnet_sequence", "num_hidden_layers", 3, {"attention.attn.q", "requires at least 3 layers", "have 2"}},
      {"camembert_token", "max_position_embeddings", 50, {"position_embeddings.weight", "[44,48]", "[50,48]"}},
      {"albert_token", "hidden_act", "mish", {"\"hidden_act\" is", "mish", "gelu_new"}},
      {"modernbert_token", "hidden_activation", "mish", {"\"hidden_activation\" is", "mish", "gelu_new"}},
      {"modernbert_token", "classifier_activation", "mish", {"\"classifier_activation\" is", "mish", "gelu_new"}},
      {"modernbert_token", "classifier_pooling", "max", {"\"classifier_pooling\" is", "max", "cls or mean"}},
      {"modernbert_token", "layer_types", {"full_attention", "banded", "banded"}, {"\"layer_types\" is", "banded"}},
      {"modernbert_token", "layer_types", {"full_attention"}, {"\"layer_types\" has 1", "is 3"}},
      {"modernbert_token", "num_hidden_layers", 4, {"\"layer_types\" has 3", "is 4"}},
      {"modernbert_token", "rope_scaling", {{"type", "yarn"}}, {"\"rope_scaling\" is", "yarn"}},
      {"modernbert_token",
       "rope_parameters",
       {{"full_attention", {{"rope_type", "yarn"}}}},
       {"full_attention", "yarn"}},
      {"modernbert_token", "local_attention", 1, {"\"local_attention\" is", "at least 2"}},
      {"modernbert_token", "head_dim", 16, {"\"head_dim\" is 16", "is 32"}},
      {"modernbert_token", "num_attention_heads", 64, {"heads of 1", "even"}},
      {"modernbert_token",
       "intermediate_size",
       40,
       {"mlp.Wi.weight", "[96,64]", "[80,64]", "\"intermediate_size\" is 40"}},
      {"modernbert_token", "mlp_bias", true, {"mlp.Wi.bias"}},
      {"deberta_sequence", "model_type", "deberta", {"\"model_type\" is", "deberta", "v1", "deberta-v2"}},
      {"deberta_sequence", "pos_att_type", "c2p|p2p", {"\"pos_att_type\" is", "c2p|p2p", "only c2p and p2c"}},
      {"deberta_sequence", "pos_att_type", {"c2p", 3}, {"\"pos_att_type\" is", "3", "c2p, p2c or both"}},
      {"deberta_sequence", "pos_att_type", nullptr, {"\"pos_att_type\" is missing"}},
      {"deberta_sequence", "position_buckets", 88, {"\"position_buckets\" is 88", "44 positions"}},
      {"deberta_sequence", "position_buckets", 20, {"rel_embeddings.weight", "[32,48]", "[40,48]"}},
      {"deberta_sequence", "norm_rel_ebd", "rms_norm", {"\"norm_rel_ebd\" is", "rms_norm", "layer_norm"}},
      {"deberta_sequence", "relative_attention", false, {"\"relative_attention\" is false"}},
      {"deberta_sequence", "embedding_size", 24, {"\"embedding_size\" is 24", "is 48"}},
      {"deberta_sequence", "attention_head_size", 8, {"\"attention_head_size\" is 8", "is 16"}},
      {"deberta_sequence", "pooler_hidden_act", "mish", {"\"pooler_hidden_act\" is", "mish"}},
      {"deberta_convolution", "conv_kernel_size", 4, {"\"conv_kernel_size\" is 4", "odd"}},
      {"deberta_convolution", "conv_kernel_size", 5, {"conv.conv.weight", "[48,48,3]", "[48,48,5]"}},
      {"deberta_convolution", "conv_groups", 2, {"\"conv_groups\" is 2", "only 1"}},
      {"deberta_convolution", "conv_act", "mish", {"\"conv_act\" is", "mish"}},
      {"deberta_convolution", "num_hidden_layers", 1, {"\"conv_kernel_size\" is 3 with 1 layer"}},
  };
}

TEST(Model, RejectsUnsupportedConfigs) {
  auto device = device::open_cpu_device(1);
  for (const UnsupportedConfig& c : unsupported_configs()) {
    SCOPED_TRACE(std::string(c.model) + " " + c.key);
    TempDir dir;
    put_golden_model(dir.path(), c.model);
    auto config = golden_json(c.model, "config.json");
    config[c.key] = c.value;
    put_file(dir / "config.json", config.dump());
    const std::string text = error_of(ErrorCode::bad_model, [&] { Model::load(dir.path(), *device, Precision::fp32); });
    for (const char* part : c.parts) EXPECT_HAS(text, part);
  }
}

// Writes the weights of a golden model again, after `change` of the list of names and types.
using Specs = std::vector<hub::SafetensorsSpec>;
void rewrite_weights(const std::filesystem::path& dir, const std::string& model,
                     const std::function<void(Specs&)>& change) {
  put_golden_model(dir, model);
  const auto source = hub::WeightSource::open(kModels / model);
  Specs specs;
  for (const std::string& name : source->names()) specs.push_back({name, DType::f32, source->require(name).shape});
  change(specs);
  hub::SafetensorsWriter writer(dir / "model.safetensors", specs);
  for (const auto& spec : writer.order()) {
    const auto t = source->get(spec.name);
    std::vector<std::byte> bytes(static_cast<size_t>(t.elements() * dtype_bytes(spec.dtype)));
    convert_elements(t.data, t.dtype, bytes.data(), spec.dtype, t.elements());
    writer.append(spec.name, bytes.data(), bytes.size());
  }
  writer.commit();
}

TEST(Model, Fp64WeightsGiveTheScoresOfFp32Weights) {
  TempDir dir;
  rewrite_weights(dir.path(), "bert_sequence", [](Specs& specs) {
    for (auto& spec : specs) spec.dtype = DType::f64;
  });
  auto device = device::open_cpu_device(1);
  const auto wide = Model::load(dir.path(), *device, Precision::fp32),
             reference = Model::load(kModels / "bert_sequence", *device, Precision::fp32);
  int tables = 0;
  for (size_t i = 0; i < wide->weights().size(); ++i) {
    const tensor::TensorView &a = wide->weights()[i].plain, &b = reference->weights()[i].plain;
    ASSERT_EQ(a.dtype, b.dtype) << i;
    ASSERT_EQ(a.bytes(), b.bytes()) << i;
    EXPECT_TRUE(a.bytes() == 0 || std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0) << i;
    tables += a.elements() > 0;
  }
  EXPECT_GT(tables, 3);
}

TEST(Model, ClassesWithoutLabelsAreNamed) {
  auto device = device::open_cpu_device(1);
  for (const char* model : {"bert_sequence", "bert_token"}) {
    TempDir dir;
    put_golden_model(dir.path(), model);
    auto config = golden_json(model, "config.json");
    const size_t classes = config["id2label"].size();
    ASSERT_NE(classes, 2u);  // the default
    for (const char* key : {"id2label", "label2id", "num_labels"}) config.erase(key);
    put_file(dir / "config.json", config.dump());
    const std::string text = error_of(ErrorCode::bad_model, [&] { Model::load(dir.path(), *device, Precision::fp32); });
    EXPECT_HAS(text, fmt::format("has {} classes, but ", classes));
    EXPECT_HAS(text, fmt::format("config.json has no labels; add \"id2label\" with {} labels", classes));
    EXPECT_EQ(text.find("num_hidden_layers"), std::string::npos) << text;
  }
}

TEST(Model, ChecksParametersWithoutLoading) {
  TempDir dir;
  const auto check = [&](bool with_head) {
    const ModelShape shape = read_shape(dir.path());
    check_params(*hub::WeightSource::open(dir.path()), shape, with_head);
  };
  for (const std::string& model : golden_names("golden.json")) {
    put_golden_model(dir.path(), model);
    check(true);
  }
  rewrite_weights(dir.path(), "bert_sequence", [](Specs& specs) {
    std::erase_if(specs, [](auto& s) { return s.name.starts_with("classifier."); });
  });
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { check(true); }),
             "no tensor classifier.weight: the classification head is missing");
  check(false);  // training draws a new head
  rewrite_weights(dir.path(), "bert_sequence",
                  [](Specs& specs) { std::erase_if(specs, [](auto& s) { return s.name.ends_with("key.weight"); }); });
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { check(false); }), "key.weight");

  const ModelShape shape = read_shape(kModels / "bert_sequence");
  check_vocabulary(dir.path(), shape, shape.vocab);
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { check_vocabulary(dir.path(), shape, shape.vocab + 1); }),
             "the tokenizer's largest id is 96, the embedding table has 96 rows");
}

TEST(ModelFuzz, KeysOfFamiliesNeverCrash) {
  drive_fuzz(
      fuzz_shape,
      {R"({"model_type":"albert","num_hidden_layers":5,"num_hidden_groups":2,"inner_group_num":1,"embedding_size":32})",
       R"({"model_type":"electra","embedding_size":32,"hidden_size":48,"num_attention_heads":3})",
       R"({"model_type":"mpnet","relative_attention_num_buckets":32,"pad_token_id":1,"hidden_size":48})",
       R"({"model_type":"modernbert","num_hidden_layers":3,"global_attn_every_n_layers":2,"local_attention":16,)"
       R"("local_rope_theta":null,"rope_parameters":{"full_attention":{"rope_theta":1e4,"rope_type":"default"}},)"
       R"("layer_types":["full_attention","sliding_attention","sliding_attention"],"mlp_bias":true})",
       R"({"model_type":"deberta-v2","relative_attention":true,"position_buckets":16,"pos_att_type":"p2c|c2p",)"
       R"("norm_rel_ebd":"layer_norm","share_att_key":true,"conv_kernel_size":3,"conv_act":"gelu"})"},
      2000);
}

TEST(Model, RejectsABatchOverThePlan) {
  auto device = device::open_cpu_device(1);
  const auto model = Model::load(kModels / "bert_sequence", *device, Precision::fp32);
  const ForwardPlan plan = plan_forward(model->shape(), Precision::fp32, device::DeviceKind::cpu, device::best_isa(), 1,
                                        {8, 2, 8}, Output::sequence_logits);
  const device::DeviceBuffer arena = memory::Ledger::allocate(*device, nullptr, plan.arena_tags(), "test");
  auto stream = device->make_stream();
  ForwardRunner runner(model->shape(), model->weights(), plan, arena.data(), nullptr);
  const GoldenBatch batch({{3, 4, 5, 6, 7}, {3, 4, 5, 6}}, 0);
  EXPECT_THROW(runner.run(*stream, batch.view()), Error);
}

}  // namespace
}  // namespace brim::model
