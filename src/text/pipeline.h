// SPDX-License-Identifier: Apache-2.0
// Components of a tokenizer: Normalizer -> PreTokenizer -> TokenModel -> PostProcessor, as named in tokenizer.json.
// They are immutable after construction and shared between threads. encode and encode_ids share this code: with
// `tracked` text each byte records the original code points it came from, otherwise nothing is recorded.
#pragma once
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer.h"

namespace brim::text {

// [begin, end) in code points of the original text.
struct Span {
  int32_t begin = 0, end = 0;
  bool operator==(const Span&) const = default;
};

// One code point of a rewritten text. `change` is its origin: 0: replaces the current code point; 1 (or more):
// inserted, shares the origin of the code point before; -n: replaces the current one, and the next n are removed.
struct Rewrite {
  char32_t c;
  int32_t change;
};

// Valid UTF-8 passing through the pipeline. `spans` has one entry per byte of `text` if tracked, else none; all
// bytes of a code point have the same span.
struct NormalizedText {
  // NFKD expands 3 bytes to at most 33 and the byte level doubles them, so only a malicious tokenizer.json reaches
  // this.
  static constexpr size_t kMostGrowth = 32, kFreeBytes = size_t{64} << 10;

  std::string text;
  std::vector<Span> spans;
  bool tracked = false;
  int32_t origin = 0;       // code points of the original before this text
  size_t limit = SIZE_MAX;  // in bytes: kMostGrowth times the original plus kFreeBytes; then Error(bad_model)

  // Resets to `utf8`, which begins at code point `first` of the original, and sets the limit from its size.
  void reset(std::string_view utf8, bool track, int32_t first = 0);
  void clear();
  void swap(NormalizedText& other) noexcept;
  // Replaces the whole text by `chars`; the first `skipped` code points of the old text are removed.
  void transform(std::span<const Rewrite> chars, size_t skipped = 0);

  // For building a new text from an old one: start with emptied(), then append. `span` is ignored if untracked.
  NormalizedText emptied() const {
    NormalizedText out;
    out.take_settings(*this);
    return out;
  }
  void take_settings(const NormalizedText& other) {
    tracked = other.tracked;
    origin = other.origin;
    limit = other.limit;
  }
  void expect_bytes(size_t bytes) const {
    if (bytes > limit) [[unlikely]]
      fail_limit();
  }
  [[noreturn]] void fail_limit() const;
  void append(std::string_view bytes, Span span) {
    expect_bytes(text.size() + bytes.size());
    text.append(bytes);
    if (tracked) spans.insert(spans.end(), bytes.size(), span);
  }
  void append(char32_t c, Span span);
  void copy_from(const NormalizedText& other, size_t begin, size_t end) {
    expect_bytes(text.size() + end - begin);
    text.append(other.text, begin, end - begin);
    if (tracked) spans.insert(spans.end(), other.spans.begin() + begin, other.spans.begin() + end);
  }
  Span span_at(size_t byte) const { return tracked ? spans[byte] : Span{}; }
};

class Normalizer {
 public:
  virtual ~Normalizer() = default;
  virtual void apply(NormalizedText& text) const = 0;

  // Properties that the SentencePiece fast path relies on.
  struct Traits {
    bool by_word = false;       // rewrites text between two spaces independently of its surroundings
    bool makes_spaces = true;   // may insert spaces
    bool trims = false;         // removes white space at the start or end
    bool strips_end = false;    // leaves no white space at the end
    bool joins_spaces = false;  // leaves no two adjacent spaces, and no mark next to white space at the end
  };
  virtual Traits traits() const { return {}; }
};

// Combined traits of `parts` applied in sequence.
Normalizer::Traits chain_traits(std::span<const std::unique_ptr<Normalizer>> parts);

// A byte range of PreTokenized::text. Text between two pieces was dropped by a pre-tokenizer.
struct Piece {
  uint32_t begin, end;
};

struct PreTokenized {
  NormalizedText text;
  std::vector<Piece> pieces;  // ascending, not overlapping, never empty
  // True for a piece that starts at code point 0 of the whole input. Requires tracked text (needs_spans).
  bool at_start(const Piece& piece) const { return text.tracked && text.spans[piece.begin].begin == 0; }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Splits each piece further, and may rewrite the text.
  virtual void apply(PreTokenized& text) const = 0;
  // True if apply uses PreTokenized::at_start: the pipeline then tracks spans in encode_ids as well, which is slower.
  virtual bool needs_spans() const { return false; }

  // Properties that the SentencePiece fast path relies on.
  struct Traits {
    bool drops_white_space = false;  // pieces are the words between white space
    bool marks_words = false;        // replaces spaces by U+2581 and inserts one before each word, which starts a piece
  };
  virtual Traits traits() const { return {}; }
};

// A token of one piece: [begin, end) in bytes of the piece.
struct Token {
  int32_t id;
  uint32_t begin, end;
};

class TokenModel {
 public:
  virtual ~TokenModel() = default;
  // Appends the tokens of one piece of valid UTF-8, in order.
  virtual void tokenize(std::string_view piece, std::vector<Token>& out) const = 0;
  // The same without offsets; models with a faster implementation override it.
  virtual void tokenize_ids(std::string_view piece, std::vector<int32_t>& out) const;

  // The token text in an Encoding; `surface` is the corresponding text of the piece (used by Unigram for unknown text).
  virtual std::string token_text(int32_t id, std::string_view surface) const;

  virtual int32_t id(std::string_view token) const = 0;  // -1 if missing
  virtual std::string_view token(int32_t id) const = 0;  // empty if missing
  virtual int32_t vocab_size() const = 0;                // largest id plus one
  virtual int32_t unk_id() const { return -1; }
  virtual const char* kind() const = 0;
};

// Input and output of a post-processor. tokens and offsets are filled only if `full`.
struct PostProcessed {
  Encoding encoding;
  bool full = false;
};

class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  virtual void apply(PostProcessed& output) const = 0;
  // Adds the ids this step puts before and after a text to `prefix` and `suffix`; false if it does not have that form.
  virtual bool surround(std::vector<int32_t>& prefix, std::vector<int32_t>& suffix) const = 0;
  // Appends all ids this step may add to a text, in any form.
  virtual void added_ids(std::vector<int32_t>& ids) const = 0;
  // Template for two texts; null if it adds nothing or has an unsupported form.
  virtual const PairTemplate* pair() const { return nullptr; }
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Converts tokens to text fragments that are concatenated.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false, lstrip = false, rstrip = false, single_word = false, normalized = false;
};

// All components of a tokenizer. All but the model are optional (nullptr).
struct PipelineParts {
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  std::unique_ptr<PostProcessor> post_processor;
  std::unique_ptr<Decoder> decoder;
  std::vector<AddedToken> added;
  SpecialIds special;
  std::optional<int64_t> model_max_length;
  bool takes_types = true;  // false: the model gets no token types, regardless of the post-processor
};

// `file` is used in messages.
std::unique_ptr<Tokenizer> make_pipeline_tokenizer(PipelineParts parts, const std::filesystem::path& file);

}  // namespace brim::text
