// SPDX-License-Identifier: Apache-2.0
// Fuzz target: arbitrary bytes as tokenizer.json. An accepted file must encode any text to valid ids, identically in
// encode and encode_ids.
#include <cstdlib>

#include "base/error.h"
#include "text/load.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  try {
    const auto tokenizer = brim::text::parse_tokenizer_json(text, "fuzz/tokenizer.json", {});
    for (const std::string_view input :
         {"", "Hello, the caf\xC3\xA9 [MASK] <mask>'s 12", "a\xFF\x80 \xE4\xB8\xAD\xE2\x80\x8D"}) {
      std::vector<int32_t> ids;
      tokenizer->encode_ids(input, ids);
      const brim::text::Encoding full = tokenizer->encode(input);
      if (full.ids != ids || full.tokens.size() != ids.size() || full.offsets.size() != ids.size()) std::abort();
      for (const int32_t id : ids) {
        if (id < 0 || id >= tokenizer->vocab_size()) std::abort();
      }
    }
  } catch (const brim::Error& error) {
    if (error.code() != brim::ErrorCode::bad_model) std::abort();
  }
  return 0;
}
