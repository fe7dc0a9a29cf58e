// SPDX-License-Identifier: Apache-2.0
// Loads models and added tokens from tokenizer.json; the other components have their own factories.
// `padding` and `truncation` are ignored: the caller sets the length limit.
#include <map>

#include "base/log.h"
#include "text/components.h"
#include "text/hf/bpe.h"
#include "text/hf/json_stream.h"
#include "text/hf/wordpiece.h"
#include "text/json_reader.h"
#include "text/load.h"
#include "text/spm/unigram.h"

namespace brim::text {
namespace {

// Files written by early versions omit the model's type.
std::string model_type(const JsonValue& model, const TokenizerJson& json) {
  if (model.has("type")) return model.at("type").as_string();
  if (json.has_merges) return "BPE";
  return json.vocab_kind == TokenizerJson::VocabKind::scores ? "Unigram" : "WordPiece";
}

std::unique_ptr<TokenModel> make_model(const JsonValue& model, TokenizerJson& json) {
  const std::string type = model_type(model, json);
  const bool unigram = type == "Unigram";
  if (unigram ? json.scores.empty() : json.vocab.empty()) {
    fail(ErrorCode::bad_model, "{}: model.vocab has no tokens for a {} model", model.file().string(), type);
  }
  if (type == "WordPiece") {
    WordPieceConfig config;
    config.vocab = std::move(json.vocab);
    config.unk_token = model.get("unk_token", "[UNK]");
    config.continuing_subword_prefix = model.get("continuing_subword_prefix", "##");
    config.max_input_chars_per_word = model.get("max_input_chars_per_word", int64_t{100});
    return std::make_unique<WordPieceModel>(config, model.file());
  }
  if (type == "BPE") {
    if (!json.has_merges) fail(ErrorCode::bad_model, "{}: model.merges is missing", model.file().string());
    BpeConfig config;
    config.vocab = std::move(json.vocab);
    config.merges = std::move(json.merges);
    config.unk_token = model.get("unk_token", "");
    config.continuing_subword_prefix = model.get("continuing_subword_prefix", "");
    config.end_of_word_suffix = model.get("end_of_word_suffix", "");
    config.fuse_unk = model.get("fuse_unk", false);
    config.byte_fallback = model.get("byte_fallback", false);
    config.ignore_merges = model.get("ignore_merges", false);
    return make_bpe(config, model.file());
  }
  if (unigram) {
    UnigramConfig config;
    config.vocab = std::move(json.scores);
    const int64_t unk_id = model.get("unk_id", int64_t{-1});
    if (unk_id < -1 || unk_id > INT32_MAX) model.at("unk_id").fail("must be an index into the vocabulary");
    config.unk_id = static_cast<int32_t>(unk_id);
    config.byte_fallback = model.get("byte_fallback", false);
    return make_unigram(std::move(config), model.file().string() + ": model");
  }
  model.at("type").fail("unsupported model");
}

std::vector<AddedToken> read_added(const JsonValue& list) {
  list.expect_array();
  std::vector<AddedToken> out;
  std::map<int64_t, std::string> taken;
  for (size_t i = 0; i < list.size(); ++i) {
    const JsonValue json = list.at(i);
    AddedToken token = read_added_token(json, false);
    const int64_t id = json.at("id").as_int();
    if (id < 0 || id >= Vocab::kMostIds) json.at("id").fail("is not a token id");
    const auto [before, fresh] = taken.emplace(id, token.content);
    if (!fresh && before->second != token.content) {
      json.at("id").fail(fmt::format("duplicate id of \"{}\" and \"{}\"", before->second, token.content));
    }
    token.id = static_cast<int32_t>(id);
    out.push_back(std::move(token));
  }
  return out;
}

}  // namespace

// As upstream: a token of the model keeps the model's id, any other gets the next free one. The id in the file should
// match that.
void number_added_tokens(std::vector<AddedToken>& added, const TokenModel& model, const std::filesystem::path& file) {
  int32_t next = model.vocab_size();
  std::map<std::string, int32_t> seen;
  std::vector<AddedToken> out;
  for (AddedToken& token : added) {
    if (token.content.empty()) continue;
    const int32_t declared = token.id;
    token.id = model.id(token.content);
    if (token.id < 0) {
      const auto [at, fresh] = seen.emplace(token.content, next);
      token.id = at->second;
      if (fresh) ++next;
    }
    if (declared >= 0 && declared != token.id) {
      log_warning("{}: the added token \"{}\" has id {}; using {}", file.string(), token.content, declared, token.id);
    }
    std::erase_if(out, [&](const AddedToken& t) { return t.content == token.content; });
    out.push_back(std::move(token));
  }
  added = std::move(out);
}

SpecialIds find_special_ids(const TokenizerConfig& config, const std::function<int32_t(const std::string&)>& id) {
  auto find = [&](const std::optional<AddedToken>& role, std::initializer_list<const char*> usual) {
    if (role) return id(role->content);
    for (const char* name : usual) {
      if (const int32_t found = id(name); found >= 0) return found;
    }
    return -1;
  };
  SpecialIds out;
  out.cls = find(config.cls, {"[CLS]", "<s>"});
  out.sep = find(config.sep, {"[SEP]", "</s>"});
  out.pad = find(config.pad, {"[PAD]", "<pad>"});
  out.unk = find(config.unk, {"[UNK]", "<unk>"});
  out.mask = find(config.mask, {"[MASK]", "<mask>"});
  out.bos = find(config.bos, {"<s>"});
  out.eos = find(config.eos, {"</s>"});
  return out;
}

std::unique_ptr<Tokenizer> parse_tokenizer_json(std::string_view text, const std::filesystem::path& file,
                                                const TokenizerConfig& config) {
  TokenizerJson content = read_tokenizer_json(text, file);
  const JsonValue json(content.tree, file, "");
  json.expect_object();
  PipelineParts parts;
  parts.model = make_model(json.at("model"), content);
  if (json.has("normalizer")) parts.normalizer = make_normalizer(json.at("normalizer"));
  if (json.has("pre_tokenizer")) parts.pre_tokenizer = make_pre_tokenizer(json.at("pre_tokenizer"));
  if (json.has("post_processor")) parts.post_processor = make_post_processor(json.at("post_processor"));
  if (json.has("decoder")) parts.decoder = make_decoder(json.at("decoder"));
  if (json.has("added_tokens")) parts.added = read_added(json.at("added_tokens"));
  number_added_tokens(parts.added, *parts.model, file);
  parts.model_max_length = config.model_max_length;
  parts.takes_types = config.takes_types;
  parts.special = find_special_ids(config, [&](const std::string& token) {
    for (const AddedToken& t : parts.added) {
      if (t.content == token) return t.id;
    }
    return parts.model->id(token);
  });
  return make_pipeline_tokenizer(std::move(parts), file);
}

}  // namespace brim::text
