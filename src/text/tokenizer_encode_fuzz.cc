// SPDX-License-Identifier: Apache-2.0
// Fuzz target: arbitrary bytes as a text, for the small tokenizers in tests/data/tokenizers. encode and encode_ids must
// give the same ids, with offsets inside the text and ids inside the vocabulary.
#include <cstdlib>
#include <memory>

#include "base/utf8.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const auto tokenizers = [] {
    std::vector<std::unique_ptr<brim::text::Tokenizer>> loaded;
    for (const char* name : {"bert_uncased", "bert_cased", "bert_plain", "byte_bpe", "byte_bpe_strings",
                             "byte_bpe_llama3", "bpe_bytes", "added_tokens", "normalizer_nfkc", "normalizer_nmt"}) {
      loaded.push_back(brim::text::Tokenizer::load(std::string(BRIM_SOURCE_DIR "/tests/data/tokenizers/") + name));
    }
    return loaded;
  }();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto length = static_cast<int32_t>(brim::count_code_points(brim::replace_invalid_utf8(text)));
  for (const auto& tokenizer : tokenizers) {
    const brim::text::Encoding full = tokenizer->encode(text);
    std::vector<int32_t> ids;
    tokenizer->encode_ids(text, ids);
    if (ids != full.ids || full.tokens.size() != ids.size() || full.offsets.size() != ids.size()) std::abort();
    for (size_t i = 0; i < ids.size(); ++i) {
      const auto& [begin, end] = full.offsets[i];
      if (ids[i] < 0 || ids[i] >= tokenizer->vocab_size() || begin < 0 || begin > end || end > length) std::abort();
    }
  }
  return 0;
}
