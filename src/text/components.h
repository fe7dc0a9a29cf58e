// SPDX-License-Identifier: Apache-2.0
// Where each part named in tokenizer.json is made. A part is one file with one factory; an unknown name or key fails
// with Error(bad_model) through JsonValue::fail, never silently.
#pragma once
#include <filesystem>
#include <memory>

#include "text/pipeline.h"

namespace brim::text {

class JsonValue;

std::unique_ptr<Normalizer> make_normalizer(const JsonValue& json);         // dispatches on "type"
std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonValue& json);    // dispatches on "type"
std::unique_ptr<PostProcessor> make_post_processor(const JsonValue& json);  // dispatches on "type"

std::unique_ptr<Decoder> make_decoder(const JsonValue& json);  // dispatches on "type"
std::unique_ptr<Decoder> make_wordpiece_decoder();             // as BERT's
std::unique_ptr<Decoder> make_byte_level_decoder();            // as RoBERTa's

// Pairs: BERT's [CLS] a [SEP] b [SEP], b of type 1, or RoBERTa's <s> a </s></s> b </s>, all of type 0.
enum class PairStyle : uint8_t { bert, roberta };
PairTemplate make_pair_template(PairStyle style, int32_t cls, int32_t sep);

// Post-processors without a tokenizer.json: (token, id) before and after a text; offsets without spaces; several in
// turn.
std::unique_ptr<PostProcessor> make_template(const std::pair<std::string, int32_t>& cls,
                                             const std::pair<std::string, int32_t>& sep, PairStyle style);
std::unique_ptr<PostProcessor> make_trim_offsets(bool add_prefix_space);
std::unique_ptr<PostProcessor> make_post_sequence(std::vector<std::unique_ptr<PostProcessor>> parts);

std::unique_ptr<Normalizer> make_precompiled(const JsonValue& json);  // charsmap.cc
std::unique_ptr<PreTokenizer> make_metaspace(const JsonValue& json);  // metaspace.cc

// Directories without tokenizer.json.
std::unique_ptr<Tokenizer> load_sentencepiece(const std::filesystem::path& dir,
                                              const std::filesystem::path& model_file);  // spm_tokenizer.cc
std::unique_ptr<Tokenizer> load_fastbpe(const std::filesystem::path& dir);               // fastbpe.cc

// What tokenizer_config.json, special_tokens_map.json and added_tokens.json say beside a vocabulary.
struct TokenizerConfig {
  std::filesystem::path file;  // tokenizer_config.json; named in messages, may not exist
  std::optional<bool> do_lower_case, strip_accents, tokenize_chinese_chars, add_prefix_space, trim_offsets;
  std::optional<int64_t> model_max_length;
  std::string tokenizer_class;
  bool takes_types = true;  // false: model_input_names is there, without token_type_ids
  // Content of each role; absent: the family's default.
  std::optional<AddedToken> cls, sep, pad, unk, mask, bos, eos;
  std::vector<AddedToken> added;  // added_tokens_decoder / added_tokens.json, with ids
};
TokenizerConfig read_tokenizer_config(const std::filesystem::path& dir);

}  // namespace brim::text
