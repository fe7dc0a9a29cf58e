// SPDX-License-Identifier: Apache-2.0
// Splits a text into words like Python's re.findall(r"\w+(?:[-_]\w+)*|\S", text), as GLiNER does, in linear time.
#pragma once
#include <cstdint>
#include <string_view>
#include <vector>

namespace brim::text {

struct SplitWord {
  size_t begin, end;    // bytes of the text
  int32_t first, last;  // the same in code points
};

// Replaces `words` by those of `text`, which is valid UTF-8.
void split_words(std::string_view text, std::vector<SplitWord>& words);

}  // namespace brim::text
