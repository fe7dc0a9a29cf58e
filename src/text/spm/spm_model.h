// SPDX-License-Identifier: Apache-2.0
// Reader for SentencePiece *.model files (protobuf): pieces, and the trainer and normalizer settings a tokenizer needs.
// Unlisted fields are skipped.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

namespace brim::text {

enum class SpmPieceType { normal = 1, unknown = 2, control = 3, user_defined = 4, unused = 5, byte = 6 };
enum class SpmAlgorithm { unigram = 1, bpe = 2, word = 3, character = 4 };

struct SpmPiece {
  std::string text;
  float score = 0;
  SpmPieceType type = SpmPieceType::normal;
};

struct SpmModel {
  std::vector<SpmPiece> pieces;  // by id, distinct and never empty

  // Trainer settings.
  SpmAlgorithm algorithm = SpmAlgorithm::unigram;
  bool byte_fallback = false;
  int32_t unk_id = 0, bos_id = 1, eos_id = 2, pad_id = -1;  // -1: none
  std::string unk_piece = "<unk>", bos_piece = "<s>", eos_piece = "</s>", pad_piece = "<pad>";

  // Normalizer settings.
  std::string precompiled_charsmap;
  bool add_dummy_prefix = true, remove_extra_whitespaces = true, escape_whitespaces = true;
};

// Throws Error(bad_model) that names `file`, the byte and the value if the message is truncated, a length is invalid, a
// piece is empty, repeated or not UTF-8, or a score is not a number.
SpmModel parse_spm_model(std::string_view bytes, const std::filesystem::path& file);
SpmModel read_spm_model(const std::filesystem::path& file);

}  // namespace brim::text
