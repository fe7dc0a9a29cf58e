// SPDX-License-Identifier: Apache-2.0
#include "text/spm/fastbpe.h"

#include <algorithm>
#include <array>
#include <bit>
#include <optional>
#include <queue>

#include "base/error.h"
#include "base/mapped_file.h"
#include "base/utf8.h"
#include "text/components.h"
#include "text/json_reader.h"

namespace brim::text {
namespace {

// Python's str.isspace, which also defines \s, strip() and split().
bool is_python_space(char32_t c) {
  if (c < 0x80) return (c >= 9 && c <= 13) || (c >= 28 && c <= 32);
  return c == 0x85 || c == 0xA0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 ||
         c == 0x202F || c == 0x205F || c == 0x3000;
}

// End of the run of (non-)space characters that starts at `at`.
size_t run_end(std::string_view text, size_t at, bool space) {
  while (at < text.size()) {
    const CodePoint c = decode_valid(text, at);
    if (is_python_space(c.value) != space) break;
    at += c.bytes;
  }
  return at;
}

std::string_view trim_right(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    at = run_end(text, at, true);
    if (at < text.size()) end = at = run_end(text, at, false);
  }
  return text.substr(0, end);
}
std::string_view trim_left(std::string_view text) { return text.substr(run_end(text, 0, true)); }

// Lines as in Python's text mode: \r\n and \r end a line like \n. Text after the last line end is the last line.
std::vector<std::string_view> split_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  size_t begin = 0;
  for (size_t at = 0; at < text.size(); ++at) {
    if (text[at] != '\n' && text[at] != '\r') continue;
    lines.push_back(text.substr(begin, at - begin));
    if (text[at] == '\r' && at + 1 < text.size() && text[at + 1] == '\n') ++at;
    begin = at + 1;
  }
  lines.push_back(text.substr(begin));
  return lines;
}

void expect_utf8(std::string_view text, const std::filesystem::path& file) {
  if (!is_valid_utf8(text)) fail(ErrorCode::bad_model, "{}: not UTF-8; download the file again", file.string());
}

constexpr std::string_view kInnerMark = "@@", kEndMark = "</w>";

}  // namespace

FastBpe::FastBpe(std::string_view codes, const std::filesystem::path& codes_file, std::string_view vocab,
                 const std::filesystem::path& vocab_file, const std::vector<std::string>& specials,
                 const std::string& unk) {
  for (size_t i = 0; i < specials.size(); ++i) vocab_[specials[i]] = static_cast<int32_t>(i);
  read_vocab(vocab, vocab_file);
  unk_id_ = id(unk);
  read_codes(codes, codes_file);
}

void FastBpe::read_vocab(std::string_view vocab, const std::filesystem::path& file) {
  expect_utf8(vocab, file);
  std::vector<std::string_view> lines = split_lines(vocab);
  if (lines.back().empty()) lines.pop_back();
  std::vector<std::pair<std::string, int32_t>> order(vocab_.begin(), vocab_.end());
  std::sort(order.begin(), order.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
  for (size_t i = 0; i < lines.size(); ++i) {
    const std::string_view line = trim_right(trim_left(lines[i]));
    const size_t space = line.rfind(' ');
    if (space == std::string_view::npos) {
      fail(ErrorCode::bad_model, "{}: line {}: \"{}\" is not a token and a count", file.string(), i + 1,
           line.substr(0, 80));
    }
    const std::string word(line.substr(0, space));
    // A repeated word takes the next id without growing the vocabulary, so the following word gets the same id.
    const auto next = static_cast<int32_t>(vocab_.size());
    const auto [found, fresh] = vocab_.insert_or_assign(word, next);
    if (fresh) order.emplace_back(word, next);
  }
  for (auto& [word, id] : order) {
    id = vocab_.find(word)->second;
    if (static_cast<size_t>(id) >= tokens_.size()) tokens_.resize(id + 1);
    tokens_[id] = word;
  }
  vocab_size_ = static_cast<int32_t>(tokens_.size());
}

void FastBpe::read_codes(std::string_view codes, const std::filesystem::path& file) {
  expect_utf8(codes, file);
  // Vocabulary characters that may not occur in any merge.
  for (const std::string& token : tokens_) {
    const std::string_view text = token;
    const bool inner = text.size() > kInnerMark.size() && text.ends_with(kInnerMark);
    const std::string_view body = inner ? text.substr(0, text.size() - kInnerMark.size()) : text;
    for (const std::string_view character : {body, text}) {
      if (!character.empty() && static_cast<size_t>(decode_valid(character, 0).bytes) == character.size()) {
        symbol(std::string(character));
        symbol(std::string(character) + std::string(kEndMark));
      }
    }
  }
  std::vector<std::string_view> lines = split_lines(codes);
  lines.pop_back();  // text after the last line end is ignored, as in the original
  std::vector<Merge> list;
  for (size_t rank = 0; rank < lines.size(); ++rank) {
    std::vector<std::string_view> fields;
    for (size_t at = run_end(lines[rank], 0, true); at < lines[rank].size();) {
      const size_t end = run_end(lines[rank], at, false);
      fields.push_back(lines[rank].substr(at, end - at));
      at = run_end(lines[rank], end, true);
    }
    if (fields.size() != 3) continue;  // left, right, count; other lines never match a pair
    const std::string left(fields[0]), right(fields[1]);
    const auto left_id = static_cast<uint64_t>(symbol(left));
    const auto right_id = static_cast<uint64_t>(symbol(right));
    list.push_back({left_id << 32 | right_id, static_cast<int32_t>(rank), symbol(left + right)});
  }
  merges_.assign(std::bit_ceil(2 * list.size() + 2), Merge());
  for (const Merge& merge : list) merges_[merge_slot(merge.key)] = merge;  // the last of equal pairs wins
  for (const auto& [text, index] : symbol_ids_) note_character(text, index);
}

// Words start as one symbol per character.
void FastBpe::note_character(std::string_view text, int32_t symbol) {
  const CodePoint first = decode_valid(text, 0);
  const std::string_view rest = text.substr(first.bytes);
  if (!rest.empty() && rest != kEndMark) return;
  auto& [inner, final] = characters_.try_emplace(first.value, kNoSymbol, kNoSymbol).first->second;
  (rest.empty() ? inner : final) = symbol;
}

void FastBpe::add_token(const std::string& token, int32_t id) {
  const std::string at_end = token + std::string(kEndMark);
  int32_t index = symbol(at_end);
  symbols_[index].final_id = id;
  note_character(at_end, index);
  if (token.size() > kInnerMark.size() && token.ends_with(kInnerMark)) {
    const std::string body = token.substr(0, token.size() - kInnerMark.size());
    index = symbol(body);
    symbols_[index].inner_id = id;
    note_character(body, index);
  }
}

int32_t FastBpe::symbol(const std::string& text) {
  const auto [found, fresh] = symbol_ids_.try_emplace(text, static_cast<int32_t>(symbols_.size()));
  if (fresh) {
    const auto known = [&](std::string_view token) {
      const int32_t found_id = id(token);
      return found_id >= 0 ? found_id : unk_id_;
    };
    const std::string_view view = text;
    const bool can_end = view.ends_with(kEndMark);
    symbols_.push_back({known(text + std::string(kInnerMark)),
                        can_end ? known(view.substr(0, view.size() - kEndMark.size())) : unk_id_});
  }
  return found->second;
}

int32_t FastBpe::id(std::string_view token) const {
  const auto found = vocab_.find(token);
  return found == vocab_.end() ? -1 : found->second;
}

std::string_view FastBpe::token(int32_t id) const {
  return id >= 0 && static_cast<size_t>(id) < tokens_.size() ? std::string_view(tokens_[id]) : std::string_view();
}

// The slot that holds `key`, or the empty slot for it.
size_t FastBpe::merge_slot(uint64_t key) const {
  const size_t mask = merges_.size() - 1;
  size_t slot = (key ^ key >> 29) * 0x9E3779B97F4A7C15ull >> 20 & mask;
  while (merges_[slot].key != key && merges_[slot].key != UINT64_MAX) slot = (slot + 1) & mask;
  return slot;
}

const FastBpe::Merge* FastBpe::find_merge(int32_t left, int32_t right) const {
  if (left == kNoSymbol || right == kNoSymbol) return nullptr;
  const uint64_t key = static_cast<uint64_t>(left) << 32 | static_cast<uint64_t>(right);
  const Merge& merge = merges_[merge_slot(key)];
  return merge.key == key ? &merge : nullptr;
}

void FastBpe::tokenize(std::string_view text, std::vector<int32_t>& out) const {
  for (size_t at = run_end(text, 0, true); at < text.size();) {
    size_t end = run_end(text, at, false);
    if (end < text.size() && text[end] == '\n') ++end;  // the original's pattern is \S+\n?
    tokenize_word(text.substr(at, end - at), out);
    at = run_end(text, end, true);
  }
}

void FastBpe::tokenize_word(std::string_view word, std::vector<int32_t>& out) const {
  thread_local std::vector<int32_t> symbols;
  symbols.clear();
  for (size_t at = 0; at < word.size();) {
    const CodePoint c = decode_valid(word, at);
    at += c.bytes;
    const auto found = characters_.find(c.value);
    if (found == characters_.end()) {
      symbols.push_back(kNoSymbol);
    } else {
      symbols.push_back(at == word.size() ? found->second.second : found->second.first);
    }
  }
  if (symbols.size() <= kShortWord) {
    merge_by_scan(symbols);
  } else {
    merge_by_queue(symbols);
  }
  for (size_t i = 0; i < symbols.size(); ++i) {
    if (symbols[i] == kNoSymbol) {
      out.push_back(unk_id_);
    } else {
      const Symbol& symbol = symbols_[symbols[i]];
      out.push_back(i + 1 == symbols.size() ? symbol.final_id : symbol.inner_id);
    }
  }
}

// Merges all occurrences of the pair of lowest rank, from the left, until no pair is known.
void FastBpe::merge_by_scan(std::vector<int32_t>& symbols) const {
  while (symbols.size() > 1) {
    const Merge* best = nullptr;
    for (size_t i = 0; i + 1 < symbols.size(); ++i) {
      const Merge* merge = find_merge(symbols[i], symbols[i + 1]);
      if (merge && (!best || merge->rank < best->rank)) best = merge;
    }
    if (!best) return;
    const auto left = static_cast<int32_t>(best->key >> 32), right = static_cast<int32_t>(best->key);
    size_t size = 0;
    for (size_t i = 0; i < symbols.size(); ++i) {
      if (i + 1 < symbols.size() && symbols[i] == left && symbols[i + 1] == right) {
        symbols[size++] = best->symbol;
        ++i;
      } else {
        symbols[size++] = symbols[i];
      }
    }
    symbols.resize(size);
  }
}

// The same for long words in O(n log n), with a queue ordered by rank and position. All pairs of one rank are merged
// before any new pairs they create, even if those have a lower rank.
void FastBpe::merge_by_queue(std::vector<int32_t>& symbols) const {
  struct Pair {
    int32_t rank, at;
    int32_t left, right, symbol;
    bool operator<(const Pair& other) const { return std::pair(rank, at) > std::pair(other.rank, other.at); }
  };
  const auto size = static_cast<int32_t>(symbols.size());
  constexpr int32_t kGone = -2;
  std::vector<int32_t> next(size), previous(size);
  std::priority_queue<Pair> queue;
  const auto offer = [&](int32_t at) {
    if (at < 0 || next[at] >= size) return;
    const int32_t left = symbols[at], right = symbols[next[at]];
    if (const Merge* merge = find_merge(left, right)) queue.push({merge->rank, at, left, right, merge->symbol});
  };
  for (int32_t i = 0; i < size; ++i) {
    next[i] = i + 1;
    previous[i] = i - 1;
  }
  for (int32_t i = 0; i < size; ++i) offer(i);
  std::vector<Pair> batch;
  std::vector<int32_t> changed;
  while (!queue.empty()) {
    batch.clear();
    changed.clear();
    const int32_t rank = queue.top().rank;
    for (; !queue.empty() && queue.top().rank == rank; queue.pop()) batch.push_back(queue.top());
    for (const Pair& pair : batch) {
      const int32_t right = next[pair.at];
      if (symbols[pair.at] != pair.left || right >= size || symbols[right] != pair.right) continue;
      symbols[pair.at] = pair.symbol;
      symbols[right] = kGone;
      next[pair.at] = next[right];
      if (next[right] < size) previous[next[right]] = pair.at;
      changed.push_back(pair.at);
    }
    for (const int32_t at : changed) {
      if (symbols[at] == kGone) continue;
      offer(previous[at]);
      offer(at);
    }
  }
  std::erase(symbols, kGone);
}

namespace {

// Tokenizer for the fastBPE layout: extracts added tokens first, like transformers' Python tokenizers.
class FastBpeTokenizer final : public Tokenizer {
 public:
  FastBpeTokenizer(FastBpe bpe, std::vector<AddedToken> added, const SpecialIds& special,
                   std::optional<int64_t> max_length)
      : bpe_(std::move(bpe)), added_(std::move(added)) {
    special_ = special;
    model_max_length_ = max_length;
    prefix_ = {special.cls};
    suffix_ = {special.sep};
    pair_ = make_pair_template(PairStyle::roberta, special.cls, special.sep);
    kind_ = "fastbpe";
    vocab_size_ = bpe_.vocab_size();
    // Longest first, so the first match is the longest.
    std::sort(added_.begin(), added_.end(),
              [](const AddedToken& a, const AddedToken& b) { return a.content.size() > b.content.size(); });
    for (const AddedToken& token : added_) {
      vocab_size_ = std::max(vocab_size_, token.id + 1);
      starts_[static_cast<unsigned char>(token.content[0])] = true;
    }
  }

  void encode_ids(std::string_view text, std::vector<int32_t>& out) const override {
    out.push_back(special_.cls);
    if (is_valid_utf8(text)) {
      encode_valid(text, out);
    } else {
      encode_valid(replace_invalid_utf8(text), out);
    }
    out.push_back(special_.sep);
  }

  Encoding encode(std::string_view text) const override {
    Encoding encoding;
    encode_ids(text, encoding.ids);
    for (const int32_t id : encoding.ids) encoding.tokens.push_back(token(id));
    return encoding;
  }

  std::string token(int32_t id) const override {
    for (const AddedToken& token : added_) {
      if (token.id == id) return token.content;
    }
    return std::string(bpe_.token(id));
  }
  int32_t id(std::string_view token) const override {
    const AddedToken* added = find_added(token);
    return added ? added->id : bpe_.id(token);
  }
  // A trailing "@@" means that the next token continues the word.
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::string text;
    for (const int32_t id : ids) {
      const auto added =
          std::find_if(added_.begin(), added_.end(), [&](const AddedToken& token) { return token.id == id; });
      const bool is_special = added != added_.end() && added->special;
      const std::string next = token(id);
      if (next.empty() || (skip_special && is_special)) continue;
      if (text.ends_with("@@"))
        text.resize(text.size() - 2);
      else if (!text.empty())
        text += ' ';
      text += next;
    }
    return text;
  }

 private:
  const AddedToken* find_added(std::string_view text) const {
    for (const AddedToken& token : added_) {
      if (token.content == text) return &token;
    }
    return nullptr;
  }
  const AddedToken* added_at(std::string_view text, size_t at) const {
    if (!starts_[static_cast<unsigned char>(text[at])]) return nullptr;
    for (const AddedToken& token : added_) {
      if (text.compare(at, token.content.size(), token.content) == 0) return &token;
    }
    return nullptr;
  }

  void encode_valid(std::string_view text, std::vector<int32_t>& out) const {
    std::vector<std::string> parts;
    size_t begin = 0;
    for (size_t at = 0; at < text.size();) {
      if (const AddedToken* token = added_at(text, at)) {
        if (at > begin) parts.emplace_back(text.substr(begin, at - begin));
        parts.push_back(token->content);
        begin = at += token->content.size();
      } else {
        ++at;
      }
    }
    if (parts.empty()) {
      bpe_.tokenize(text, out);
      return;
    }
    if (begin < text.size()) parts.emplace_back(text.substr(begin));
    strip_around_added(parts);
    for (const std::string& part : parts) {
      if (const AddedToken* token = find_added(part)) {
        out.push_back(token->id);
      } else {
        bpe_.tokenize(part, out);
      }
    }
  }

  void strip_around_added(std::vector<std::string>& parts) const {
    for (size_t i = 0; i < parts.size(); ++i) {
      const AddedToken* token = find_added(parts[i]);
      if (!token) continue;
      std::string* left = i > 0 && !parts[i - 1].empty() ? &parts[i - 1] : nullptr;
      std::string* right = i + 1 < parts.size() && !parts[i + 1].empty() ? &parts[i + 1] : nullptr;
      const bool joins_left = left && left->back() != ' ', joins_right = right && right->front() != ' ';
      if (token->rstrip && right) *right = std::string(trim_left(*right));
      if (token->lstrip && left) *left = std::string(trim_right(*left));
      if (token->single_word && joins_left) {
        *left += token->content;
        parts[i].clear();
      } else if (token->single_word && joins_right) {
        *right = token->content + *right;
        parts[i].clear();
      }
    }
  }

  FastBpe bpe_;
  std::vector<AddedToken> added_;
  std::array<bool, 256> starts_{};
};

}  // namespace

std::unique_ptr<Tokenizer> load_fastbpe(const std::filesystem::path& dir) {
  const TokenizerConfig config = read_tokenizer_config(dir);
  if (std::filesystem::exists(config.file)) {
    const nlohmann::json json = parse_json_file(config.file);
    const JsonValue root(json, config.file, "");
    if (root.get("normalization", false)) {
      root.at("normalization")
          .fail("BERTweet's tweet normalization is not supported: normalize the texts and set it to false");
    }
  }
  const auto role = [](const std::optional<AddedToken>& token, const char* standard) {
    AddedToken out = token.value_or(AddedToken());
    if (!token) {
      out.content = standard;
      out.special = true;
    }
    return out;
  };
  const AddedToken bos = role(config.bos, "<s>"), eos = role(config.eos, "</s>"), unk = role(config.unk, "<unk>"),
                   sep = role(config.sep, "</s>"), pad = role(config.pad, "<pad>"), cls = role(config.cls, "<s>"),
                   mask = role(config.mask, "<mask>");
  const std::filesystem::path codes_file = dir / "bpe.codes", vocab_file = dir / "vocab.txt";
  const MappedFile codes(codes_file), vocab(vocab_file);
  FastBpe bpe(codes.text(), codes_file, vocab.text(), vocab_file, {bos.content, pad.content, eos.content, unk.content},
              unk.content);

  // Role tokens without an id are appended to the vocabulary, in transformers' order.
  std::vector<AddedToken> added = config.added;
  std::erase_if(added, [](const AddedToken& token) { return token.content.empty(); });
  size_t size = bpe.size();
  for (const AddedToken& token : added) size += bpe.id(token.content) < 0 ? 1 : 0;
  const auto id_of = [&](const AddedToken& token) {
    for (const AddedToken& known : added) {
      if (known.content == token.content) return known.id;
    }
    AddedToken fresh = token;
    fresh.id = bpe.id(token.content);
    if (fresh.id < 0) fresh.id = static_cast<int32_t>(size++);
    added.push_back(fresh);
    return fresh.id;
  };
  SpecialIds special;
  special.bos = id_of(bos);
  special.eos = id_of(eos);
  special.unk = id_of(unk);
  special.sep = id_of(sep);
  special.pad = id_of(pad);
  special.cls = id_of(cls);
  special.mask = id_of(mask);
  for (const AddedToken& token : added) bpe.add_token(token.content, token.id);
  return std::make_unique<FastBpeTokenizer>(std::move(bpe), std::move(added), special, config.model_max_length);
}

}  // namespace brim::text
