// SPDX-License-Identifier: Apache-2.0
#include "model/architecture.h"

namespace brim::model {

const FamilyEntry& family_entry(hub::Family family) {
  static const FamilyEntry all[] = {
#define BRIM_FAMILY(name) name##_family(),
#include "hub/families.inc"
  };
  return all[static_cast<size_t>(family)];
}

std::unique_ptr<Architecture> make_architecture(const ModelShape& shape) {
  return family_entry(shape.family).make(shape);
}

}  // namespace brim::model
