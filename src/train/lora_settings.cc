// SPDX-License-Identifier: Apache-2.0
// Settings of LoRA applied to a model: which linear layers are adapted, and whether they can be.
#include <algorithm>
#include <regex>

#include "base/error.h"
#include "io/quote_text.h"
#include "model/lora.h"
#include "train/settings.h"

namespace brim::train {

using model::LinearModule;

namespace {

// Ends of the names of a model's linear layers, for messages.
std::string known_names(const std::vector<LinearModule>& modules) {
  std::vector<std::string> names;
  for (const LinearModule& m : modules) {
    const std::string name = m.name.substr(m.name.rfind('.') + 1);
    if (m.adaptable && std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  return fmt::format("{}", fmt::join(names, ", "));
}

std::function<bool(const LinearModule&)> selector(const std::string& target) {
  if (same_word(target, "all") || same_word(target, "all-linear")) return [](const LinearModule&) { return true; };
  if (same_word(target, "attention")) return [](const LinearModule& m) { return m.attention; };
  if (!is_regular_expression(target))
    return [target](const LinearModule& m) { return hub::names_module(target, m.name); };
  try {
    return [expression = std::regex(target)](const LinearModule& m) { return std::regex_match(m.name, expression); };
  } catch (const std::regex_error&) {
    fail(ErrorCode::usage, "`lora_targets={}`: invalid regular expression", target);
  }
}

void check_layers(const model::ModelShape& shape, const TrainSettings& s) {
  if (!s.lora_layers.empty() && shape.layer_groups > 0)
    fail(ErrorCode::usage, "`lora_layers`: the layers of this model share their parameters");
  for (const int64_t layer : s.lora_layers)
    if (layer < 0 || layer >= shape.layers)
      fail(ErrorCode::usage, "`lora_layers={}`: must be from 0 to {}", layer, shape.layers - 1);
}

std::vector<std::string> targets_of(const model::ModelShape& shape, const TrainSettings& s) {
  check_layers(shape, s);
  const std::vector<LinearModule> modules = linear_modules(shape);
  const std::vector<std::string> all = {"all"};
  std::vector<bool> chosen(modules.size());
  for (const std::string& target : s.lora_targets.empty() ? all : s.lora_targets) {
    const auto selects = selector(target);
    bool found = false, in_head = false;
    for (size_t i = 0; i < modules.size(); ++i) {
      if (!selects(modules[i])) continue;
      in_head |= modules[i].head;
      found |= modules[i].adaptable;
      chosen[i] = chosen[i] || modules[i].adaptable;
    }
    if (!found && in_head)
      fail(ErrorCode::usage, "`lora_targets={}`: is part of the head, which is always trained as a whole", target);
    if (!found)
      fail(ErrorCode::usage, Remedy{"use all, attention or these names"},
           "`lora_targets={}`: the layers of this model have no such linear layer; they have {}", target,
           known_names(modules));
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < modules.size(); ++i)
    if (chosen[i] && (s.lora_layers.empty() ||
                      std::find(s.lora_layers.begin(), s.lora_layers.end(), modules[i].layer) != s.lora_layers.end()))
      names.push_back(modules[i].name);
  if (names.empty())  // each of the two selects modules
    fail(ErrorCode::usage, "`lora_targets={}` and `lora_layers={}` have no linear layer in common",
         fmt::join(s.lora_targets, ","), fmt::join(s.lora_layers, ","));
  return names;
}

void check_ranks(const model::ModelShape& shape, const TrainSettings& s) {
  const std::vector<LinearModule> modules = linear_modules(shape);
  const hub::LoraConfig& lora = shape.lora;
  const LinearModule* previous = nullptr;  // adapted module of the same matrix
  for (const LinearModule& m : modules) {
    if (!m.adaptable || !lora.adapts(m.name)) continue;
    if (const int64_t most = std::min(m.rows, m.cols); lora.rank_of(m.name) > most)
      fail(ErrorCode::usage, "`lora_r={}`: must be at most {}, the width of {}", lora.rank_of(m.name), most, m.name);
    if (previous != nullptr && previous->matrix == m.matrix &&
        (lora.rank_of(m.name) != lora.rank_of(previous->name) ||
         lora.scale_of(m.name) != lora.scale_of(previous->name)))
      fail(ErrorCode::bad_model, Remedy{"merge it with `brim models merge` and train the result"},
           "{}: \"rank_pattern\" or \"alpha_pattern\": {} and {} must have the same rank and alpha for training",
           (std::filesystem::path(s.adapter) / hub::kAdapterConfig).string(), previous->name, m.name);
    previous = &m;
  }
}

}  // namespace

bool is_regular_expression(std::string_view target) {
  return target.find_first_of("\\*+?|()[]{}^$") != std::string_view::npos;
}

model::ModelShape with_lora(model::ModelShape shape, const TrainSettings& s, const hub::Adapter* adapter) {
  if (!s.lora()) return shape;
  if (adapter == nullptr && !s.adapter.empty())
    fail(ErrorCode::usage, "`adapter={}`: requires the weights of the model", s.adapter);
  hub::LoraConfig lora;
  if (adapter != nullptr) {
    lora = adapter->lora(head_tensors(shape));
    if (s.lora_r > 0 && s.lora_r != lora.rank)
      fail(ErrorCode::usage, "`lora_r={}`: the adapter {} has rank {}", s.lora_r, s.adapter, lora.rank);
    const std::vector<LinearModule> modules = linear_modules(shape);
    std::vector<std::string> names;
    for (const std::string& target : lora.targets) {
      const auto found = std::find_if(modules.begin(), modules.end(),
                                      [&](const LinearModule& m) { return hub::names_module(target, m.name); });
      if (found == modules.end() || !found->adaptable)
        fail(ErrorCode::bad_model, Remedy{"merge it with `brim models merge` and train the result"},
             "{}: adapts {}, which is not a linear layer of the encoder's layers", s.adapter, io::quote_text(target));
      names.push_back(found->name);
    }
    lora.targets = shortest_targets(shape, names);
  } else {
    lora.rank = s.lora_r;
    lora.alpha = s.lora_alpha.value_or(8);
    lora.by_root = s.use_rslora;
    lora.targets = shortest_targets(shape, targets_of(shape, s));
  }
  lora.dropout = s.lora_dropout.value_or(lora.dropout);
  shape.lora = std::move(lora);
  check_ranks(shape, s);
  return shape;
}

std::unique_ptr<hub::Adapter> open_adapter(const TrainSettings& s, const hub::WeightSource& source) {
  if (s.adapter.empty()) return nullptr;
  if (!hub::is_adapter(s.adapter))
    fail(ErrorCode::usage, "`adapter={}`: no {} in this directory", s.adapter, hub::kAdapterConfig);
  return std::make_unique<hub::Adapter>(s.adapter, source);
}

}  // namespace brim::train
