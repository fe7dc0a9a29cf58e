// SPDX-License-Identifier: Apache-2.0
// Extended grapheme clusters (Unicode annex 29), for the Unicode version used by Hugging Face's tokenizers: their
// Precompiled normalizer rewrites whole clusters, so its results depend on the boundaries.
#pragma once
#include <cstddef>
#include <string_view>

namespace brim::text {

// End of the cluster that starts at text[at]; at < text.size(), text is valid UTF-8.
size_t grapheme_end(std::string_view text, size_t at);

bool joins_before(char32_t c);  // c belongs to the cluster of the preceding character
bool joins_after(char32_t c);   // c takes the following character into its cluster

}  // namespace brim::text
