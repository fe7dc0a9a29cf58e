// SPDX-License-Identifier: Apache-2.0
// Which adapters are accepted. Their arithmetic is compared with PEFT in model/model_test.cc.
#include "hub/adapter.h"

#include <gtest/gtest.h>

#include <limits>
#include <nlohmann/json.hpp>

#include "base/fuzz_driver.h"
#include "base/test_files.h"
#include "io/zip_maker.h"

#define LLVMFuzzerTestOneInput fuzz_adapter
#include "hub/adapter_fuzz.cc"
#undef LLVMFuzzerTestOneInput

namespace brim::hub {
namespace {

constexpr const char* kModule = "bert.encoder.layer.0.attention.self.query";

// The tensors as torch.save writes them.
std::string torch_file(const std::map<std::string, tensor::TensorView>& tensors) {
  const auto text = [](const std::string& value) { return "X" + io::ZipMaker::le(value.size(), 4) + value; };
  const auto pair = [](int64_t first, int64_t second) {
    const auto integer = [](int64_t value) { return "\x8a\x08" + io::ZipMaker::le(static_cast<uint64_t>(value), 8); };
    return "(" + integer(first) + integer(second) + "t";
  };
  io::ZipMaker zip;
  zip.members.emplace_back();
  std::string pickle = "\x80\x02}(";
  for (const auto& [name, t] : tensors) {
    const std::string key = std::to_string(zip.members.size() - 1);
    pickle += text(name) + "ctorch._utils\n_rebuild_tensor_v2\n((" + text("storage") + "ctorch\nFloatStorage\n" +
              text(key) + text("cpu") + "K" + static_cast<char>(t.elements()) + "tQK" + '\0' +
              pair(t.dim[0], t.dim[1]) + pair(t.dim[1], 1) + "\x89}tR";
    zip.members.push_back(
        {.name = "m/data/" + key,
         .bytes = std::string(static_cast<const char*>(t.data), static_cast<size_t>(t.elements()) * sizeof(float))});
  }
  zip.members[0] = {.name = "m/data.pkl", .bytes = pickle + "u."};
  return zip.make();
}

struct Files {
  TempDir dir;
  std::vector<float> values = std::vector<float>(64, 1.0f);
  nlohmann::json config = {
      {"peft_type", "LORA"}, {"r", 2}, {"lora_alpha", 6}, {"use_dora", false}, {"layer_replication", nullptr}};
  std::map<std::string, tensor::TensorView> tensors;

  Files() {
    write_safetensors(dir / "model.safetensors",
                      {{std::string(kModule) + ".weight", tensor({4, 3})}, {"classifier.weight", tensor({2, 4})}});
    add("lora_A.weight", {2, 3});
    add("lora_B.weight", {4, 2});
  }
  tensor::TensorView tensor(std::initializer_list<int64_t> dims) { return {values.data(), tensor::DType::f32, dims}; }
  void add(const std::string& part, std::initializer_list<int64_t> dims, const std::string& module = kModule) {
    tensors[kAdapterPrefix + module + "." + part] = tensor(dims);
  }
  Adapter open() {
    put_file(dir / kAdapterConfig, config.dump());
    write_safetensors(dir / kAdapterWeights, tensors);
    return Adapter(dir.path(), *WeightSource::open(dir.path()));
  }
  std::string error() {
    return error_of(ErrorCode::bad_model, [&] { open(); });
  }
};

TEST(Adapter, AddsTheScaledProduct) {
  for (const auto& [change, scale] :
       std::vector<std::pair<nlohmann::json, float>>{{nlohmann::json::object(), 3},
                                                     {{{"use_rslora", true}}, 6 / std::sqrt(2.0f)},
                                                     {{{"alpha_pattern", {{"self.query", 1}}}}, 0.5f},
                                                     {{{"alpha_pattern", {{"elf.query", 1}, {"key", 9}}}}, 3}}) {
    Files f;
    f.config.update(change);
    std::vector<float> values(12, 1.0f);
    f.open().apply(std::string(kModule) + ".weight", values);
    for (const float v : values) EXPECT_FLOAT_EQ(v, 1 + scale * 2) << change;
  }
}

TEST(Adapter, ReadsFilesOfTorch) {
  Files f;
  for (size_t i = 0; i < f.values.size(); ++i) f.values[i] = static_cast<float>(i) / 8;
  f.add("weight", {2, 4}, "classifier.modules_to_save.default");
  std::vector<float> want(12, 1.0f), found(12, 1.0f), head(8);
  const std::string name = std::string(kModule) + ".weight";
  f.open().apply(name, want);
  EXPECT_NE(want, found);
  std::filesystem::remove(f.dir / kAdapterWeights);
  put_file(f.dir / "adapter_model.bin", torch_file(f.tensors));
  const auto base = WeightSource::open(f.dir.path());
  const Adapter adapter(f.dir.path(), *base);
  adapter.apply(name, found);
  EXPECT_EQ(found, want);
  adapter.apply("classifier.weight", head);
  EXPECT_EQ(head, std::vector<float>(f.values.begin(), f.values.begin() + 8));
  EXPECT_EQ(adapter.rank_of(name), 2);
  // A safetensors file takes precedence.
  f.values.assign(f.values.size(), 1.0f);
  std::vector<float> ones(12, 1.0f);
  f.open().apply(name, ones);
  EXPECT_EQ(ones, std::vector<float>(12, 7.0f));
  std::filesystem::remove(f.dir / kAdapterWeights);
  put_file(f.dir / "adapter_model.bin", "no weights");
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { Adapter(f.dir.path(), *base); }), "adapter_model.bin");
}

TEST(Adapter, ReplacesAndAddsTensorsOfTheHead) {
  Files f;
  f.add("weight", {2, 4}, "classifier.modules_to_save.default");
  EXPECT_TRUE(f.open().added().empty());
  f.tensors.clear();
  f.add("lora_A.weight", {2, 3});
  f.add("lora_B.weight", {4, 2});
  f.add("weight", {3, 4}, "classifier");
  EXPECT_EQ(f.open().added().at("classifier.weight"), (std::vector<int64_t>{3, 4}));
}

TEST(Adapter, RefusesKeysThatWouldChangeTheResult) {
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, nlohmann::json>>{{"use_dora", true},
                                                           {"peft_type", "IA3"},
                                                           {"fan_in_fan_out", true},
                                                           {"init_lora_weights", "pissa_niter_4"},
                                                           {"bias", "some"},
                                                           {"r", 0},
                                                           {"lora_alpha", "high"},
                                                           {"layer_replication", {{0, 1}}},
                                                           {"trainable_token_indices", {1}},
                                                           {"alpha_pattern", {{".*query", 1}}},
                                                           {"rank_pattern", {{"query", 4}}},
                                                           {"some_new_key", 1}}) {
    Files f;
    f.config[key] = value;
    const std::string message = f.error();
    EXPECT_HAS(message, key == "rank_pattern" ? "has rank 2" : key);
  }
}

TEST(Adapter, RefusesTensorsOfAnotherBaseModel) {
  const auto changed = [](const std::string& part, std::initializer_list<int64_t> dims, const std::string& module) {
    Files f;
    f.add(part, dims, module);
    return f.error();
  };
  EXPECT_HAS(changed("lora_A.weight", {2, 5}, kModule), "is for a matrix of [4,5]");
  EXPECT_HAS(changed("lora_A.weight", {2, 3}, "bert.encoder.layer.7.attention.self.query"), "is missing");
  Files other;
  other.add("lora_A.weight", {2, 3}, "roberta.encoder.layer.7.out");
  other.add("lora_B.weight", {4, 2}, "roberta.encoder.layer.7.out");
  EXPECT_HAS(other.error(), "has no module 'roberta.encoder.layer.7.out'; the adapter belongs to another base model");
  EXPECT_HAS(changed("lora_B.weight", {4, 3}, kModule), "are not those of a LoRA matrix");
  EXPECT_HAS(changed("lora_magnitude_vector", {4}, kModule), "lora_magnitude_vector");
  Files none;
  none.tensors.clear();
  none.add("weight", {2, 4}, "classifier");
  EXPECT_HAS(none.error(), "no LoRA matrices");
}

TEST(Adapter, RejectsPatternsOutsideTheirBounds) {
  Files f;
  f.config["rank_pattern"] = {{"query", 0}};
  f.add("lora_A.weight", {0, 3});
  f.add("lora_B.weight", {4, 0});
  EXPECT_HAS(f.error(), "\"rank_pattern\"");
  Files g;
  g.config["rank_pattern"] = {{"query", 1e300}};
  EXPECT_HAS(g.error(), "from 1 to 65536");
  Files h;
  h.config["alpha_pattern"] = {{"query", 1e300}};
  EXPECT_HAS(h.error(), "\"alpha_pattern\"");
}

TEST(Adapter, RejectsValuesThatAreNotFinite) {
  for (const float value : {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity(), 3e38f}) {
    Files f;
    f.values.assign(f.values.size(), value);
    const Adapter adapter = f.open();
    std::vector<float> values(12, 1.0f);
    const auto apply = [&] { adapter.apply(std::string(kModule) + ".weight", values); };
    EXPECT_HAS(error_of(ErrorCode::bad_model, apply), "lora_A.weight': NaN or infinity");
  }
}

TEST(Adapter, RejectsIntegerTensors) {
  Files f;
  std::vector<int64_t> whole(6, 1);
  f.tensors[std::string(kAdapterPrefix) + kModule + ".lora_A.weight"] = {whole.data(), tensor::DType::i64, {2, 3}};
  const Adapter adapter = f.open();
  std::vector<float> values(12, 1.0f);
  const auto apply = [&] { adapter.apply(std::string(kModule) + ".weight", values); };
  EXPECT_HAS(error_of(ErrorCode::bad_model, apply), "lora_A.weight': unsupported type i64");
}

TEST(AdapterFuzz, NeverCrashes) {
  drive_fuzz(fuzz_adapter,
             {std::string("\2") + Files().config.dump(), std::string("\0", 1) + R"({"rank_pattern":{"query":0}})",
              std::string("\1") + R"({"r":1,"alpha_pattern":{"^bert.encoder.layer.0.attention.self.query$":9}})"},
             1500);
}

}  // namespace
}  // namespace brim::hub
