// SPDX-License-Identifier: Apache-2.0
// Loads directories without tokenizer.json: vocab.txt (BERT) and vocab.json + merges.txt (RoBERTa), with the
// defaults of BertTokenizerFast and RobertaTokenizerFast. Also detects the file layout.
#include <algorithm>
#include <span>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "text/components.h"
#include "text/hf/bert_normalizer.h"
#include "text/hf/bpe.h"
#include "text/hf/json_stream.h"
#include "text/hf/pre_tokenizers.h"
#include "text/hf/wordpiece.h"
#include "text/json_reader.h"
#include "text/load.h"
#include "text/unicode/unicode.h"

namespace brim::text {
namespace {

namespace fs = std::filesystem;

// Calls line(text, number from 0) for each line, without trailing white space.
template <class Line>
void for_each_line(std::string_view text, const fs::path& file, Line line) {
  size_t number = 0;
  for (size_t at = 0; at < text.size(); ++number) {
    size_t end = text.find('\n', at);
    if (end == std::string_view::npos) end = text.size();
    std::string_view view = text.substr(at, end - at);
    if (!is_valid_utf8(view)) {
      fail(ErrorCode::bad_model, "{}: line {} is not valid UTF-8; save the file as UTF-8", file.string(), number + 1);
    }
    while (!view.empty()) {
      size_t last = view.size() - 1;
      while ((static_cast<unsigned char>(view[last]) & 0xC0) == 0x80) --last;
      if (!unicode::is_white_space(decode_valid(view, last).value)) break;
      view = view.substr(0, last);
    }
    line(view, number);
    at = end + 1;
  }
}

// Token for a role: from the configuration, else the family's default.
AddedToken role(const std::optional<AddedToken>& configured, const char* usual) {
  if (configured) return *configured;
  AddedToken token;
  token.content = usual;
  token.special = true;
  return token;
}

// Roles of a family; those that surround a text come first.
struct Roles {
  AddedToken cls, sep, pad, unk, mask;
  std::vector<AddedToken> others;
};

// Added tokens: those of the configuration, and the roles that are in the vocabulary.
std::vector<AddedToken> added_tokens(const Roles& roles, const TokenizerConfig& config, const TokenModel& model,
                                     const fs::path& file) {
  std::vector<AddedToken> added = config.added;
  auto add = [&](const AddedToken& token) {
    const auto same = [&](const AddedToken& t) { return t.content == token.content; };
    if (model.id(token.content) >= 0 && std::none_of(added.begin(), added.end(), same)) added.push_back(token);
  };
  for (const AddedToken* token : {&roles.cls, &roles.sep, &roles.pad, &roles.unk, &roles.mask}) add(*token);
  for (const AddedToken& token : roles.others) add(token);
  number_added_tokens(added, model, file);
  return added;
}

int32_t needed_id(const AddedToken& token, const TokenModel& model, const fs::path& file, const char* what) {
  const int32_t id = model.id(token.content);
  if (id < 0) {
    fail(ErrorCode::bad_model,
         "{}: the {} token \"{}\" is not in the vocabulary of {} tokens; correct tokenizer_config.json", file.string(),
         what, token.content, model.vocab_size());
  }
  return id;
}

PipelineParts finish(PipelineParts parts, const Roles& roles, const TokenizerConfig& config, const fs::path& file) {
  parts.added = added_tokens(roles, config, *parts.model, file);
  parts.model_max_length = config.model_max_length;
  parts.takes_types = config.takes_types;
  parts.special = find_special_ids(config, [&](const std::string& token) { return parts.model->id(token); });
  return parts;
}

std::unique_ptr<Tokenizer> load_bert(const fs::path& file, const TokenizerConfig& config) {
  // MPNet splits words like BERT and surrounds them like RoBERTa.
  const bool mpnet = config.tokenizer_class.starts_with("MPNet");
  Roles roles{role(config.cls, mpnet ? "<s>" : "[CLS]"),      role(config.sep, mpnet ? "</s>" : "[SEP]"),
              role(config.pad, mpnet ? "<pad>" : "[PAD]"),    role(config.unk, "[UNK]"),
              role(config.mask, mpnet ? "<mask>" : "[MASK]"), {}};
  WordPieceConfig model;
  model.unk_token = roles.unk.content;
  const MappedFile text(file);
  for_each_line(text.text(), file, [&](std::string_view token, size_t number) {
    if (number >= static_cast<size_t>(Vocab::kMostIds)) fail(ErrorCode::bad_model, "{}: too many lines", file.string());
    model.vocab.emplace_back(token, static_cast<int32_t>(number));
  });
  if (model.vocab.empty()) fail(ErrorCode::bad_model, "{}: the file is empty; download it again", file.string());

  PipelineParts parts;
  parts.model = std::make_unique<WordPieceModel>(model, file);
  BertNormalizer::Options options;
  options.lowercase = config.do_lower_case.value_or(true);
  options.strip_accents = config.strip_accents.value_or(options.lowercase);
  options.handle_chinese_chars = config.tokenize_chinese_chars.value_or(true);
  parts.normalizer = std::make_unique<BertNormalizer>(options);
  parts.pre_tokenizer = std::make_unique<BertPreTokenizer>();
  parts.decoder = make_wordpiece_decoder();
  parts.post_processor = make_template({roles.cls.content, needed_id(roles.cls, *parts.model, file, "first")},
                                       {roles.sep.content, needed_id(roles.sep, *parts.model, file, "last")},
                                       mpnet ? PairStyle::roberta : PairStyle::bert);
  return make_pipeline_tokenizer(finish(std::move(parts), roles, config, file), file);
}

std::unique_ptr<Tokenizer> load_roberta(const fs::path& vocab, const fs::path& merges, const TokenizerConfig& config) {
  Roles roles{role(config.cls, "<s>"),     role(config.sep, "</s>"),
              role(config.pad, "<pad>"),   role(config.unk, "<unk>"),
              role(config.mask, "<mask>"), {role(config.bos, "<s>"), role(config.eos, "</s>")}};
  BpeConfig model;
  model.vocab = read_vocab_json(MappedFile(vocab).text(), vocab);
  if (model.vocab.empty())
    fail(ErrorCode::bad_model, "{}: the vocabulary is empty; download the file again", vocab.string());
  const MappedFile text(merges);
  for_each_line(text.text(), merges, [&](std::string_view line, size_t number) {
    if (line.starts_with("#version") || line.empty()) return;
    const size_t space = line.find(' ');
    if (space == std::string_view::npos || line.find(' ', space + 1) != std::string_view::npos) {
      fail(ErrorCode::bad_model, "{}: line {} is \"{}\": must be two tokens separated by one space", merges.string(),
           number + 1, line.substr(0, 80));
    }
    model.merges.emplace_back(line.substr(0, space), line.substr(space + 1));
  });

  PipelineParts parts;
  parts.model = make_bpe(model, merges);
  const bool add_prefix_space = config.add_prefix_space.value_or(false);
  parts.pre_tokenizer = std::make_unique<ByteLevelPreTokenizer>(add_prefix_space, true);
  parts.decoder = make_byte_level_decoder();
  std::vector<std::unique_ptr<PostProcessor>> post;
  if (config.trim_offsets.value_or(true)) post.push_back(make_trim_offsets(add_prefix_space));
  post.push_back(make_template({roles.cls.content, needed_id(roles.cls, *parts.model, vocab, "first")},
                               {roles.sep.content, needed_id(roles.sep, *parts.model, vocab, "last")},
                               PairStyle::roberta));
  parts.post_processor = make_post_sequence(std::move(post));
  return make_pipeline_tokenizer(finish(std::move(parts), roles, config, vocab), vocab);
}

// Tokenizer classes of transformers that these loaders reproduce, without the "Fast" suffix.
constexpr std::string_view kWordPieceClasses[] = {"BertTokenizer",
                                                  "ConvBertTokenizer",
                                                  "DistilBertTokenizer",
                                                  "DPRContextEncoderTokenizer",
                                                  "DPRQuestionEncoderTokenizer",
                                                  "ElectraTokenizer",
                                                  "LayoutLMTokenizer",
                                                  "LxmertTokenizer",
                                                  "MobileBertTokenizer",
                                                  "MPNetTokenizer",
                                                  "RetriBertTokenizer",
                                                  "SqueezeBertTokenizer"};
constexpr std::string_view kByteBpeClasses[] = {"BartTokenizer", "LongformerTokenizer", "RobertaTokenizer"};
constexpr std::string_view kFastBpeClasses[] = {"BertweetTokenizer", "PhobertTokenizer"};

// transformers takes the class from tokenizer_config.json, else from config.json. Other classes split texts in ways
// that the vocabulary files do not define (BertJapaneseTokenizer runs MeCab first).
void check_class(const fs::path& dir, const TokenizerConfig& config, std::span<const std::string_view> known) {
  std::string name = config.tokenizer_class;
  fs::path file = config.file;
  if (name.empty() && fs::exists(dir / "config.json")) {
    file = dir / "config.json";
    const nlohmann::json raw = parse_json_file(file);
    name = JsonValue(raw, file, "").get("tokenizer_class", "");
  }
  if (name.empty()) return;
  std::string_view base = name;
  if (base.ends_with("Fast")) base.remove_suffix(4);
  if (std::find(known.begin(), known.end(), base) != known.end()) return;
  fail(ErrorCode::bad_model,
       "{}: tokenizer_class \"{}\" is supported only with a tokenizer.json; save one with transformers "
       "(AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR)) or use another model",
       file.string(), name.substr(0, 80));
}

// The SentencePiece model in a directory: common names first, then any *.model.
std::optional<fs::path> sentencepiece_file(const fs::path& dir) {
  for (const char* name : {"sentencepiece.bpe.model", "spiece.model", "spm.model", "tokenizer.model"}) {
    if (fs::exists(dir / name)) return dir / name;
  }
  std::vector<fs::path> found;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (entry.is_regular_file() && entry.path().extension() == ".model") found.push_back(entry.path());
  }
  if (found.empty()) return std::nullopt;
  return *std::min_element(found.begin(), found.end());
}

}  // namespace

std::unique_ptr<Tokenizer> Tokenizer::load(const fs::path& dir) {
  std::error_code error;
  if (!fs::is_directory(dir, error)) {
    fail(ErrorCode::bad_model, "{}: not a directory; give the model directory with the tokenizer", dir.string());
  }
  const auto has = [&](const char* name) { return fs::exists(dir / name); };
  if (has("tokenizer.json")) {
    const MappedFile file(dir / "tokenizer.json");
    return parse_tokenizer_json(file.text(), file.path(), read_tokenizer_config(dir));
  }
  if (const auto file = sentencepiece_file(dir)) return load_sentencepiece(dir, *file);
  const TokenizerConfig config = read_tokenizer_config(dir);
  if (has("vocab.json") && has("merges.txt")) {
    check_class(dir, config, kByteBpeClasses);
    return load_roberta(dir / "vocab.json", dir / "merges.txt", config);
  }
  if (has("bpe.codes") && has("vocab.txt")) {
    check_class(dir, config, kFastBpeClasses);
    return load_fastbpe(dir);
  }
  if (has("vocab.txt")) {
    check_class(dir, config, kWordPieceClasses);
    return load_bert(dir / "vocab.txt", config);
  }
  fail(ErrorCode::bad_model,
       "{}: no tokenizer found (tokenizer.json, *.model, vocab.json with merges.txt, bpe.codes with vocab.txt, or "
       "vocab.txt)",
       dir.string());
}

}  // namespace brim::text
