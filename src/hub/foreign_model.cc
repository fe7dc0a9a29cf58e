// SPDX-License-Identifier: Apache-2.0
#include "hub/foreign_model.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/mapped_file.h"
#include "io/quote_text.h"

namespace brim::hub {
namespace fs = std::filesystem;
namespace {

constexpr const char* kConvert =
    "no model.safetensors or pytorch_model.bin; convert it with transformers or download one of them";

bool has_file(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(path, ignored));
}

// First file name with this extension, by name; empty if there is none.
std::string first_with(const fs::path& dir, const char* extension) {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(dir, ignored))
    if (entry.path().extension() == extension) names.push_back(entry.path().filename().string());
  return names.empty() ? "" : *std::min_element(names.begin(), names.end());
}

// " of the base model 'NAME'" if the adapter names it.
std::string base_model(const fs::path& adapter_config) {
  std::error_code ignored;
  if (!fs::is_regular_file(adapter_config, ignored) || fs::file_size(adapter_config, ignored) > (1 << 20)) return "";
  const auto config = nlohmann::json::parse(MappedFile(adapter_config).text(), nullptr, false);
  const auto name = config.is_object() ? config.find("base_model_name_or_path") : config.end();
  if (name == config.end() || !name->is_string()) return "";
  return fmt::format(" for {}", io::quote_text(name->get<std::string>()));
}

// The first of several shards, such as model-00001-of-00003.safetensors.
bool is_shard(const std::string& name) { return name.find("-of-0") != std::string::npos; }

}  // namespace

std::string foreign_model(const fs::path& dir) {
  for (const char* name : {"model.safetensors", "pytorch_model.bin"})
    if (has_file(dir / name) || has_file(dir / (std::string(name) + ".index.json"))) return "";
  if (has_file(dir / "adapter_config.json"))
    return fmt::format(
        "contains a LoRA adapter{}, not a complete model; give its base model as `model` and this directory as "
        "`adapter`",
        base_model(dir / "adapter_config.json"));
  for (const char* extension : {".safetensors", ".bin"})
    if (const std::string shard = first_with(dir, extension); is_shard(shard))
      return fmt::format("has the shard {} but no index; download {}.index.json", io::quote_text(shard),
                         extension[1] == 's' ? "model.safetensors" : "pytorch_model.bin");
  if (const std::string gguf = first_with(dir, ".gguf"); !gguf.empty())
    return fmt::format("{} is in GGUF format, which is not supported; download the original model with safetensors",
                       io::quote_text(gguf));
  for (const char* other : {"tf_model.h5", "flax_model.msgpack"})
    if (has_file(dir / other)) return fmt::format("has {} but {}", other, kConvert);
  for (const char* folder : {"", "onnx"})
    if (const std::string onnx = first_with(dir / folder, ".onnx"); !onnx.empty())
      return fmt::format("has {} but {}", (fs::path(folder) / onnx).string(), kConvert);
  return "";
}

}  // namespace brim::hub
