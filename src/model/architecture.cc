// SPDX-License-Identifier: Apache-2.0
#include "model/architecture.h"

#include <algorithm>

#include "base/error.h"
#include "model/lora.h"

namespace brim::model {

const FamilyEntry& family_entry(hub::Family family) {
  static const FamilyEntry all[] = {
#define BRIM_FAMILY(name) name##_family(),
#include "hub/families.inc"
  };
  return all[static_cast<size_t>(family)];
}

std::unique_ptr<Architecture> make_architecture(const ModelShape& shape) {
  std::unique_ptr<Architecture> model = family_entry(shape.family).make(shape);
  model->apply_freeze();
  model->apply_lora();
  return model;
}

void Architecture::apply_freeze() {
  const Freeze& freeze = shape_.freeze;
  if (!freeze) return;
  const bool only_embeddings = freeze.part == Freeze::Part::embeddings;
  lowest_trained_ = only_embeddings ? 0 : freeze.part == Freeze::Part::layers ? freeze.layers : shape_.layers;
  BRIM_CHECK(lowest_trained_ <= shape_.layers &&
                 (lowest_trained_ == 0 || lowest_trained_ == shape_.layers || shape_.layer_groups == 0),
             "{} frozen layers of {} in {} groups", lowest_trained_, shape_.layers, shape_.layer_groups);
  const bool all_layers = lowest_trained_ == shape_.layers;
  bool below = true;  // parameters before the first layer's are shared by layers
  for (ParamSpec& p : list_.all()) {
    below &= p.layer < 0;
    const bool in_layers = p.layer >= 0 ? p.layer < lowest_trained_ : below || all_layers;
    p.frozen = !p.head && (only_embeddings ? p.embeds : in_layers);
  }
}

void Architecture::apply_lora() {
  if (!shape_.lora) return;
  lowest_trained_ = shape_.layers;
  for (ParamSpec& p : list_.all()) p.frozen = !p.head;
  const auto matrices = static_cast<int64_t>(list_.specs().size());
  for (int64_t i = 0; i < matrices; ++i)
    if (can_adapt(list_.at(i))) adapt(i);
}

void Architecture::adapt(int64_t index) {
  const hub::LoraConfig& lora = shape_.lora;
  const ParamSpec matrix = list_.at(index);  // a copy: the list grows
  const int64_t rows = matrix.rows / static_cast<int64_t>(matrix.names.size());
  LoraParams params;
  std::vector<std::string> modules, of_a;
  for (size_t k = 0; k < matrix.names.size(); ++k) {
    const std::string module = module_of(matrix.names[k]);
    if (!lora.adapts(module)) continue;
    modules.push_back(module);
    of_a.push_back(module + ".lora_A.weight");
    params.parts.push_back({-1, static_cast<int64_t>(k) * rows, static_cast<int64_t>(k + 1) * rows});
  }
  if (modules.empty()) return;
  params.rank = lora.rank_of(modules[0]);
  params.scale = lora.scale_of(modules[0]);
  for (const std::string& module : modules)
    BRIM_CHECK(lora.rank_of(module) == params.rank && lora.scale_of(module) == params.scale,
               "{} and {} are one matrix with different adapters", modules[0], module);
  const auto count = static_cast<int64_t>(modules.size());
  params.a = list_.adapter(matrix, of_a, count * params.rank, matrix.cols, ParamSpec::Adapter::a);
  for (size_t k = 0; k < modules.size(); ++k) {
    LoraParams::Part& part = params.parts[k];
    part.b = list_.adapter(matrix, {modules[k] + ".lora_B.weight"}, rows, params.rank, ParamSpec::Adapter::b);
    if (matrix.split <= part.begin || matrix.split >= part.end) continue;
    ParamSpec& b = list_.at(part.b);  // rows are also multiplied separately, like those of the matrix
    b.split = matrix.split - part.begin;
    b.whole_scored = matrix.whole_scored;
    b.whole_trained = matrix.whole_trained;
  }
  list_.at(index).lora = std::move(params);
  lowest_trained_ = std::min(lowest_trained_, matrix.layer < 0 ? 0 : matrix.layer);
}

}  // namespace brim::model
