// SPDX-License-Identifier: Apache-2.0
// Fuzz target: arbitrary bytes as bpe.codes and, after a zero byte, vocab.txt. Accepted files must produce valid ids.
#include <cstdlib>

#include "base/error.h"
#include "text/spm/fastbpe.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const size_t zero = std::min(bytes.size(), bytes.find('\0'));
  try {
    const brim::text::FastBpe bpe(bytes.substr(0, zero), "bpe.codes", bytes.substr(std::min(size, zero + 1)),
                                  "vocab.txt", {"<s>", "<pad>", "</s>", "<unk>"}, "<unk>");
    std::vector<int32_t> ids;
    bpe.tokenize("the quick\nfox abababababababababababababababababababababababab caf\xC3\xA9 @@ </w>", ids);
    for (const int32_t id : ids) {
      if (id < 0 || id >= bpe.vocab_size()) std::abort();
    }
  } catch (const brim::Error& error) {
    if (error.code() != brim::ErrorCode::bad_model) std::abort();
  }
  return 0;
}
