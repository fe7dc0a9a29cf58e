// SPDX-License-Identifier: Apache-2.0
// LoRA as in adapter_config.json of PEFT: rank, scale, dropout and the adapted linear layers. The layers of a model are
// in model/lora.h.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace brim::hub {

struct LoraConfig {
  int64_t rank = 0;  // 0: no LoRA
  double alpha = 8, dropout = 0;
  bool by_root = false;              // use_rslora: the scale is alpha / sqrt(rank) instead of alpha / rank
  std::vector<std::string> targets;  // full names of linear layers, or their ends after a dot
  std::map<std::string, double, std::less<>> ranks, alphas;  // rank_pattern, alpha_pattern: by name

  explicit operator bool() const { return rank > 0; }
  bool operator==(const LoraConfig&) const = default;
  bool adapts(std::string_view module) const;
  int64_t rank_of(std::string_view module) const;
  double alpha_of(std::string_view module) const;
  float scale_of(std::string_view module) const;
};

// Whether PEFT selects a module by this name: its full name, or an end of it that follows a dot.
bool names_module(std::string_view name, std::string_view module);

// Other contents of adapter_config.json.
struct AdapterFacts {
  std::string base;                        // name or directory of the base model
  bool tags = false;                       // token instead of text classification
  std::vector<std::string> saved_modules;  // trained as a whole: the head
};
void write_adapter_config(const std::filesystem::path& dir, const LoraConfig& lora, const AdapterFacts& facts);

}  // namespace brim::hub
