// SPDX-License-Identifier: Apache-2.0
// Fuzz target: arbitrary bytes as a precompiled character map. An accepted map must rewrite any text to valid UTF-8,
// identically with and without origins.
#include <cstdlib>

#include "base/error.h"
#include "base/utf8.h"
#include "text/spm/charsmap.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view blob(reinterpret_cast<const char*>(data), size);
  try {
    const auto normalizer = brim::text::make_precompiled(blob, "fuzz.model");
    std::string every;  // each byte at the start of a code point
    for (char32_t c = 1; c < 0x110000; c = c < 0x800 ? c + 7 : c + 0x355) {
      if (c < 0xD800 || c > 0xDFFF) brim::append_utf8(every, c);
    }
    for (const std::string_view text : {std::string_view("a b\r\ne\xCC\x81\xCC\x81"), std::string_view(every)}) {
      brim::text::NormalizedText plain, tracked;
      plain.reset(text, false);
      tracked.reset(text, true);
      normalizer->apply(plain);
      normalizer->apply(tracked);
      if (plain.text != tracked.text || tracked.spans.size() != tracked.text.size()) std::abort();
      if (!brim::is_valid_utf8(plain.text)) std::abort();
    }
  } catch (const brim::Error& error) {
    if (error.code() != brim::ErrorCode::bad_model) std::abort();
  }
  return 0;
}
