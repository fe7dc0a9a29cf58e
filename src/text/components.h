// SPDX-License-Identifier: Apache-2.0
// Factories for the components named in tokenizer.json, one file per component.
// Unknown names and keys fail with Error(bad_model) through JsonValue::fail; none is silently ignored.
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
std::unique_ptr<Decoder> make_wordpiece_decoder();             // BERT
std::unique_ptr<Decoder> make_byte_level_decoder();            // RoBERTa

// Pair formats: BERT [CLS] a [SEP] b [SEP] with token type 1 for b; RoBERTa <s> a </s></s> b </s>, all type 0.
enum class PairStyle : uint8_t { bert, roberta };
PairTemplate make_pair_template(PairStyle style, int32_t cls, int32_t sep);

// Post-processors for directories without tokenizer.json. cls and sep are (token, id) pairs placed before and after a
// text.
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

// Settings from tokenizer_config.json, special_tokens_map.json and added_tokens.json.
struct TokenizerConfig {
  std::filesystem::path file;  // tokenizer_config.json; used in messages, may not exist
  std::optional<bool> do_lower_case, strip_accents, tokenize_chinese_chars, add_prefix_space, trim_offsets;
  std::optional<int64_t> model_max_length;
  std::string tokenizer_class;
  bool takes_types = true;  // false if model_input_names exists and lacks token_type_ids
  // Token for each role; nullopt selects the family's default.
  std::optional<AddedToken> cls, sep, pad, unk, mask, bos, eos;
  std::vector<AddedToken> added;  // added_tokens_decoder / added_tokens.json, with ids
};
TokenizerConfig read_tokenizer_config(const std::filesystem::path& dir);

}  // namespace brim::text
