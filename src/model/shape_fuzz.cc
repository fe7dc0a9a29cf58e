// SPDX-License-Identifier: Apache-2.0
// Fuzz target: parses arbitrary bytes as config.json. Accepted input must give a list of parameters.
#include <cstdlib>

#include "base/error.h"
#include "model/params.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using brim::hub::HeadKind;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const brim::hub::HfConfig config = brim::hub::parse_hf_config(text, "fuzz");
    for (const HeadKind head : {HeadKind::encoder, HeadKind::sequence, HeadKind::token}) {
      const brim::model::ModelShape shape = brim::model::shape_of(config, head);
      if (shape.layers <= 64 && shape.layer_groups <= 64 && param_count(shape) <= 0) std::abort();
    }
  } catch (const brim::Error& error) {
    if (error.code() != brim::ErrorCode::bad_model) std::abort();
  }
  return 0;
}
