// SPDX-License-Identifier: Apache-2.0
#include "hub/foreign_model.h"

#include <gtest/gtest.h>

#include "base/test_files.h"
#include "hub/hf_config.h"
#include "hub/weights.h"

namespace brim::hub {
namespace {

// Both readers of a directory report the cause.
void expect_cause(const std::vector<std::pair<std::string, std::string>>& files, const std::string& cause) {
  SCOPED_TRACE(cause);
  const TempDir dir;
  for (const auto& [name, text] : files) put_file(dir / name, text);
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { WeightSource::open(dir.path()); }),
             dir.path().string() + ": " + cause);
  EXPECT_HAS(error_of(ErrorCode::bad_model, [&] { load_hf_config(dir.path()); }), dir.path().string() + ": " + cause);
}

TEST(ForeignModel, NamesTheCause) {
  expect_cause({{"adapter_config.json", R"({"base_model_name_or_path":"org/base","peft_type":"LORA"})"},
                {"adapter_model.safetensors", ""}},
               "contains a LoRA adapter for 'org/base', not a complete model; give its base model as `model` and this "
               "directory as `adapter`");
  expect_cause({{"adapter_config.json", "{"}}, "contains a LoRA adapter, not a complete model");
  expect_cause({{"model-00001-of-00002.safetensors", ""}, {"model-00002-of-00002.safetensors", ""}},
               "has the shard 'model-00001-of-00002.safetensors' but no index; download model.safetensors.index.json");
  expect_cause({{"pytorch_model-00001-of-00002.bin", ""}},
               "has the shard 'pytorch_model-00001-of-00002.bin' but no index; download pytorch_model.bin.index.json");
  expect_cause({{"b.Q4_K_M.gguf", ""}, {"c.gguf", ""}}, "'b.Q4_K_M.gguf' is in GGUF format");
  expect_cause({{"model_quantized.onnx", ""}}, "has model_quantized.onnx but no model.safetensors");
  expect_cause({{"onnx/model_fp16.onnx", ""}}, "has onnx/model_fp16.onnx but no model.safetensors");
  expect_cause({{"tf_model.h5", ""}}, "has tf_model.h5 but no model.safetensors");
}

TEST(ForeignModel, IgnoresExtraFilesNextToWeights) {
  const TempDir dir;
  EXPECT_EQ(foreign_model(dir.path()), "");
  put_file(dir / "model.onnx", "");
  put_file(dir / "adapter_config.json", "{}");
  for (const char* name : {"model.safetensors", "pytorch_model.bin.index.json"}) {
    EXPECT_NE(foreign_model(dir.path()), "");
    put_file(dir / name, "");
    EXPECT_EQ(foreign_model(dir.path()), "");
    std::filesystem::remove(dir / name);
  }
}

}  // namespace
}  // namespace brim::hub
