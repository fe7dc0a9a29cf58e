// SPDX-License-Identifier: Apache-2.0
// Fuzz target: request bodies. Accepted bodies must equal the JSON library's result; rejected ones must have a reason.
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <string_view>

#include "serve/answers.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const nlohmann::json parsed = brim::serve::parse_body(text);
    if (parsed != nlohmann::json::parse(text)) std::abort();
  } catch (const brim::serve::Refusal& refusal) {
    if (refusal.message.empty() || (refusal.status != 400 && refusal.status != 422)) std::abort();
    if (refusal.status == 400 && nlohmann::json::accept(text)) std::abort();
  }
  return 0;
}
