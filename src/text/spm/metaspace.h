// SPDX-License-Identifier: Apache-2.0
// Pre-tokenizer of SentencePiece models: replaces spaces by a visible mark (U+2581), inserts one before the text, and
// starts a new piece at each mark.
#pragma once
#include <memory>

#include "text/pipeline.h"

namespace brim::text {

enum class PrependScheme {
  always,  // before every piece that does not start with the mark
  first,   // only before the piece at the start of the input
  never,
};

struct MetaspaceConfig {
  char32_t replacement = 0x2581;
  PrependScheme prepend = PrependScheme::always;
  bool split = true;
};

std::unique_ptr<PreTokenizer> make_metaspace(const MetaspaceConfig& config);

}  // namespace brim::text
