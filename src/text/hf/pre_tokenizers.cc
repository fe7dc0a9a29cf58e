// SPDX-License-Identifier: Apache-2.0
// The pre-tokenizers of tokenizer.json, one small class each, and their factory. A splitter marks the delimiters of a
// piece; the code that drops, isolates or merges them is shared.
#include "text/hf/pre_tokenizers.h"

#include <algorithm>

#include "base/utf8.h"
#include "text/components.h"
#include "text/hf/byte_level.h"
#include "text/hf/pattern.h"
#include "text/json_reader.h"
#include "text/unicode/unicode.h"

namespace brim::text {
namespace {

enum class Behavior { removed, isolated, merged_with_previous, merged_with_next, contiguous };

struct Part {
  uint32_t begin, end;
  bool delimiter;
};

// Joins the parts of one piece according to `behavior` and appends those that are kept.
void join(std::vector<Part>& parts, Behavior behavior, std::vector<Piece>& out) {
  std::vector<Part> kept;
  bool previous = false;
  switch (behavior) {
    case Behavior::removed:
      for (const Part& p : parts) {
        if (!p.delimiter) kept.push_back(p);
      }
      break;
    case Behavior::isolated:
      kept = parts;
      break;
    case Behavior::contiguous:
      for (const Part& p : parts) {
        if (p.delimiter == previous && !kept.empty()) {
          kept.back().end = p.end;
        } else {
          kept.push_back(p);
        }
        previous = p.delimiter;
      }
      break;
    case Behavior::merged_with_previous:
      for (const Part& p : parts) {
        if (p.delimiter && !previous && !kept.empty()) {
          kept.back().end = p.end;
        } else {
          kept.push_back(p);
        }
        previous = p.delimiter;
      }
      break;
    case Behavior::merged_with_next:
      for (auto p = parts.rbegin(); p != parts.rend(); ++p) {
        if (p->delimiter && !previous && !kept.empty()) {
          kept.back().begin = p->begin;
        } else {
          kept.push_back(*p);
        }
        previous = p->delimiter;
      }
      std::reverse(kept.begin(), kept.end());
      break;
  }
  for (const Part& p : kept) {
    if (p.end > p.begin) out.push_back({p.begin, p.end});
  }
}

// mark(view, add) calls add(begin, end, delimiter) for parts that cover the piece, left to right.
template <class Mark>
void split(PreTokenized& text, Behavior behavior, Mark mark) {
  std::vector<Piece> out;
  std::vector<Part> parts;
  out.reserve(text.pieces.size());
  for (const Piece& piece : text.pieces) {
    parts.clear();
    const std::string_view view = std::string_view(text.text.text).substr(piece.begin, piece.end - piece.begin);
    mark(view, [&](size_t begin, size_t end, bool delimiter) {
      parts.push_back(
          {piece.begin + static_cast<uint32_t>(begin), piece.begin + static_cast<uint32_t>(end), delimiter});
    });
    join(parts, behavior, out);
  }
  text.pieces.swap(out);
}

// Each code point that `is_delimiter` accepts is a separate delimiter.
template <class Predicate>
void split_chars(PreTokenized& text, Behavior behavior, Predicate is_delimiter) {
  split(text, behavior, [&](std::string_view view, auto add) {
    size_t start = 0;
    for (size_t i = 0; i < view.size();) {
      const CodePoint p = decode_valid(view, i);
      const size_t next = i + static_cast<size_t>(p.bytes);
      if (is_delimiter(p.value)) {
        if (i > start) add(start, i, false);
        add(i, next, true);
        start = next;
      }
      i = next;
    }
    if (view.size() > start) add(start, view.size(), false);
  });
}

class WhitespaceSplit : public PreTokenizer {
 public:
  void apply(PreTokenized& text) const override { split_chars(text, Behavior::removed, unicode::is_white_space); }
  Traits traits() const override { return {.drops_white_space = true}; }
};

// Runs of word characters and runs of anything else that is not white space.
class Whitespace : public PreTokenizer {
 public:
  void apply(PreTokenized& text) const override {
    split(text, Behavior::removed, [](std::string_view view, auto add) {
      enum Kind { space, word, other };
      auto kind = [&](size_t at, size_t& next) {
        const CodePoint p = decode_valid(view, at);
        next = at + static_cast<size_t>(p.bytes);
        const uint16_t properties = unicode::properties(p.value);
        return (properties & unicode::kWordRegex) != 0    ? word
               : (properties & unicode::kWhiteSpace) != 0 ? space
                                                          : other;
      };
      for (size_t i = 0; i < view.size();) {
        size_t next;
        const Kind first = kind(i, next);
        size_t end = next;
        while (end < view.size() && kind(end, next) == first) end = next;
        add(i, end, first == space);
        i = end;
      }
    });
  }
};

class Punctuation : public PreTokenizer {
 public:
  explicit Punctuation(Behavior behavior) : behavior_(behavior) {}
  void apply(PreTokenized& text) const override {
    split_chars(text, behavior_, [](char32_t c) { return unicode::has(c, unicode::kPunctuation); });
  }

 private:
  Behavior behavior_;
};

class Digits : public PreTokenizer {
 public:
  explicit Digits(bool individual) : behavior_(individual ? Behavior::isolated : Behavior::contiguous) {}
  void apply(PreTokenized& text) const override {
    split_chars(text, behavior_, [](char32_t c) { return unicode::has(c, unicode::kNumeric); });
  }

 private:
  Behavior behavior_;
};

class Split : public PreTokenizer {
 public:
  Split(Pattern pattern, Behavior behavior, bool invert)
      : pattern_(std::move(pattern)),
        behavior_(behavior),
        invert_(invert),
        gpt2_(pattern_.is_regex() && pattern_.source() == kGpt2Pattern) {}
  void apply(PreTokenized& text) const override {
    split(text, behavior_, [&](std::string_view view, auto add) {
      if (gpt2_) {
        for (size_t i = 0; i < view.size();) {
          const size_t end = gpt2_word_end(view, i);
          add(i, end, !invert_);
          i = end;
        }
        return;
      }
      size_t done = 0;
      pattern_.for_each_match(view, [&](size_t begin, size_t end) {
        if (begin > done) add(done, begin, invert_);
        add(begin, end, !invert_);
        done = end;
      });
      if (view.size() > done) add(done, view.size(), invert_);
    });
  }

 private:
  Pattern pattern_;
  Behavior behavior_;
  bool invert_, gpt2_;
};

class PreTokenizerSequence : public PreTokenizer {
 public:
  explicit PreTokenizerSequence(std::vector<std::unique_ptr<PreTokenizer>> parts) : parts_(std::move(parts)) {}
  void apply(PreTokenized& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }
  bool needs_spans() const override {
    for (const auto& part : parts_) {
      if (part->needs_spans()) return true;
    }
    return false;
  }
  Traits traits() const override {
    if (parts_.size() == 1) return parts_[0]->traits();
    const bool words = parts_.size() == 2 && parts_[0]->traits().drops_white_space && parts_[1]->traits().marks_words;
    return {.drops_white_space = words, .marks_words = words};
  }

 private:
  std::vector<std::unique_ptr<PreTokenizer>> parts_;
};

Behavior read_behavior(const JsonValue& json) {
  const std::string name = json.as_string();
  if (name == "Removed") return Behavior::removed;
  if (name == "Isolated") return Behavior::isolated;
  if (name == "MergedWithPrevious") return Behavior::merged_with_previous;
  if (name == "MergedWithNext") return Behavior::merged_with_next;
  if (name == "Contiguous") return Behavior::contiguous;
  json.fail("must be Removed, Isolated, MergedWithPrevious, MergedWithNext or Contiguous");
}

}  // namespace

void BertPreTokenizer::apply(PreTokenized& text) const {
  split_chars(text, Behavior::removed, unicode::is_white_space);
  split_chars(text, Behavior::isolated, [](char32_t c) { return unicode::has(c, unicode::kPunctuation); });
}

void ByteLevelPreTokenizer::apply(PreTokenized& text) const {
  if (add_prefix_space_) {
    NormalizedText out = text.text.emptied();
    for (Piece& piece : text.pieces) {
      const auto begin = static_cast<uint32_t>(out.text.size());
      if (text.text.text[piece.begin] != ' ') out.append(" ", text.text.span_at(piece.begin));
      out.copy_from(text.text, piece.begin, piece.end);
      piece = {begin, static_cast<uint32_t>(out.text.size())};
    }
    text.text.swap(out);
  }
  if (use_regex_) {
    split(text, Behavior::isolated, [](std::string_view view, auto add) {
      for (size_t i = 0; i < view.size();) {
        const size_t end = gpt2_word_end(view, i);
        add(i, end, true);
        i = end;
      }
    });
  }
  NormalizedText out = text.text.emptied();
  out.text.reserve(text.text.text.size() * 2);
  for (Piece& piece : text.pieces) {
    const auto begin = static_cast<uint32_t>(out.text.size());
    for (size_t i = piece.begin; i < piece.end; ++i) {
      out.append(byte_level_char(static_cast<uint8_t>(text.text.text[i])), text.text.span_at(i));
    }
    piece = {begin, static_cast<uint32_t>(out.text.size())};
  }
  text.text.swap(out);
}

std::unique_ptr<PreTokenizer> make_pre_tokenizer(const JsonValue& json) {
  const std::string type = json.at("type").as_string();
  if (type == "BertPreTokenizer") return std::make_unique<BertPreTokenizer>();
  if (type == "ByteLevel") {
    return std::make_unique<ByteLevelPreTokenizer>(json.get("add_prefix_space", true), json.get("use_regex", true));
  }
  if (type == "Whitespace") return std::make_unique<Whitespace>();
  if (type == "WhitespaceSplit") return std::make_unique<WhitespaceSplit>();
  if (type == "Punctuation") {
    return std::make_unique<Punctuation>(json.has("behavior") ? read_behavior(json.at("behavior"))
                                                              : Behavior::isolated);
  }
  if (type == "Digits") return std::make_unique<Digits>(json.get("individual_digits", false));
  if (type == "Split") {
    return std::make_unique<Split>(read_pattern(json.at("pattern")), read_behavior(json.at("behavior")),
                                   json.get("invert", false));
  }
  if (type == "Metaspace") return make_metaspace(json);
  if (type == "Sequence") {
    std::vector<std::unique_ptr<PreTokenizer>> parts;
    const JsonValue list = json.at("pretokenizers");
    list.expect_array();
    for (size_t i = 0; i < list.size(); ++i) parts.push_back(make_pre_tokenizer(list.at(i)));
    return std::make_unique<PreTokenizerSequence>(std::move(parts));
  }
  json.at("type").fail("unsupported pre-tokenizer");
}

}  // namespace brim::text
