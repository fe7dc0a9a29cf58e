// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizer of SentencePiece models: spaces become a visible mark (U+2581), one is put before the text, and
// each mark starts a new piece.
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
