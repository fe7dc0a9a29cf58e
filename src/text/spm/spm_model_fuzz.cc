// SPDX-License-Identifier: Apache-2.0
// Fuzz target: arbitrary bytes as a SentencePiece model, loaded as XLM-RoBERTa and as ALBERT. An accepted model must
// encode any text, identically in encode and encode_ids.
#include <cstdlib>

#include "base/error.h"
#include "text/spm/spm_tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  using Family = brim::text::SpmFamily;
  for (const auto family : {Family::xlm_roberta, Family::albert, Family::deberta_v2}) {
    try {
      const auto spm = brim::text::parse_spm_model(bytes, "fuzz.model");
      const auto tokenizer = brim::text::make_spm_tokenizer(spm, family, {}, "fuzz.model");
      for (const std::string_view text :
           {"", "the quick  fox\n<mask> foo bar", "a\xFF e\xCC\x81 \xEF\xB8\x8F\xE2\x96\x81"}) {
        std::vector<int32_t> ids;
        tokenizer->encode_ids(text, ids);
        const brim::text::Encoding full = tokenizer->encode(text);
        if (full.ids != ids || full.tokens.size() != ids.size() || full.offsets.size() != ids.size()) std::abort();
      }
    } catch (const brim::Error& error) {
      if (error.code() != brim::ErrorCode::bad_model) std::abort();
    }
  }
  return 0;
}
