// SPDX-License-Identifier: Apache-2.0
// Builds a tokenizer from a directory with a SentencePiece *.model and no tokenizer.json: the ids, normalizers and
// surrounding tokens for XLM-RoBERTa, ALBERT and DeBERTa-v2 (also v3 and mDeBERTa), as in transformers' fast
// tokenizers. DeBERTa follows transformers 4, which applies the model's character map; version 5 drops it unless the
// directory has a tokenizer.json, so that "…" or a no-break space becomes an unknown token.
#include "text/spm/spm_tokenizer.h"

#include <algorithm>

#include "base/error.h"
#include "text/json_reader.h"
#include "text/load.h"
#include "text/spm/charsmap.h"
#include "text/spm/sp_bpe.h"
#include "text/spm/unigram.h"

namespace brim::text {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

using Family = SpmFamily;

class NormalizerChain final : public Normalizer {
 public:
  explicit NormalizerChain(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  void apply(NormalizedText& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }
  Traits traits() const override { return chain_traits(parts_); }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

bool has_piece(const SpmModel& model, std::string_view text) {
  return std::any_of(model.pieces.begin(), model.pieces.end(), [&](const SpmPiece& p) { return p.text == text; });
}

// The family is named in tokenizer_config.json or config.json, else detected from the pieces.
Family find_family(const fs::path& dir, const TokenizerConfig& config, const SpmModel& model) {
  std::string name = config.tokenizer_class;
  std::string source = fmt::format("{}: tokenizer_class", config.file.string());
  const fs::path file = dir / "config.json";
  if (name.empty() && fs::exists(file)) {
    const json raw = parse_json_file(file);
    name = JsonValue(raw, file, "").get("model_type", "");
    source = fmt::format("{}: model_type", file.string());
  }
  if (name.starts_with("XLMRoberta") || name.starts_with("xlm-roberta")) return Family::xlm_roberta;
  if (name.starts_with("Albert") || name == "albert") return Family::albert;
  if (name.starts_with("DebertaV2") || name == "deberta-v2") return Family::deberta_v2;
  if (!name.empty() && name != "PreTrainedTokenizerFast" && name != "TokenizersBackend") {
    fail(ErrorCode::bad_model,
         "{} is {}: a *.model file is supported only for XLM-RoBERTa, ALBERT and DeBERTa-v2; save the tokenizer with "
         "transformers to get a tokenizer.json",
         source, name);
  }
  if (!has_piece(model, "[CLS]") || !has_piece(model, "[SEP]")) return Family::xlm_roberta;
  return has_piece(model, "[PAD]") ? Family::deberta_v2 : Family::albert;
}

AddedToken role(const std::optional<AddedToken>& configured, const char* usual) {
  AddedToken token = configured.value_or(AddedToken());
  if (!configured) {
    token.content = usual;
    token.special = true;
  }
  return token;
}

struct Roles {
  AddedToken bos, eos, unk, sep, pad, cls, mask;
};

Roles find_roles(Family family, const TokenizerConfig& config) {
  const bool xlmr = family == Family::xlm_roberta, deberta = family == Family::deberta_v2;
  Roles roles = {.bos = role(config.bos, xlmr ? "<s>" : "[CLS]"),
                 .eos = role(config.eos, xlmr ? "</s>" : "[SEP]"),
                 .unk = role(config.unk, deberta ? "[UNK]" : "<unk>"),
                 .sep = role(config.sep, xlmr ? "</s>" : "[SEP]"),
                 .pad = role(config.pad, deberta ? "[PAD]" : "<pad>"),
                 .cls = role(config.cls, xlmr ? "<s>" : "[CLS]"),
                 .mask = role(config.mask, xlmr ? "<mask>" : "[MASK]")};
  const auto is_unk = [&](const AddedToken& token) { return token.content == roles.unk.content; };
  if (deberta && std::none_of(config.added.begin(), config.added.end(), is_unk)) roles.unk.normalized = true;
  return roles;
}

// XLM-RoBERTa uses fairseq's ids: four special tokens, then the pieces from the fourth on, <mask> last.
std::vector<std::pair<std::string, double>> make_vocab(Family family, const SpmModel& model, const Roles& roles) {
  std::vector<std::pair<std::string, double>> vocab;
  size_t first = 0;
  if (family == Family::xlm_roberta) {
    for (const AddedToken* token : {&roles.bos, &roles.pad, &roles.eos, &roles.unk})
      vocab.emplace_back(token->content, 0);
    first = 3;
  }
  for (size_t i = first; i < model.pieces.size(); ++i) vocab.emplace_back(model.pieces[i].text, model.pieces[i].score);
  if (family == Family::xlm_roberta) vocab.emplace_back(roles.mask.content, 0);
  return vocab;
}

std::unique_ptr<Normalizer> make_chain(const json& before, const SpmModel& model, const json& after,
                                       const fs::path& file) {
  std::vector<std::unique_ptr<Normalizer>> parts;
  for (const json& part : before) parts.push_back(make_normalizer(JsonValue(part, file, "normalizer")));
  if (!model.precompiled_charsmap.empty()) parts.push_back(make_precompiled(model.precompiled_charsmap, file.string()));
  for (const json& part : after) parts.push_back(make_normalizer(JsonValue(part, file, "normalizer")));
  return std::make_unique<NormalizerChain>(std::move(parts));
}

// A flag of tokenizer_config.json that only one family has; false if missing.
bool family_flag(const TokenizerConfig& config, const char* key) {
  if (!fs::exists(config.file)) return false;
  const json raw = parse_json_file(config.file);
  return JsonValue(raw, config.file, "").get(key, false);
}

// Normalization in AlbertTokenizer before the character map.
json albert_normalizers(const TokenizerConfig& config) {
  json list = json::array({{{"type", "Replace"}, {"pattern", {{"String", "``"}}}, {"content", "\""}},
                           {{"type", "Replace"}, {"pattern", {{"String", "''"}}}, {"content", "\""}}});
  if (!family_flag(config, "keep_accents")) {
    list.push_back({{"type", "NFKD"}});
    list.push_back({{"type", "StripAccents"}});
  }
  if (config.do_lower_case.value_or(true)) list.push_back({{"type", "Lowercase"}});
  return list;
}

// Normalization in DebertaV2Tokenizer before the character map.
json deberta_normalizers(const TokenizerConfig& config) {
  json list = json::array();
  if (config.do_lower_case.value_or(false)) list.push_back({{"type", "Lowercase"}});
  list.push_back({{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}});
  return list;
}

json join_spaces(const char* content) {
  return {{"type", "Replace"}, {"pattern", {{"Regex", " {2,}"}}}, {"content", content}};
}

// Model, normalizer and pre-tokenizer of a Unigram model. `mark` is the Metaspace step.
void set_unigram(PipelineParts& parts, const SpmModel& spm, const std::vector<std::pair<std::string, double>>& vocab,
                 Family family, const TokenizerConfig& config, const json& mark, const fs::path& file) {
  int32_t unk_id = 3;
  json before = json::array(), after = json::array(), split = json::array();
  switch (family) {
    case Family::xlm_roberta:
      split.push_back({{"type", "WhitespaceSplit"}});
      break;
    case Family::albert:
      unk_id = 1;
      before = albert_normalizers(config);
      split.push_back({{"type", "WhitespaceSplit"}});
      break;
    case Family::deberta_v2:
      unk_id = spm.unk_id;
      before = deberta_normalizers(config);
      after.push_back(join_spaces(" "));
      if (family_flag(config, "split_by_punct")) split.push_back({{"type", "Punctuation"}, {"behavior", "Isolated"}});
      break;
  }
  split.push_back(mark);
  parts.model = make_unigram({vocab, unk_id, false}, file.string());
  parts.normalizer = make_chain(before, spm, after, file);
  const json sequence = {{"type", "Sequence"}, {"pretokenizers", split}};
  parts.pre_tokenizer = make_pre_tokenizer(JsonValue(sequence, file, "pre_tokenizer"));
}

// Added tokens of the configuration, then control and user-defined pieces, then the roles.
std::vector<AddedToken> make_added(const TokenizerConfig& config, const SpmModel& spm, const Roles& roles) {
  std::vector<AddedToken> added = config.added;
  const auto add = [&](const AddedToken& token) {
    const auto same = [&](const AddedToken& t) { return t.content == token.content; };
    if (std::none_of(added.begin(), added.end(), same)) added.push_back(token);
  };
  for (const AddedToken* token :
       {&roles.bos, &roles.eos, &roles.unk, &roles.sep, &roles.pad, &roles.cls, &roles.mask}) {
    add(*token);
  }
  for (const SpmPiece& piece : spm.pieces) {
    if (piece.type != SpmPieceType::control && piece.type != SpmPieceType::user_defined) continue;
    AddedToken token;
    token.content = piece.text;
    token.special = piece.type == SpmPieceType::control;
    add(token);
  }
  return added;
}

}  // namespace

std::unique_ptr<Tokenizer> load_sentencepiece(const fs::path& dir, const fs::path& model_file) {
  const TokenizerConfig config = read_tokenizer_config(dir);
  const SpmModel spm = read_spm_model(model_file);
  return make_spm_tokenizer(spm, find_family(dir, config, spm), config, model_file);
}

std::unique_ptr<Tokenizer> make_spm_tokenizer(const SpmModel& spm, SpmFamily family, const TokenizerConfig& config,
                                              const fs::path& model_file) {
  const Roles roles = find_roles(family, config);
  if (family == Family::xlm_roberta && spm.pieces.size() < 3) {
    fail(ErrorCode::bad_model, "{}: {} pieces: XLM-RoBERTa requires <unk>, <s> and </s> first", model_file.string(),
         spm.pieces.size());
  }
  if (family == Family::deberta_v2 && spm.algorithm != SpmAlgorithm::unigram) {
    fail(ErrorCode::bad_model, "{}: trainer_spec: model_type is {}, must be 1 (Unigram) for DeBERTa-v2",
         model_file.string(), static_cast<int>(spm.algorithm));
  }
  if (spm.algorithm != SpmAlgorithm::unigram && spm.algorithm != SpmAlgorithm::bpe) {
    fail(ErrorCode::bad_model, "{}: trainer_spec: model_type is {}, must be 1 (Unigram) or 2 (BPE)",
         model_file.string(), static_cast<int>(spm.algorithm));
  }
  const auto vocab = make_vocab(family, spm, roles);
  const std::string scheme = config.add_prefix_space.value_or(true) ? "always" : "never";
  const json mark = {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", scheme}, {"split", true}};
  PipelineParts parts;
  if (spm.algorithm == SpmAlgorithm::unigram) {
    set_unigram(parts, spm, vocab, family, config, mark, model_file);
  } else {
    // Current transformers would treat the scores of a BPE model as Unigram scores. ViSoBERT was trained with BPE,
    // which its tokenizer.json also contains.
    parts.model = make_bpe(spm_bpe_config(spm, vocab), model_file);
    const json before = family == Family::albert ? albert_normalizers(config) : json::array();
    const json after =
        json::array({{{"type", "Strip"}, {"strip_left", false}, {"strip_right", true}}, join_spaces("\u2581")});
    parts.normalizer = make_chain(before, spm, after, model_file);
    parts.pre_tokenizer = make_pre_tokenizer(JsonValue(mark, model_file, "pre_tokenizer"));
  }
  parts.decoder = make_decoder(JsonValue(mark, model_file, "decoder"));
  parts.added = make_added(config, spm, roles);
  number_added_tokens(parts.added, *parts.model, model_file);
  const auto id_of = [&](const AddedToken& token) {
    for (const AddedToken& known : parts.added) {
      if (known.content == token.content) return known.id;
    }
    return parts.model->id(token.content);
  };
  parts.special = {.cls = id_of(roles.cls),
                   .sep = id_of(roles.sep),
                   .pad = id_of(roles.pad),
                   .unk = id_of(roles.unk),
                   .mask = id_of(roles.mask),
                   .bos = id_of(roles.bos),
                   .eos = id_of(roles.eos)};
  const bool xlmr = family == Family::xlm_roberta;
  const AddedToken& first = xlmr ? roles.bos : roles.cls;
  const AddedToken& last = xlmr ? roles.eos : roles.sep;
  parts.post_processor = make_template({first.content, id_of(first)}, {last.content, id_of(last)},
                                       xlmr ? PairStyle::roberta : PairStyle::bert);
  parts.model_max_length = config.model_max_length;
  parts.takes_types = config.takes_types;
  return make_pipeline_tokenizer(std::move(parts), model_file);
}

}  // namespace brim::text
