// SPDX-License-Identifier: Apache-2.0
// BERT's normalizer: removes control characters, isolates CJK, strips accents, lowercases. Its options are public
// because the WordPiece fast path does the same work while splitting words.
#pragma once
#include "text/pipeline.h"

namespace brim::text {

class BertNormalizer : public Normalizer {
 public:
  struct Options {
    bool clean_text = true, handle_chinese_chars = true, strip_accents = true, lowercase = true;
  };
  explicit BertNormalizer(const Options& options) : options_(options) {}
  void apply(NormalizedText& text) const override;
  const Options& options() const { return options_; }

 private:
  Options options_;
};

}  // namespace brim::text
