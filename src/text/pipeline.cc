// SPDX-License-Identifier: Apache-2.0
// Tokenizer assembled from components: extract added tokens, normalize, extract added tokens of the normalized text,
// pre-tokenize, run the model, post-process. For BERT, RoBERTa and SentencePiece components a fast path produces ids in
// one pass over the bytes.
#include "text/pipeline.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"
#include "text/fast/fast_path.h"
#include "text/fast/scratch.h"
#include "text/hf/added_tokens.h"

namespace brim::text {

void TokenModel::tokenize_ids(std::string_view piece, std::vector<int32_t>& out) const {
  thread_local std::vector<Token> tokens;
  tokens.clear();
  tokenize(piece, tokens);
  for (const Token& t : tokens) out.push_back(t.id);
}

std::string TokenModel::token_text(int32_t id, std::string_view) const { return std::string(token(id)); }

namespace {

PairTemplate without_types(PairTemplate pair) {
  for (auto* tokens : {&pair.before, &pair.between, &pair.after}) {
    for (int32_t& token : *tokens) token = id_of(token);
  }
  pair.first_type = pair.second_type = 0;
  return pair;
}

class PipelineTokenizer : public Tokenizer {
 public:
  PipelineTokenizer(PipelineParts parts, const std::filesystem::path& file) : parts_(std::move(parts)) {
    vocab_size_ = parts_.model->vocab_size();
    for (const AddedToken& t : parts_.added) {
      if (t.id < 0 || t.id >= (1 << 24)) {
        fail(ErrorCode::bad_model, "{}: the added token \"{}\" has the invalid id {}", file.string(), t.content, t.id);
      }
      vocab_size_ = std::max(vocab_size_, t.id + 1);
    }
    if (vocab_size_ > kIdMask) {
      fail(ErrorCode::bad_model, "{}: the largest id is {}, must be below {}", file.string(), vocab_size_ - 1, kIdMask);
    }
    special_ = parts_.special;
    if (special_.unk < 0) special_.unk = parts_.model->unk_id();
    model_max_length_ = parts_.model_max_length;
    kind_ = parts_.model->kind();
    surrounds_ = parts_.post_processor == nullptr || parts_.post_processor->surround(prefix_, suffix_);
    if (!surrounds_) {
      prefix_.clear();
      suffix_.clear();
    }
    if (surrounds_ && parts_.post_processor != nullptr && parts_.post_processor->pair() != nullptr) {
      pair_ = *parts_.post_processor->pair();
      if (!parts_.takes_types) *pair_ = without_types(*pair_);
    }
    const auto count = [&](const std::vector<int32_t>& tokens) {
      for (const int32_t token : tokens) vocab_size_ = std::max(vocab_size_, id_of(token) + 1);
    };
    // All added ids, not only prefix and suffix: a template that uses the text twice or never adds ids as well.
    std::vector<int32_t> around;
    if (parts_.post_processor != nullptr) parts_.post_processor->added_ids(around);
    count(around);
    if (pair_) {
      for (const auto* tokens : {&pair_->before, &pair_->between, &pair_->after}) count(*tokens);
    }
    build_added();
    tracks_ids_ = parts_.pre_tokenizer != nullptr && parts_.pre_tokenizer->needs_spans();
    if (normalized_.empty()) fast_ = make_fast_path(parts_);
  }

  void encode_ids(std::string_view text, std::vector<int32_t>& out) const override {
    const ScratchPool::Lease lease(scratches_);
    Scratch& s = *lease;
    const std::string_view valid = s.set_input(text);
    if (!surrounds_) {
      PostProcessed output;
      text_ids(valid, s, output.encoding.ids);
      parts_.post_processor->apply(output);
      out.insert(out.end(), output.encoding.ids.begin(), output.encoding.ids.end());
      return;
    }
    out.insert(out.end(), prefix_.begin(), prefix_.end());
    text_ids(valid, s, out);
    out.insert(out.end(), suffix_.begin(), suffix_.end());
  }

  Encoding encode(std::string_view text) const override {
    PostProcessed output;
    output.full = true;
    std::string replaced;
    if (!is_valid_utf8(text)) text = replaced = replace_invalid_utf8(text);
    std::vector<AddedTokenMatcher::Stretch> stretches;
    raw_.split(text, stretches);
    int32_t first = 0;
    size_t counted = 0;
    for (const auto& stretch : stretches) {
      // Ranges are consecutive, except that a token may start inside the spaces taken by the one before it.
      if (stretch.begin < counted) {
        first = 0;
        counted = 0;
      }
      first += static_cast<int32_t>(count_code_points(text.substr(counted, stretch.begin - counted)));
      counted = stretch.begin;
      const std::string_view part = text.substr(stretch.begin, stretch.end - stretch.begin);
      if (stretch.id >= 0) {
        add_token(output.encoding, stretch.id, part, first, first + static_cast<int32_t>(count_code_points(part)));
      } else {
        encode_part(part, first, output.encoding);
      }
    }
    if (parts_.post_processor != nullptr) parts_.post_processor->apply(output);
    return std::move(output.encoding);
  }

  std::string token(int32_t id) const override {
    for (const AddedToken& t : parts_.added) {
      if (t.id == id) return t.content;
    }
    return std::string(parts_.model->token(id));
  }
  int32_t id(std::string_view token) const override {
    for (const AddedToken& t : parts_.added) {
      if (t.content == token) return t.id;
    }
    return parts_.model->id(token);
  }
  std::string decode(std::span<const int32_t> ids, bool skip_special) const override {
    std::vector<std::string> tokens;
    for (const int32_t id : ids) {
      const auto added = std::find_if(parts_.added.begin(), parts_.added.end(),
                                      [&](const AddedToken& token) { return token.id == id; });
      if (added != parts_.added.end()) {
        if (!skip_special || !added->special) tokens.push_back(added->content);
      } else if (const std::string_view known = parts_.model->token(id); !known.empty()) {
        tokens.emplace_back(known);
      }
    }
    if (parts_.decoder != nullptr) parts_.decoder->apply(tokens);
    std::string text;
    for (size_t i = 0; i < tokens.size(); ++i) {
      if (i > 0 && parts_.decoder == nullptr) text += ' ';
      text += tokens[i];
    }
    return text;
  }

 private:
  void build_added() {
    std::vector<AddedToken> raw, normalized;
    std::vector<std::string> raw_contents, normalized_contents;
    for (const AddedToken& t : parts_.added) {
      if (!t.normalized) {
        raw.push_back(t);
        raw_contents.push_back(t.content);
        continue;
      }
      NormalizedText content;
      content.reset(t.content, false);
      if (parts_.normalizer != nullptr) parts_.normalizer->apply(content);
      normalized.push_back(t);
      normalized_contents.push_back(content.text);
    }
    raw_.build(raw, raw_contents);
    normalized_.build(normalized, normalized_contents);
  }

  static void add_token(Encoding& out, int32_t id, std::string_view text, int32_t begin, int32_t end) {
    out.ids.push_back(id);
    out.tokens.emplace_back(text);
    out.offsets.emplace_back(begin, end);
  }

  // Ids of a whole text, without those the post-processor adds.
  void text_ids(std::string_view text, Scratch& s, std::vector<int32_t>& out) const {
    if (!raw_.may_match(text)) {
      if (!text.empty()) part_ids(text, 0, s, out);
      return;
    }
    std::vector<AddedTokenMatcher::Stretch> stretches;
    raw_.split(text, stretches);
    size_t at = 0;
    int32_t first = 0;
    for (const auto& stretch : stretches) {
      const std::string_view part = text.substr(stretch.begin, stretch.end - stretch.begin);
      if (stretch.id >= 0) {
        out.push_back(stretch.id);
        continue;
      }
      if (tracks_ids_) {
        first += static_cast<int32_t>(count_code_points(text.substr(at, stretch.begin - at)));
        at = stretch.begin;
      }
      part_ids(part, first, s, out);
    }
  }

  void part_ids(std::string_view part, int32_t first, Scratch& s, std::vector<int32_t>& out) const {
    if (fast_ != nullptr && fast_->encode(part, s, out)) return;
    s.normalized.reset(part, tracks_ids_, first);
    if (parts_.normalizer != nullptr) parts_.normalizer->apply(s.normalized);
    if (normalized_.empty() || !normalized_.may_match(s.normalized.text)) {
      s.pieces.text.swap(s.normalized);
      return piece_ids(s, out);
    }
    const NormalizedText whole = s.normalized;
    std::vector<AddedTokenMatcher::Stretch> stretches;
    normalized_.split(whole.text, stretches);
    for (const auto& stretch : stretches) {
      if (stretch.id >= 0) {
        out.push_back(stretch.id);
      } else {
        slice(whole, stretch.begin, stretch.end, s.pieces.text);
        piece_ids(s, out);
      }
    }
  }

  void piece_ids(Scratch& s, std::vector<int32_t>& out) const {
    pre_tokenize(s.pieces);
    const std::string& text = s.pieces.text.text;
    for (const Piece& piece : s.pieces.pieces) {
      const std::string_view view(text.data() + piece.begin, piece.end - piece.begin);
      if (view.size() > ShortKey::kLongest) {
        parts_.model->tokenize_ids(view, out);
        continue;
      }
      const ShortKey key = ShortKey::from(view);
      const uint64_t hash = key.hash();
      if (const WordCache::Entry* hit = s.cache.find(key, hash)) {
        out.insert(out.end(), hit->ids, hit->ids + hit->count);
        continue;
      }
      const size_t before = out.size();
      parts_.model->tokenize_ids(view, out);
      s.cache.store(key, hash, std::span(out).subspan(before));
    }
  }

  void pre_tokenize(PreTokenized& pieces) const {
    pieces.pieces.clear();
    if (pieces.text.text.empty()) return;
    pieces.pieces.push_back({0, static_cast<uint32_t>(pieces.text.text.size())});
    if (parts_.pre_tokenizer != nullptr) parts_.pre_tokenizer->apply(pieces);
  }

  static void slice(const NormalizedText& from, size_t begin, size_t end, NormalizedText& to) {
    to.clear();
    to.take_settings(from);
    if (from.tracked) to.origin = from.spans[begin].begin;
    to.copy_from(from, begin, end);
  }

  // Encodes the text between two added tokens; it starts at code point `first` of the whole text.
  void encode_part(std::string_view part, int32_t first, Encoding& out) const {
    NormalizedText text;
    text.reset(part, true, first);
    if (parts_.normalizer != nullptr) parts_.normalizer->apply(text);
    std::vector<AddedTokenMatcher::Stretch> stretches;
    normalized_.split(text.text, stretches);
    PreTokenized pieces;
    for (const auto& stretch : stretches) {
      if (stretch.id >= 0) {
        const std::string_view token(text.text.data() + stretch.begin, stretch.end - stretch.begin);
        add_token(out, stretch.id, token, text.spans[stretch.begin].begin, text.spans[stretch.end - 1].end);
        continue;
      }
      slice(text, stretch.begin, stretch.end, pieces.text);
      pre_tokenize(pieces);
      encode_pieces(pieces, out);
    }
  }

  void encode_pieces(const PreTokenized& pieces, Encoding& out) const {
    std::vector<Token> tokens;
    for (const Piece& piece : pieces.pieces) {
      tokens.clear();
      const std::string_view view(pieces.text.text.data() + piece.begin, piece.end - piece.begin);
      parts_.model->tokenize(view, tokens);
      const Span* spans = pieces.text.spans.data() + piece.begin;
      for (const Token& t : tokens) {
        // Dropped text can make a model count past the end of the piece; its numbers are then used unchanged.
        Span span{static_cast<int32_t>(t.begin), static_cast<int32_t>(t.end)};
        const bool inside = t.end <= view.size();
        if (inside && t.end > t.begin) span = {spans[t.begin].begin, spans[t.end - 1].end};
        const std::string_view surface = inside ? view.substr(t.begin, t.end - t.begin) : std::string_view();
        add_token(out, t.id, parts_.model->token_text(t.id, surface), span.begin, span.end);
      }
    }
  }

  PipelineParts parts_;
  mutable ScratchPool scratches_;
  AddedTokenMatcher raw_, normalized_;
  std::unique_ptr<FastPath> fast_;
  bool surrounds_ = true, tracks_ids_ = false;
};

}  // namespace

std::unique_ptr<Tokenizer> make_pipeline_tokenizer(PipelineParts parts, const std::filesystem::path& file) {
  BRIM_CHECK(parts.model != nullptr, "{}: a pipeline needs a model", file.string());
  return std::make_unique<PipelineTokenizer>(std::move(parts), file);
}

}  // namespace brim::text
