// SPDX-License-Identifier: Apache-2.0
// Fast path for BERT: normalizes and splits in one pass, code point by code point, caching the normalized form of each
// code point per thread.
// Combining marks that need reordering are left to the general pipeline.
#include <array>

#include "base/utf8.h"
#include "text/fast/fast_path.h"
#include "text/hf/bert_normalizer.h"
#include "text/hf/wordpiece.h"
#include "text/unicode/unicode.h"

namespace brim::text {
namespace {

enum ByteKind : uint8_t { kWordByte, kSpaceByte, kPunctuationByte, kGoneByte, kWideByte };

class BertFastPath : public FastPath {
 public:
  BertFastPath(const BertNormalizer& normalizer, const WordPieceModel& model)
      : options_(normalizer.options()), model_(model) {
    std::vector<int32_t> ids;
    for (char32_t c = 0; c < 128; ++c) {
      const uint16_t properties = unicode::properties(c);
      ByteKind kind = kWordByte;
      if (options_.clean_text && (properties & unicode::kControl) != 0) {
        kind = kGoneByte;
      } else if ((properties & unicode::kWhiteSpace) != 0) {
        kind = kSpaceByte;
      } else if ((properties & unicode::kPunctuation) != 0) {
        kind = kPunctuationByte;
        ids.clear();
        const char one = static_cast<char>(c);
        model_.tokenize_ids({&one, 1}, ids);
        punctuation_[c] = ids[0];
      }
      kinds_[c] = kind;
    }
    for (size_t c = 128; c < 256; ++c) kinds_[c] = kWideByte;
    keep_case_ = options_.lowercase ? 0 : ~uint64_t{0};
  }

  bool encode(std::string_view part, Scratch& s, std::vector<int32_t>& out) const override {
    const size_t before = out.size();
    const Miss miss{model_};
    WordBatch batch(s, out, part.size() / 2);
    const char *at = part.data(), *const end = at + part.size();
    while (at < end) {
      // Up to 15 ASCII letters and digits that form a complete word: build the key in registers.
      uint64_t low = load8(at), lower, high = 0;
      size_t n = swar::run(swar::letters(low, lower) | swar::digits(low));
      if (n == 8) {
        high = load8(at + 8);
        uint64_t high_lower;
        n += swar::run(swar::letters(high, high_lower) | swar::digits(high));
        high = (high & keep_case_) | (high_lower & ~keep_case_);
      }
      n = std::min(n, static_cast<size_t>(end - at));
      const ByteKind next =
          at + n < end ? static_cast<ByteKind>(kinds_[static_cast<unsigned char>(at[n])]) : kSpaceByte;
      const bool apart = next == kSpaceByte || next == kPunctuationByte;
      if (n > 0 && n <= ShortKey::kLongest && apart) [[likely]] {
        low = (low & keep_case_) | (lower & ~keep_case_);
        batch.add(ShortKey::from_window(low, high, n), miss);
        at += n;
        if (at == end) break;
      } else if (n > 0 || !apart) {
        if (encode_slow(at, end, s, batch)) continue;
        batch.close();
        out.resize(before);
        return false;
      }
      if (next == kPunctuationByte) batch.add_id(punctuation_[static_cast<unsigned char>(*at)], miss);
      ++at;
    }
    batch.flush(miss);
    batch.close();
    return true;
  }

 private:
  struct Miss {
    const WordPieceModel& model;
    void operator()(std::string_view word, std::vector<int32_t>& out) const { model.tokenize_ids(word, out); }
  };

  void add_word(std::string_view word, WordBatch& batch) const {
    if (word.empty()) return;
    if (word.size() <= ShortKey::kLongest) return batch.add(ShortKey::from(word), Miss{model_});
    batch.add_long(word, Miss{model_});
  }

  // Encodes one word and any separate character after it, by code points. Advances `at` by at least one.
  bool encode_slow(const char*& at, const char* end, Scratch& s, WordBatch& batch) const {
    s.word.clear();
    while (at < end) {
      const auto c = static_cast<unsigned char>(*at);
      const auto kind = static_cast<ByteKind>(kinds_[c]);
      if (kind == kSpaceByte || kind == kPunctuationByte) break;
      if (kind == kWordByte || kind == kGoneByte) {
        const bool upper = options_.lowercase && c >= 'A' && c <= 'Z';
        if (kind == kWordByte) s.word.push_back(static_cast<char>(upper ? c + 32 : c));
        ++at;
        continue;
      }
      const CodePoint p = decode_valid({at, static_cast<size_t>(end - at)}, 0);
      at += p.bytes;
      const CharForm& form = form_of(p.value, s);
      if (form.kind == CharForm::general) return false;
      if (form.kind == CharForm::word) {
        s.word.append(form.bytes, form.size);
        continue;
      }
      add_word(s.word, batch);
      if (form.kind == CharForm::apart) add_word({form.bytes, form.size}, batch);
      return true;
    }
    add_word(s.word, batch);
    return true;
  }

  const CharForm& form_of(char32_t c, Scratch& s) const {
    CharForm& form = s.forms[(c ^ c >> 9) % s.forms.size()];
    if (form.c != c) form = make_form(c);
    return form;
  }

  // Normalized form of one code point, and how the pre-tokenizer splits around it.
  CharForm make_form(char32_t c) const {
    CharForm form;
    form.c = c;
    form.kind = CharForm::word;
    if (options_.clean_text) {
      if (unicode::has(c, unicode::kControl)) return form;
      if (unicode::is_white_space(c)) c = ' ';
    }
    const bool cjk = options_.handle_chinese_chars && unicode::is_cjk(c);
    char32_t hangul[3];
    std::span<const char32_t> parts(&c, 1);
    if (options_.strip_accents) {
      if (const auto found = unicode::decompose(c, false, hangul); !found.empty()) parts = found;
    }
    std::string bytes;
    size_t kept = 0, spaces = 0, marks = 0;
    for (const char32_t part : parts) {
      if (options_.strip_accents && unicode::has(part, unicode::kNonspacing)) continue;
      // A remaining mark may have to be reordered with its neighbours.
      if (options_.strip_accents && unicode::combining_class(part) != 0) form.kind = CharForm::general;
      char32_t lower[2] = {part, 0};
      const int n = options_.lowercase ? unicode::to_lower(part, lower) : 1;
      for (int i = 0; i < n; ++i) {
        append_utf8(bytes, lower[i]);
        spaces += unicode::is_white_space(lower[i]);
        marks += unicode::has(lower[i], unicode::kPunctuation);
        ++kept;
      }
    }
    if (bytes.size() > sizeof(form.bytes) || (kept > 1 && spaces + marks > 0)) form.kind = CharForm::general;
    if (form.kind == CharForm::general) return form;
    if (kept == 1 && spaces == 1) {
      form.kind = CharForm::space;
    } else if (kept > 0 && (cjk || marks > 0)) {
      form.kind = CharForm::apart;
    }
    form.size = static_cast<uint8_t>(bytes.size());
    std::memcpy(form.bytes, bytes.data(), bytes.size());
    return form;
  }

  const BertNormalizer::Options options_;
  const WordPieceModel& model_;
  std::array<uint8_t, 256> kinds_{};
  std::array<int32_t, 128> punctuation_{};
  uint64_t keep_case_ = 0;
};

}  // namespace

std::unique_ptr<FastPath> make_bert_fast_path(const BertNormalizer& normalizer, const WordPieceModel& model) {
  return std::make_unique<BertFastPath>(normalizer, model);
}

}  // namespace brim::text
