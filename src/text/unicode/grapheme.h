// SPDX-License-Identifier: Apache-2.0
// Extended grapheme clusters (Unicode annex 29), of the Unicode version Hugging Face's tokenizers segment by: their
// Precompiled normalizer rewrites whole clusters, so its results hang on where these end.
#pragma once
#include <cstddef>
#include <string_view>

namespace brim::text {

// The end of the cluster that starts at text[at]; at < text.size(), text is valid UTF-8.
size_t grapheme_end(std::string_view text, size_t at);

bool joins_before(char32_t c);  // c belongs to the cluster of what stands before it
bool joins_after(char32_t c);   // c takes what stands after it into its cluster

}  // namespace brim::text
