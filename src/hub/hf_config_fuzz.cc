// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: parses arbitrary bytes as config.json. Accepted files must survive rewriting and parsing.
#include <cstdlib>

#include "base/error.h"
#include "hub/hf_config.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const brim::hub::HfConfig config = brim::hub::parse_hf_config(text, "fuzz");
    if (config.hidden_size % config.num_heads != 0 || config.max_tokens() < 1) std::abort();
    if (config.num_labels != static_cast<int>(config.label2id.size())) std::abort();
    brim::hub::ConfigUpdate update;
    update.labels = config.id2label;
    update.head = brim::hub::HeadKind::token;
    brim::hub::parse_hf_config(brim::hub::updated_config(config, update), "fuzz");
  } catch (const brim::Error& error) {
    if (error.code() != brim::ErrorCode::bad_model) std::abort();
  }
  return 0;
}
