// SPDX-License-Identifier: Apache-2.0
// Merges for SentencePiece BPE models, which store only pieces and scores. Like Hugging Face's converter: all splits of
// a piece into two pieces, best score first. The result is an ordinary BPE model over code points.
#pragma once
#include <string>
#include <utility>
#include <vector>

#include "text/hf/bpe.h"
#include "text/spm/spm_model.h"

namespace brim::text {

// `vocab` is the tokenizer's vocabulary with scores, by id; both halves of a split must be pieces of `model`.
std::vector<std::pair<std::string, std::string>> spm_merges(const SpmModel& model,
                                                            const std::vector<std::pair<std::string, double>>& vocab);

BpeConfig spm_bpe_config(const SpmModel& model, const std::vector<std::pair<std::string, double>>& vocab);

}  // namespace brim::text
