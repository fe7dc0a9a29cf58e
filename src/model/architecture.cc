// SPDX-License-Identifier: Apache-2.0
#include "model/architecture.h"

#include "base/error.h"

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

}  // namespace brim::model
