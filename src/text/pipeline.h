// SPDX-License-Identifier: Apache-2.0
// The parts a tokenizer is put together from: Normalizer -> PreTokenizer -> TokenModel -> PostProcessor, as
// tokenizer.json names them. Parts are immutable after construction and shared by threads. The same code serves both
// ways in: with `tracked` text each byte remembers which code points of the original it came from, without it nothing
// is kept.
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

// One code point of a rewritten text. `change` says where it comes from: 0 it takes the place of the current code
// point, 1 (or more) it is inserted and shares the origin of the code point before, -n it takes the place of the
// current one and the n that follow it are gone.
struct Rewrite {
  char32_t c;
  int32_t change;
};

// Valid UTF-8 on its way through the pipeline. `spans` has one entry per byte of `text` when tracked, else none; all
// bytes of a code point carry the same span.
struct NormalizedText {
  // NFKD makes at most 33 bytes out of 3 and the byte level doubles them, so only a hostile tokenizer.json gets there.
  static constexpr size_t kMostGrowth = 32, kFreeBytes = size_t{64} << 10;

  std::string text;
  std::vector<Span> spans;
  bool tracked = false;
  int32_t origin = 0;       // code points of the original before this text
  size_t limit = SIZE_MAX;  // in bytes: kMostGrowth times the original plus kFreeBytes; beyond it Error(bad_model)

  // Starts over with `utf8`, which begins at code point `first` of the original, and sets the limit by its size.
  void reset(std::string_view utf8, bool track, int32_t first = 0);
  void clear();
  void swap(NormalizedText& other) noexcept;
  // Replaces the whole text by `chars`; the first `skipped` code points of the old text are gone.
  void transform(std::span<const Rewrite> chars, size_t skipped = 0);

  // Building a new text from pieces of an old one: an empty one like it, then what it is made of. `span` is ignored
  // when untracked.
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

  // What the fast path for words builds on.
  struct Traits {
    bool by_word = false;       // what stands between two spaces is rewritten the same whatever is beyond them
    bool makes_spaces = true;   // may put in spaces
    bool trims = false;         // takes white space off the ends
    bool strips_end = false;    // leaves no white space at the end
    bool joins_spaces = false;  // leaves no two spaces next to each other, nor a mark beside white space at the end
  };
  virtual Traits traits() const { return {}; }
};

// The traits of `parts` one after the other.
Normalizer::Traits chain_traits(std::span<const std::unique_ptr<Normalizer>> parts);

// A run of bytes of PreTokenized::text. What is between two pieces was dropped by a pre-tokenizer.
struct Piece {
  uint32_t begin, end;
};

struct PreTokenized {
  NormalizedText text;
  std::vector<Piece> pieces;  // ascending, not overlapping, never empty pieces
  // True for a piece whose original starts at code point 0 of the whole input. Asks for tracked text (needs_spans).
  bool at_start(const Piece& piece) const { return text.tracked && text.spans[piece.begin].begin == 0; }
};

class PreTokenizer {
 public:
  virtual ~PreTokenizer() = default;
  // Splits each piece further, and may rewrite the text.
  virtual void apply(PreTokenized& text) const = 0;
  // True if apply asks PreTokenized::at_start: the pipeline then tracks spans in encode_ids as well, which is slower.
  virtual bool needs_spans() const { return false; }

  // What the fast path for words builds on.
  struct Traits {
    bool drops_white_space = false;  // pieces are the words between white space
    bool marks_words = false;        // puts U+2581 in place of spaces and before every word, which starts a piece
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
  // The same without offsets; models with a faster way override it.
  virtual void tokenize_ids(std::string_view piece, std::vector<int32_t>& out) const;

  // The token as an Encoding shows it; `surface` is the piece's text it stands for (Unigram shows it for unknown text).
  virtual std::string token_text(int32_t id, std::string_view surface) const;

  virtual int32_t id(std::string_view token) const = 0;  // -1 if there is none
  virtual std::string_view token(int32_t id) const = 0;  // empty if there is none
  virtual int32_t vocab_size() const = 0;                // largest id plus one
  virtual int32_t unk_id() const { return -1; }
  virtual const char* kind() const = 0;
};

// What a post-processor works on. tokens and offsets are kept only when `full`.
struct PostProcessed {
  Encoding encoding;
  bool full = false;
};

class PostProcessor {
 public:
  virtual ~PostProcessor() = default;
  virtual void apply(PostProcessed& output) const = 0;
  // The ids this step puts before and after a text, joined to what is there; false if it is not of that form.
  virtual bool surround(std::vector<int32_t>& prefix, std::vector<int32_t>& suffix) const = 0;
  // Appends every id this step may put into the ids of a text, whatever its form.
  virtual void added_ids(std::vector<int32_t>& ids) const = 0;
  // How it joins two texts; null: it adds nothing to either, or not in that form.
  virtual const PairTemplate* pair() const { return nullptr; }
};

class Decoder {
 public:
  virtual ~Decoder() = default;
  // Tokens to pieces of text, which stand one behind the other.
  virtual void apply(std::vector<std::string>& tokens) const = 0;
};

struct AddedToken {
  std::string content;
  int32_t id = -1;
  bool special = false, lstrip = false, rstrip = false, single_word = false, normalized = false;
};

// Everything a tokenizer is made of. Missing parts (nullptr) do nothing; the model must be there.
struct PipelineParts {
  std::unique_ptr<Normalizer> normalizer;
  std::unique_ptr<PreTokenizer> pre_tokenizer;
  std::unique_ptr<TokenModel> model;
  std::unique_ptr<PostProcessor> post_processor;
  std::unique_ptr<Decoder> decoder;
  std::vector<AddedToken> added;
  SpecialIds special;
  std::optional<int64_t> model_max_length;
  bool takes_types = true;  // false: the model is given no token types, whatever the post-processor says
};

// `file` is named in messages.
std::unique_ptr<Tokenizer> make_pipeline_tokenizer(PipelineParts parts, const std::filesystem::path& file);

}  // namespace brim::text
