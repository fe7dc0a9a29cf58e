// SPDX-License-Identifier: Apache-2.0
#include "text/unicode/grapheme.h"

#include <array>
#include <cstdint>
#include <vector>

#include "base/utf8.h"

namespace brim::text {
namespace {

enum Class : uint8_t {
  kOther,
  kControl,
  kExtend,     // joins the preceding character; transparent between an Indic consonant and its linker
  kJoiner,     // joins, not transparent there
  kMark,       // joins, and ends an emoji sequence
  kLinker,     // joins, and links two Indic consonants
  kConsonant,  // in a script with linkers
  kPrepend,    // joins the following character
  kPict,       // may follow a pictograph and U+200D
  kLead,       // Hangul
  kVowel,
  kTrail,
};

struct Range {
  char32_t first, last;
  Class kind;
};
constexpr Range kRanges[] = {
#include "text/unicode/grapheme_table.inc"
};

// Two stages: blocks of 256 code points; empty blocks are shared.
class ClassTable {
 public:
  ClassTable() : blocks_(256, kOther) {
    for (const Range& range : kRanges) {
      for (char32_t c = range.first; c <= range.last; ++c) {
        uint16_t& block = block_of_[c >> 8];
        if (block == 0) {
          block = static_cast<uint16_t>(blocks_.size() >> 8);
          blocks_.resize(blocks_.size() + 256, kOther);
        }
        blocks_[block << 8 | (c & 0xFF)] = range.kind;
      }
    }
  }
  Class operator[](char32_t c) const { return blocks_[block_of_[c >> 8] << 8 | (c & 0xFF)]; }

 private:
  std::array<uint16_t, 0x1100> block_of_{};
  std::vector<Class> blocks_;
};

const ClassTable& classes() {
  static const ClassTable table;
  return table;
}

bool joins(Class kind) { return kind == kExtend || kind == kJoiner || kind == kMark || kind == kLinker; }

constexpr char32_t kZeroWidthJoiner = 0x200D;

bool is_syllable(char32_t c) { return c >= 0xAC00 && c <= 0xD7A3; }
bool is_flag_letter(char32_t c) { return c >= 0x1F1E6 && c <= 0x1F1FF; }

bool hangul_joins(char32_t a, Class a_kind, char32_t b, Class b_kind) {
  const bool open_syllable = is_syllable(a) && (a - 0xAC00) % 28 == 0;
  if (a_kind == kLead) return b_kind == kLead || b_kind == kVowel || is_syllable(b);
  if (a_kind == kVowel || open_syllable) return b_kind == kVowel || b_kind == kTrail;
  if (a_kind == kTrail || is_syllable(a)) return b_kind == kTrail;
  return false;
}

}  // namespace

size_t grapheme_end(std::string_view text, size_t at) {
  const ClassTable& table = classes();
  CodePoint last = decode_valid(text, at);
  Class last_kind = table[last.value];
  at += last.bytes;
  bool pictograph = last_kind == kPict;     // a pictograph, then only extenders
  bool conjunct = last_kind == kConsonant;  // a consonant, then only extenders and linkers
  bool linked = false;                      // … with a linker among them
  bool odd_flag_letters = is_flag_letter(last.value);
  while (at < text.size()) {
    const CodePoint next = decode_valid(text, at);
    const Class kind = table[next.value];
    const bool joins_always = joins(kind);
    bool joined = false;
    if (last_kind == kControl || kind == kControl) {
      joined = last.value == '\r' && next.value == '\n';
    } else if (joins_always || last_kind == kPrepend) {
      joined = true;
    } else if (kind == kConsonant) {
      joined = conjunct && linked;
    } else if (kind == kPict) {
      joined = pictograph && last.value == kZeroWidthJoiner;
    } else if (is_flag_letter(next.value)) {
      joined = odd_flag_letters;
    } else {
      joined = hangul_joins(last.value, last_kind, next.value, kind);
    }
    if (!joined) break;
    if (!joins_always) {
      pictograph = kind == kPict;
      conjunct = kind == kConsonant;
      linked = false;
    } else {
      pictograph = pictograph && kind != kMark;
      conjunct = conjunct && (kind == kExtend || kind == kLinker);
      linked = linked || kind == kLinker;
    }
    odd_flag_letters = is_flag_letter(next.value) && !odd_flag_letters;
    last = next;
    last_kind = kind;
    at += next.bytes;
  }
  return at;
}

bool joins_before(char32_t c) { return joins(classes()[c]); }
bool joins_after(char32_t c) { return classes()[c] == kPrepend; }

}  // namespace brim::text
