// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: any bytes as a CoNLL file.
#include <cstdlib>

#include "base/error.h"
#include "io/conll.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    brim::ConllReader reader(brim::memory_source("fuzz", std::string(reinterpret_cast<const char*>(data), size)));
    brim::ConllSentence sentence;
    while (reader.next(sentence))
      if (sentence.tokens.empty() || sentence.tokens.size() != sentence.tags.size()) std::abort();
  } catch (const brim::Error& error) {
    if (error.code() != brim::ErrorCode::bad_data) std::abort();
  }
  return 0;
}
