// SPDX-License-Identifier: Apache-2.0
// The normalizers of tokenizer.json, one small class each, and their factory.
#include <algorithm>

#include "base/utf8.h"
#include "text/components.h"
#include "text/hf/bert_normalizer.h"
#include "text/hf/byte_level.h"
#include "text/hf/pattern.h"
#include "text/json_reader.h"
#include "text/unicode/unicode.h"

namespace brim::text {
namespace {

// Rebuilds the text: `put` appends the replacement of each code point, located at bytes [begin, end).
template <class Put>
void rebuild(NormalizedText& text, Put put) {
  NormalizedText out = text.emptied();
  out.text.reserve(text.text.size());
  for (size_t i = 0; i < text.text.size();) {
    const CodePoint p = decode_valid(text.text, i);
    const size_t next = i + static_cast<size_t>(p.bytes);
    put(out, p.value, i, next);
    i = next;
  }
  text.swap(out);
}

// Keeps the code points that `keep` accepts.
template <class Keep>
void filter(NormalizedText& text, Keep keep) {
  rebuild(text, [&](NormalizedText& out, char32_t c, size_t begin, size_t end) {
    if (keep(c)) out.copy_from(text, begin, end);
  });
}

// Replaces each code point by another one.
template <class Map>
void map_chars(NormalizedText& text, Map map) {
  rebuild(text,
          [&](NormalizedText& out, char32_t c, size_t begin, size_t) { out.append(map(c), text.span_at(begin)); });
}

// True if every code point is below `limit` (which must be 0x80 or 0x300).
bool all_below(std::string_view text, char32_t limit) {
  const unsigned char lead = limit <= 0x80 ? 0x80 : 0xCC;  // 0xCC 0x80 is U+0300
  return std::all_of(text.begin(), text.end(), [&](char c) {
    const auto b = static_cast<unsigned char>(c);
    return b < lead || (limit > 0x80 && (b & 0xC0) == 0x80);
  });
}

void normalize_unicode(NormalizedText& text, unicode::Form form) {
  // ASCII is already normalized; NFC does not change anything below U+0300.
  if (all_below(text.text, form == unicode::Form::nfc ? 0x300 : 0x80)) return;
  std::vector<Rewrite> chars;
  if (!unicode::normalize(text.text, form, chars, text.limit)) text.fail_limit();
  text.transform(chars);
}

void lowercase(NormalizedText& text) {
  rebuild(text, [&](NormalizedText& out, char32_t c, size_t begin, size_t) {
    char32_t lower[2];
    const int n = unicode::to_lower(c, lower);
    for (int k = 0; k < n; ++k) out.append(lower[k], text.span_at(begin));
  });
}

class UnicodeForm : public Normalizer {
 public:
  explicit UnicodeForm(unicode::Form form) : form_(form) {}
  void apply(NormalizedText& text) const override { normalize_unicode(text, form_); }
  Traits traits() const override { return {.by_word = true}; }

 private:
  unicode::Form form_;
};

class Lowercase : public Normalizer {
 public:
  void apply(NormalizedText& text) const override { lowercase(text); }
  Traits traits() const override { return {.by_word = true}; }
};

class StripAccents : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    filter(text, [](char32_t c) { return !unicode::has(c, unicode::kCombining); });
  }
  Traits traits() const override { return {.by_word = true}; }
};

class Strip : public Normalizer {
 public:
  Strip(bool left, bool right) : left_(left), right_(right) {}
  void apply(NormalizedText& text) const override {
    const std::string& s = text.text;
    size_t begin = 0, end = s.size();
    while (left_ && begin < end) {
      const CodePoint p = decode_valid(s, begin);
      if (!unicode::is_white_space(p.value)) break;
      begin += static_cast<size_t>(p.bytes);
    }
    while (right_ && begin < end) {
      size_t last = end - 1;
      while ((static_cast<unsigned char>(s[last]) & 0xC0) == 0x80) --last;
      if (!unicode::is_white_space(decode_valid(s, last).value)) break;
      end = last;
    }
    NormalizedText out = text.emptied();
    out.copy_from(text, begin, end);
    text.swap(out);
  }
  Traits traits() const override {
    return {.by_word = true, .makes_spaces = false, .trims = left_ || right_, .strips_end = right_};
  }

 private:
  bool left_, right_;
};

class Nmt : public Normalizer {
 public:
  void apply(NormalizedText& text) const override {
    filter(text, [](char32_t c) {
      const bool dropped =
          (c >= 0x1 && c <= 0x8) || c == 0xB || (c >= 0xE && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F;
      return !dropped;
    });
    map_chars(text, [](char32_t c) -> char32_t {
      const bool space = c == 0x9 || c == 0xA || c == 0xC || c == 0xD || c == 0x1680 || (c >= 0x200B && c <= 0x200F) ||
                         c == 0x2028 || c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      return space ? U' ' : c;
    });
  }
};

class Prepend : public Normalizer {
 public:
  explicit Prepend(std::string text) : prefix_(std::move(text)) {}
  void apply(NormalizedText& text) const override {
    if (text.text.empty()) return;
    NormalizedText out = text.emptied();
    out.append(prefix_, text.span_at(0));
    out.copy_from(text, 0, text.text.size());
    text.swap(out);
  }

 private:
  std::string prefix_;
};

class Replace : public Normalizer {
 public:
  Replace(Pattern pattern, std::string content)
      : pattern_(std::move(pattern)), content_(std::move(content)), traits_(find_traits()) {}
  void apply(NormalizedText& text) const override {
    if (traits_.joins_spaces && text.text.find("  ") == std::string::npos) return;  // common case, without the regex
    NormalizedText out;
    size_t done = 0;
    bool found = false;
    pattern_.for_each_match(text.text, [&](size_t begin, size_t end) {
      if (!found) {
        out = text.emptied();
        found = true;
      }
      out.copy_from(text, done, begin);
      // Inserted text shares the origin of the last code point it replaces (or of the one before, if it replaces none).
      Span span{text.origin, text.origin};
      if (end > begin) {
        span = text.span_at(end - 1);
      } else if (out.tracked && !out.spans.empty()) {
        span = out.spans.back();
      }
      out.append(content_, span);
      done = end;
    });
    if (!found) return;
    out.copy_from(text, done, text.text.size());
    text.swap(out);
  }
  Traits traits() const override { return traits_; }

 private:
  Traits find_traits() const {
    const bool white = content_.find_first_of(" \t\n\v\f\r") != std::string::npos;
    const bool ascii = std::all_of(content_.begin(), content_.end(), [](char c) { return c > 0; });
    if (pattern_.is_regex()) {
      const bool joins = pattern_.source() == " {2,}" && (content_ == " " || content_ == "\u2581");
      return {.by_word = joins, .makes_spaces = false, .joins_spaces = joins};
    }
    return {.by_word = pattern_.source().find(' ') == std::string::npos && !content_.empty() && !white && ascii};
  }

  Pattern pattern_;
  std::string content_;
  Traits traits_;
};

class ByteLevelNormalizer : public Normalizer {
 public:
  void apply(NormalizedText& text) const override { to_byte_level(text); }
};

class NormalizerSequence : public Normalizer {
 public:
  explicit NormalizerSequence(std::vector<std::unique_ptr<Normalizer>> parts) : parts_(std::move(parts)) {}
  void apply(NormalizedText& text) const override {
    for (const auto& part : parts_) part->apply(text);
  }
  Traits traits() const override { return chain_traits(parts_); }

 private:
  std::vector<std::unique_ptr<Normalizer>> parts_;
};

}  // namespace

Normalizer::Traits chain_traits(std::span<const std::unique_ptr<Normalizer>> parts) {
  Normalizer::Traits all{.by_word = true, .makes_spaces = false};
  for (const auto& part : parts) {
    const Normalizer::Traits one = part->traits();
    // The ends of a word are not the ends of the text: a step that runs on trimmed words may see other neighbours.
    all.by_word = all.by_word && one.by_word && (!all.trims || one.trims || one.joins_spaces);
    all.trims = all.trims || one.trims;
    // Spaces are joined after the end was stripped, so no mark can follow a space that would have been stripped.
    all.joins_spaces = (one.joins_spaces && all.strips_end) || (all.joins_spaces && !one.makes_spaces);
    all.strips_end = one.strips_end || (all.strips_end && !one.makes_spaces);
    all.makes_spaces = all.makes_spaces || one.makes_spaces;
  }
  return all;
}

void BertNormalizer::apply(NormalizedText& text) const {
  if (options_.clean_text) {
    filter(text, [](char32_t c) { return !unicode::has(c, unicode::kControl); });
    map_chars(text, [](char32_t c) { return unicode::is_white_space(c) ? U' ' : c; });
  }
  if (options_.handle_chinese_chars) {
    rebuild(text, [&](NormalizedText& out, char32_t c, size_t begin, size_t end) {
      const bool cjk = unicode::is_cjk(c);
      if (cjk) out.append(" ", text.span_at(begin));
      out.copy_from(text, begin, end);
      if (cjk) out.append(" ", text.span_at(begin));
    });
  }
  if (options_.strip_accents) {
    normalize_unicode(text, unicode::Form::nfd);
    filter(text, [](char32_t c) { return !unicode::has(c, unicode::kNonspacing); });
  }
  if (options_.lowercase) lowercase(text);
}

std::unique_ptr<Normalizer> make_normalizer(const JsonValue& json) {
  const std::string type = json.at("type").as_string();
  if (type == "BertNormalizer") {
    BertNormalizer::Options options;
    options.clean_text = json.get("clean_text", true);
    options.handle_chinese_chars = json.get("handle_chinese_chars", true);
    options.lowercase = json.get("lowercase", true);
    options.strip_accents = json.get("strip_accents", options.lowercase);
    return std::make_unique<BertNormalizer>(options);
  }
  if (type == "NFD") return std::make_unique<UnicodeForm>(unicode::Form::nfd);
  if (type == "NFKD") return std::make_unique<UnicodeForm>(unicode::Form::nfkd);
  if (type == "NFC") return std::make_unique<UnicodeForm>(unicode::Form::nfc);
  if (type == "NFKC") return std::make_unique<UnicodeForm>(unicode::Form::nfkc);
  if (type == "Lowercase") return std::make_unique<Lowercase>();
  if (type == "StripAccents") return std::make_unique<StripAccents>();
  if (type == "Strip") return std::make_unique<Strip>(json.get("strip_left", true), json.get("strip_right", true));
  if (type == "Nmt") return std::make_unique<Nmt>();
  if (type == "Prepend") return std::make_unique<Prepend>(json.at("prepend").as_string());
  if (type == "Replace") {
    return std::make_unique<Replace>(read_pattern(json.at("pattern")), json.at("content").as_string());
  }
  if (type == "ByteLevel") return std::make_unique<ByteLevelNormalizer>();
  if (type == "Precompiled") return make_precompiled(json);
  if (type == "Sequence") {
    std::vector<std::unique_ptr<Normalizer>> parts;
    const JsonValue list = json.at("normalizers");
    list.expect_array();
    for (size_t i = 0; i < list.size(); ++i) parts.push_back(make_normalizer(list.at(i)));
    return std::make_unique<NormalizerSequence>(std::move(parts));
  }
  json.at("type").fail("unsupported normalizer");
}

}  // namespace brim::text
