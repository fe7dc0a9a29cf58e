// SPDX-License-Identifier: Apache-2.0
// Reads LoRA adapters in PEFT's format (adapter_config.json, adapter_model.safetensors or .bin) and adds them to the
// weights of a base model. Keys of the config that would change the result and are not supported are refused by name;
// base_model_name_or_path is only used in messages.
#pragma once
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "hub/hf_config.h"
#include "hub/lora_config.h"
#include "hub/weights.h"

namespace brim::hub {

inline constexpr const char* kAdapterConfig = "adapter_config.json";
inline constexpr const char* kAdapterWeights = "adapter_model.safetensors";
inline constexpr const char* kAdapterPrefix = "base_model.model.";  // first part of all tensor names of PEFT

bool is_adapter(const std::filesystem::path& dir);  // has an adapter_config.json
// Throws bad_model if the base model has int8 weights.
void require_float_weights(const WeightSource& base);

class Adapter {
 public:
  // Throws bad_model for a directory that is not a supported adapter, and for one of another base model: a tensor that
  // is missing in `base` or has another shape.
  Adapter(const std::filesystem::path& dir, const WeightSource& base);

  // Adds the product of the matrices for this tensor of the base model to its values, or replaces them.
  void apply(std::string_view name, std::vector<float>& values) const;
  // The same for elements [begin, end) of the tensor, in row-major order.
  void apply(std::string_view name, int64_t begin, int64_t end, float* values) const;
  // Names of all tensors that apply() changes or that are added.
  std::set<std::string> changed() const;
  bool adds_to(std::string_view name) const { return pairs_.contains(name); }  // the others are replaced
  std::optional<int64_t> rank_of(std::string_view name) const;                 // empty: the tensor is not adapted
  // Its matrices: A [rank,columns] and B [rows,rank], and the factor of the product.
  struct Product {
    int64_t rank = 0;
    float scale = 0;
    std::vector<float> a, b;
  };
  std::optional<Product> product(std::string_view name) const;
  // Tensors of a head that is missing in the base model or has other classes: name in the adapted model and shape.
  const std::map<std::string, std::vector<int64_t>>& added() const { return added_; }
  std::vector<float> values_of_added(const std::string& name) const;
  bool tags() const { return tags_; }  // for token classification
  // As a configuration of training: the adapted modules by name, with their ranks and scales. Throws bad_model if the
  // adapter also changes other tensors than those of `head` (names in the base model), which training cannot continue.
  LoraConfig lora(const std::vector<std::string>& head) const;
  struct OwnTensor {
    std::string where;  // for messages
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  // The adapter's own tensor of the head; nullopt if it has none.
  std::optional<OwnTensor> own_tensor(std::string_view name) const;
  int64_t matrices() const { return static_cast<int64_t>(pairs_.size()); }
  // The base model's config with the labels and the head of the adapter: those of a config.json next to it, or of a new
  // head without names. `update` receives the changes to a config.json for it.
  HfConfig config_with_head(const HfConfig& base, ConfigUpdate* update = nullptr) const;
  void check_unchanged() const { source_->check_unchanged(); }

 private:
  struct Pair {
    std::string a, b;    // names in the adapter's file
    std::string module;  // name in PEFT
    int64_t rank = 0;
    double alpha = 0;
    float scale = 0;  // alpha / rank
  };
  void add_pair(const std::string& module, const std::string& a, const WeightSource& base, double alpha, bool by_root);
  void add_other(const std::string& stored, const std::string& name, const WeightSource& base);
  std::vector<float> read(const std::string& stored) const;
  void read(const std::string& stored, int64_t begin, int64_t end, float* out) const;
  ConfigUpdate new_head(const HfConfig& base) const;

  std::filesystem::path dir_;
  std::string base_;  // for messages
  std::unique_ptr<WeightSource> source_;
  std::map<std::string, Pair, std::less<>> pairs_;                      // by the base tensor's name
  std::map<std::string, std::string, std::less<>> replaced_, created_;  // name in the model → name in the file
  std::map<std::string, std::vector<int64_t>> added_;
  bool tags_ = false;
  LoraConfig config_;  // without targets
  std::string bias_;
};

}  // namespace brim::hub
