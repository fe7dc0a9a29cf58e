// SPDX-License-Identifier: Apache-2.0
// Tokenizer for a SentencePiece model, see spm_tokenizer.cc.
#pragma once
#include <filesystem>
#include <memory>

#include "text/components.h"
#include "text/spm/spm_model.h"

namespace brim::text {

enum class SpmFamily { xlm_roberta, albert, deberta_v2 };

// `model_file` is used in messages.
std::unique_ptr<Tokenizer> make_spm_tokenizer(const SpmModel& spm, SpmFamily family, const TokenizerConfig& config,
                                              const std::filesystem::path& model_file);

}  // namespace brim::text
