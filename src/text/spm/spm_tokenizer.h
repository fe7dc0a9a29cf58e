// SPDX-License-Identifier: Apache-2.0
// A SentencePiece model as a whole tokenizer, see spm_tokenizer.cc.
#pragma once
#include <filesystem>
#include <memory>

#include "text/components.h"
#include "text/spm/spm_model.h"

namespace brim::text {

enum class SpmFamily { xlm_roberta, albert };

// `model_file` is named in messages.
std::unique_ptr<Tokenizer> make_spm_tokenizer(const SpmModel& spm, SpmFamily family, const TokenizerConfig& config,
                                              const std::filesystem::path& model_file);

}  // namespace brim::text
