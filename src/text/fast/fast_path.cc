// SPDX-License-Identifier: Apache-2.0
#include "text/fast/fast_path.h"

#include "text/hf/bert_normalizer.h"
#include "text/hf/bpe.h"
#include "text/hf/pre_tokenizers.h"
#include "text/hf/wordpiece.h"

namespace brim::text {

std::unique_ptr<FastPath> make_fast_path(const PipelineParts& parts) {
  if (const auto* model = dynamic_cast<const WordPieceModel*>(parts.model.get())) {
    const auto* normalizer = dynamic_cast<const BertNormalizer*>(parts.normalizer.get());
    const auto* splitter = dynamic_cast<const BertPreTokenizer*>(parts.pre_tokenizer.get());
    if (normalizer != nullptr && splitter != nullptr) return make_bert_fast_path(*normalizer, *model);
  }
  if (const auto* model = dynamic_cast<const BpeModel*>(parts.model.get())) {
    const auto* splitter = dynamic_cast<const ByteLevelPreTokenizer*>(parts.pre_tokenizer.get());
    if (parts.normalizer == nullptr && splitter != nullptr && splitter->use_regex() && model->byte_level()) {
      return make_byte_bpe_fast_path(*model, splitter->add_prefix_space());
    }
  }
  return make_spm_fast_path(parts);
}

}  // namespace brim::text
