// SPDX-License-Identifier: Apache-2.0
#include "text/spm/spm_model.h"

#include <gtest/gtest.h>

#include <limits>

#include "base/error.h"
#include "text/spm/spm_testing.h"

namespace brim::text {
namespace {

// Error message for a bad file; empty if it is accepted.
std::string error_message(const std::string& bytes) {
  try {
    parse_spm_model(bytes, "x.model");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::bad_model);
    EXPECT_EQ(std::string(error.what()).rfind("x.model: byte ", 0), 0u) << error.what();
    return error.what();
  }
  return "";
}

#define EXPECT_ERROR_HAS(bytes, part) \
  EXPECT_NE(error_message(bytes).find(part), std::string::npos) << error_message(bytes)

const std::string kUnknown = spm_piece_proto("<unk>", 0, SpmPieceType::unknown);

TEST(SpmModel, ReadsPiecesAndSettings) {
  const std::string trainer = proto_number(3, 2) + proto_number(4, 3) + proto_number(35, 1) + proto_number(40, 1) +
                              proto_number(41, static_cast<uint64_t>(-1)) + proto_bytes(45, "[?]");
  const std::string normalizer = proto_bytes(1, "nmt") + proto_bytes(2, std::string("\x00\x01", 2)) +
                                 proto_number(3, 0) + proto_number(4, 0) + proto_number(5, 1);
  const SpmModel model =
      parse_spm_model(spm_piece_proto("\u2581a", -1.5f) + spm_piece_proto("[?]", 0, SpmPieceType::unknown) +
                          proto_bytes(2, trainer) + spm_piece_proto("<0x00>", 0, SpmPieceType::byte) +
                          proto_bytes(3, normalizer) + proto_bytes(200, "unknown field") + proto_number(201, 7) +
                          proto_float(202, 1) + proto_varint(203 << 3 | 1) + "12345678",
                      "x.model");
  ASSERT_EQ(model.pieces.size(), 3u);
  EXPECT_EQ(model.pieces[0].text, "\u2581a");
  EXPECT_EQ(model.pieces[0].score, -1.5f);
  EXPECT_EQ(model.pieces[0].type, SpmPieceType::normal);
  EXPECT_EQ(model.pieces[1].type, SpmPieceType::unknown);
  EXPECT_EQ(model.pieces[2].type, SpmPieceType::byte);
  EXPECT_EQ(model.algorithm, SpmAlgorithm::bpe);
  EXPECT_TRUE(model.byte_fallback);
  EXPECT_EQ(model.unk_id, 1);
  EXPECT_EQ(model.bos_id, -1);
  EXPECT_EQ(model.eos_id, 2);
  EXPECT_EQ(model.unk_piece, "[?]");
  EXPECT_EQ(model.precompiled_charsmap, std::string("\x00\x01", 2));
  EXPECT_FALSE(model.add_dummy_prefix);
  EXPECT_FALSE(model.remove_extra_whitespaces);
  EXPECT_TRUE(model.escape_whitespaces);
}

TEST(SpmModel, DefaultsMatchSentencePiece) {
  const SpmModel model = parse_spm_model(kUnknown, "x.model");
  EXPECT_EQ(model.algorithm, SpmAlgorithm::unigram);
  EXPECT_EQ(model.unk_id, 0);
  EXPECT_EQ(model.bos_piece, "<s>");
  EXPECT_TRUE(model.add_dummy_prefix && model.remove_extra_whitespaces && model.escape_whitespaces);
  EXPECT_FALSE(model.byte_fallback);
}

TEST(SpmModel, TruncationIsAnErrorOrAShorterModel) {
  const std::string bytes = kUnknown + spm_piece_proto("ab", -1) + proto_bytes(2, proto_number(3, 1));
  for (size_t size = 0; size < bytes.size(); ++size) {
    const std::string cut = bytes.substr(0, size);
    if (size == kUnknown.size() || size == kUnknown.size() + spm_piece_proto("ab", -1).size()) {
      EXPECT_EQ(error_message(cut), "");
    } else {
      EXPECT_NE(error_message(cut), "");
    }
  }
}

TEST(SpmModel, ReportsInvalidFields) {
  EXPECT_ERROR_HAS("", "no pieces");
  EXPECT_ERROR_HAS(proto_varint(1 << 3 | 2) + proto_varint(1000) + "abc", "pieces requires 1000 bytes, but 3 are left");
  EXPECT_ERROR_HAS(proto_varint(1 << 3 | 2) + proto_varint(UINT64_MAX), "18446744073709551615 bytes, but 0 are left");
  EXPECT_ERROR_HAS(std::string(11, '\xFF'), "longer than ten bytes");
  EXPECT_ERROR_HAS(kUnknown + proto_varint(7 << 3 | 3), "wire type 3");
  EXPECT_ERROR_HAS(kUnknown + std::string(1, '\0'), "field number 0");
  EXPECT_ERROR_HAS(kUnknown + spm_piece_proto("", 0), "piece 1 is empty");
  EXPECT_ERROR_HAS(kUnknown + spm_piece_proto("a", 0) + spm_piece_proto("a", 0), "duplicate piece 2 (a)");
  EXPECT_ERROR_HAS(kUnknown + spm_piece_proto("\xC3", 0), "piece is not UTF-8");
  EXPECT_ERROR_HAS(kUnknown + spm_piece_proto("a", std::numeric_limits<float>::quiet_NaN()), "has score nan");
  EXPECT_ERROR_HAS(kUnknown + spm_piece_proto("a", 0, static_cast<SpmPieceType>(9)), "type 9");
  EXPECT_ERROR_HAS(kUnknown + proto_bytes(2, proto_number(40, 5)), "unk_id is 5, must be below 1");
  EXPECT_ERROR_HAS(kUnknown + proto_bytes(2, proto_number(3, 0)), "model_type is 0");
  EXPECT_ERROR_HAS(kUnknown + proto_bytes(2, proto_bytes(3, "x")), "wire type 2, expected 0");
  EXPECT_ERROR_HAS("{\"version\": \"1.0\"}", "byte 0");
}

TEST(SpmModel, NamesTiktokenVocabularies) {
  const auto message = [](const std::string& bytes) {
    try {
      parse_spm_model(bytes, "tokenizer.model");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  EXPECT_NE(message("IQ== 0\nIg== 1\n").find("tokenizer.model: is a tiktoken vocabulary"), std::string::npos);
  EXPECT_NE(message("IQ== 0").find("tiktoken"), std::string::npos);
  for (const char* other : {"IQ== ", " 0\n", "IQ==\n", "{\"a\": 0}", "two words\n"})
    EXPECT_NE(message(other).find("not a SentencePiece model"), std::string::npos) << other;
}

}  // namespace
}  // namespace brim::text
