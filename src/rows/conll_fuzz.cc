// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: parses arbitrary bytes as tagged words in both formats.
#include <cstdlib>

#include "base/error.h"
#include "rows/conll.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  brim::rows::looks_like_conll(bytes);
  for (const auto format : {brim::rows::TaggedFormat::conll, brim::rows::TaggedFormat::jsonl}) try {
      brim::rows::TaggedReader reader(brim::io::memory_source("fuzz", bytes), format);
      brim::rows::TaggedWords sentence;
      while (reader.next(sentence))
        if (sentence.words.empty() || sentence.words.size() != sentence.tags.size()) std::abort();
    } catch (const brim::Error& error) {
      if (error.code() != brim::ErrorCode::bad_data) std::abort();
    }
  return 0;
}
