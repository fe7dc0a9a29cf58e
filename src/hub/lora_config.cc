// SPDX-License-Identifier: Apache-2.0
#include "hub/lora_config.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "hub/adapter.h"
#include "io/atomic_file.h"

namespace brim::hub {

namespace {

// The first entry whose name is the module's, or an end of it. A leading ^ requires the whole name.
double value_of(const std::map<std::string, double, std::less<>>& values, std::string_view module, double fallback) {
  for (const auto& [pattern, value] : values) {
    std::string_view name = pattern;
    const bool whole = name.starts_with('^');
    if (whole) name.remove_prefix(1);
    if (name.ends_with('$')) name.remove_suffix(1);
    if (whole ? name == module : names_module(name, module)) return value;
  }
  return fallback;
}

}  // namespace

bool names_module(std::string_view name, std::string_view module) {
  return module.ends_with(name) &&
         (module.size() == name.size() || (!name.empty() && module[module.size() - name.size() - 1] == '.'));
}

bool LoraConfig::adapts(std::string_view module) const {
  for (const std::string& name : targets)
    if (names_module(name, module)) return true;
  return false;
}

int64_t LoraConfig::rank_of(std::string_view module) const {
  return static_cast<int64_t>(value_of(ranks, module, static_cast<double>(rank)));
}

double LoraConfig::alpha_of(std::string_view module) const { return value_of(alphas, module, alpha); }

float LoraConfig::scale_of(std::string_view module) const {
  const auto r = static_cast<double>(rank_of(module));
  return static_cast<float>(alpha_of(module) / (by_root ? std::sqrt(r) : r));
}

void write_adapter_config(const std::filesystem::path& dir, const LoraConfig& lora, const AdapterFacts& facts) {
  // Whole numbers are written as such: PEFT declares lora_alpha as an integer.
  const auto number = [](double value) -> nlohmann::ordered_json {
    if (value == std::floor(value) && std::abs(value) < 1e15) return static_cast<int64_t>(value);
    return value;
  };
  auto ranks = nlohmann::ordered_json::object(), alphas = nlohmann::ordered_json::object();
  for (const auto& [name, value] : lora.ranks) ranks[name] = number(value);
  for (const auto& [name, value] : lora.alphas) alphas[name] = number(value);
  const nlohmann::ordered_json config = {{"alpha_pattern", alphas},
                                         {"auto_mapping", nullptr},
                                         {"base_model_name_or_path", facts.base},
                                         {"bias", "none"},
                                         {"fan_in_fan_out", false},
                                         {"inference_mode", true},
                                         {"init_lora_weights", true},
                                         {"layers_pattern", nullptr},
                                         {"layers_to_transform", nullptr},
                                         {"lora_alpha", number(lora.alpha)},
                                         {"lora_dropout", lora.dropout},
                                         {"modules_to_save", facts.saved_modules},
                                         {"peft_type", "LORA"},
                                         {"r", lora.rank},
                                         {"rank_pattern", ranks},
                                         {"revision", nullptr},
                                         {"target_modules", lora.targets},
                                         {"task_type", facts.tags ? "TOKEN_CLS" : "SEQ_CLS"},
                                         {"use_dora", false},
                                         {"use_rslora", lora.by_root}};
  io::write_file_atomically(dir / kAdapterConfig,
                            config.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

}  // namespace brim::hub
