// SPDX-License-Identifier: Apache-2.0
// VADER tokenizer: finds, strips and lowercases tokens sixteen bytes at a time with few branches, because word ends,
// punctuation and lexicon hits are unpredictable. Other input (long tokens, characters outside ASCII, unusual white
// space) is processed character by character.
#include "text/vader/vader_tokens.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <string>

#include "base/utf8.h"

#if defined(__SSE2__)
#include <emmintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace brim::text::vader {
namespace {

static_assert(std::endian::native == std::endian::little, "word keys are little-endian chunks");

// A lowercase word of up to kLongestWord bytes: the first eight, the next eight, and the last one above the length.
struct WordKey {
  uint64_t head = 0;
  uint64_t rest = 0;
  uint32_t end_and_size = 0;  // 0 in an empty slot
};

struct WordEntry {
  WordKey key;
  Token token;
};

#include "text/vader/tables.inc"

// ---- characters ----

enum class CharClass : uint8_t { other, upper, lower, space };  // as packed in kCase

CharClass class_of(char32_t code_point) {
  if (code_point >= 0x20000) return CharClass::other;
  const uint64_t packed = kCase[kCasePage[code_point >> 6] * 2 + (code_point >> 5 & 1)];
  return static_cast<CharClass>(packed >> (code_point & 31) * 2 & 3);
}

// Classes of ASCII characters; combined with OR for the characters of a token.
enum CharFlag : uint8_t { kUpperCase = 1, kLowerCase = 2, kSpace = 4, kPunctuation = 8, kApostrophe = 16 };

struct AsciiFlags {
  uint8_t of[128] = {};
  constexpr AsciiFlags() {
    for (uint8_t c = 33; c < 127; ++c) of[c] = kPunctuation;
    for (uint8_t c = 'A'; c <= 'Z'; ++c) {
      of[c] = kUpperCase;
      of[c + 32] = kLowerCase;
    }
    for (uint8_t c = '0'; c <= '9'; ++c) of[c] = 0;
    for (uint8_t c = 9; c <= 13; ++c) of[c] = kSpace;
    for (uint8_t c = 28; c <= 32; ++c) of[c] = kSpace;
    of[0x27] |= kApostrophe;
  }
};
constexpr AsciiFlags kAscii;

bool is_wide(char c) { return static_cast<uint8_t>(c) >= 0x80; }

bool is_punctuation(char c) { return !is_wide(c) && kAscii.of[static_cast<uint8_t>(c)] & kPunctuation; }

CodePoint decode_at(const char* at) { return decode_valid({at, 4}, 0); }

// ---- sixteen bytes at a time ----

typedef uint8_t Bytes __attribute__((vector_size(16)));
typedef int8_t SignedBytes __attribute__((vector_size(16)));
typedef uint64_t Halves __attribute__((vector_size(16)));

// Every text is copied and padded with this many spaces, so that whole vectors can be read past its end.
constexpr size_t kPadding = 32;

Bytes load_bytes(const void* from) {
  Bytes bytes;
  std::memcpy(&bytes, from, 16);
  return bytes;
}

// One mark per byte of a comparison's result (0 or 255), lowest byte first, kMarkBits apart.
#if defined(__SSE2__)
constexpr int kMarkBits = 1;
uint64_t marks_of(Bytes truth) { return static_cast<uint32_t>(_mm_movemask_epi8(reinterpret_cast<__m128i>(truth))); }
#elif defined(__ARM_NEON)
constexpr int kMarkBits = 4;
uint64_t marks_of(Bytes truth) {
  const uint8x8_t nibbles = vshrn_n_u16(reinterpret_cast<uint16x8_t>(truth), 4);
  return vget_lane_u64(vreinterpret_u64_u8(nibbles), 0);
}
#else
constexpr int kMarkBits = 1;
uint64_t marks_of(Bytes truth) {
  uint64_t marks = 0;
  for (int i = 0; i < 16; ++i) marks |= static_cast<uint64_t>(truth[i] & 1) << i;
  return marks;
}
#endif

// Index of the first and the last mark; without marks a large number and 0, which avoids a branch.
size_t first_mark(uint64_t marks) {
  return static_cast<unsigned>(std::countr_zero(marks | uint64_t{1} << 63)) / kMarkBits;
}
size_t last_mark(uint64_t marks) { return static_cast<unsigned>(63 - std::countl_zero(marks | 1)) / kMarkBits; }

uint64_t wide_marks(Bytes bytes) { return marks_of(reinterpret_cast<Bytes>(reinterpret_cast<SignedBytes>(bytes) < 0)); }

Bytes in_range(Bytes bytes, uint8_t first, uint8_t last) {
  return reinterpret_cast<Bytes>(bytes - first <= static_cast<uint8_t>(last - first));
}

Bytes ascii_lower(Bytes bytes) { return bytes | (in_range(bytes, 'A', 'Z') & 0x20); }

// ---- words ----

uint64_t slot_of(const WordKey& key) {
  constexpr uint64_t kMultiplier = 0x9E3779B97F4A7C15;
  uint64_t hash = (key.head + kHashSeed) * kMultiplier;
  hash = (hash ^ hash >> 29 ^ (key.rest + (key.end_and_size & 0xff))) * kMultiplier;
  const uint64_t home = hash >> (64 - kBucketBits - kSlotBits) & ((uint64_t{1} << kSlotBits) - 1);
  return home ^ kDisplace[hash >> (64 - kBucketBits)];
}

// The word's token, or an empty one.
Token find_key(const WordKey& key) {
  const WordEntry& found = kWords[slot_of(key)];
  const uint64_t differs =
      (found.key.head ^ key.head) | (found.key.rest ^ key.rest) | uint64_t{found.key.end_and_size ^ key.end_and_size};
  Token token = found.token;
  token.bits &= uint32_t{differs != 0} - 1;
  return token;
}

// Looks up an ASCII word in any case. Reads up to 32 bytes from its start.
Token find_word(const char* word, size_t size) {
  alignas(16) static constexpr uint8_t kPrefix[32] = {255, 255, 255, 255, 255, 255, 255, 255,
                                                      255, 255, 255, 255, 255, 255, 255, 255};
  if (size > kLongestWord) return {};
  const Bytes front = ascii_lower(load_bytes(word)) & load_bytes(kPrefix + 16 - std::min<size_t>(size, 16));
  WordKey key{reinterpret_cast<Halves>(front)[0], reinterpret_cast<Halves>(front)[1], static_cast<uint32_t>(size)};
  if (size > 16) {
    const Bytes back = ascii_lower(load_bytes(word + 16)) & load_bytes(kPrefix + 32 - size);
    key.end_and_size |= static_cast<uint32_t>(reinterpret_cast<Halves>(back)[0]) << 8;
  }
  return find_key(key);
}

// The only character outside ASCII with an ASCII lowercase form: a word of it and ASCII may be in the table.
constexpr char32_t kKelvin = 0x212A;

Token find_word_with_kelvins(std::string_view word) {
  char narrow[kLongestWord + kPadding] = {};
  size_t size = 0;
  for (size_t i = 0; i < word.size(); ++size) {
    if (size == kLongestWord) return {};
    narrow[size] = is_wide(word[i]) ? 'k' : word[i];
    i += is_wide(word[i]) ? 3 : 1;
  }
  return find_word(narrow, size);
}

bool contains_nt(std::string_view word) {
  for (size_t i = 1; i + 1 < word.size(); ++i) {
    if (word[i] == '\'' && (word[i - 1] | 32) == 'n' && (word[i + 1] | 32) == 't') return true;
  }
  return false;
}

// ---- tokens ----

// Marks for the plain bytes of a vector: those before the first control character, space or multi-byte character, which
// are processed individually.
struct PlainMarks {
  uint64_t stops, upper, lower, apostrophes;
  uint64_t inner;  // not punctuation
  uint64_t plain;

  explicit PlainMarks(Bytes bytes) {
    const Bytes capitals = in_range(bytes, 'A', 'Z');
    const Bytes smalls = in_range(bytes, 'a', 'z');
    const Bytes others = in_range(bytes, '0', '9') | reinterpret_cast<Bytes>(bytes == 127);
    stops = marks_of(reinterpret_cast<Bytes>(reinterpret_cast<SignedBytes>(bytes) < 0x21));
    plain = (stops & -stops) - 1;
    upper = marks_of(capitals) & plain;
    lower = marks_of(smalls) & plain;
    inner = marks_of(capitals | smalls | others) & plain;
    apostrophes = marks_of(reinterpret_cast<Bytes>(bytes == '\'')) & plain;
  }
};

Token with_flags(Token token, bool negation, bool upper) {
  token.bits |= uint32_t{negation} * kNegation | uint32_t{upper} * kUpper;
  return token;
}

// Strips punctuation around a word unless at most two characters would remain: it is probably an emoticon.
std::string_view strip_word(std::string_view word, bool wide) {
  const char* first = word.data();
  const char* last = first + word.size();
  while (first < last && is_punctuation(*first)) ++first;
  while (first < last && is_punctuation(last[-1])) --last;
  const std::string_view stripped(first, last - first);
  if (stripped.size() <= 2) return word;
  if (!wide || stripped.size() > 8) return stripped;
  int characters = 0;
  for (const char c : stripped) characters += (c & 0xC0) != 0x80;
  return characters <= 2 ? word : stripped;
}

// Reads the token at `at` and moves `at` to the white space that ends it. Handles any length and kind; not inlined, to
// keep registers free for the short path.
[[gnu::noinline]] Token take_long_token(const char*& at) {
  const char* const begin = at;
  uint8_t seen = 0;
  bool wide = false, only_kelvins = true;
  for (;;) {
    if (!is_wide(*at)) {
      const uint8_t flags = kAscii.of[static_cast<uint8_t>(*at)];
      if (flags & kSpace) break;
      seen |= flags;
      ++at;
      continue;
    }
    const CodePoint decoded = decode_at(at);
    const CharClass kind = class_of(decoded.value);
    if (kind == CharClass::space) break;
    wide = true;
    only_kelvins &= decoded.value == kKelvin;
    seen |= kind == CharClass::upper ? kUpperCase : kind == CharClass::lower ? kLowerCase : 0;
    at += decoded.bytes;
  }
  std::string_view word(begin, at - begin);
  if (seen & kPunctuation) word = strip_word(word, wide);
  Token token;
  if (!wide) {
    token = find_word(word.data(), word.size());
  } else if (only_kelvins) {
    token = find_word_with_kelvins(word);
  }
  const bool upper = (seen & (kUpperCase | kLowerCase)) == kUpperCase;
  return with_flags(token, (seen & kApostrophe) && contains_nt(word), upper);
}

// Fast version for an ASCII token within one vector; may move `at` past the space after it.
Token take_token(const char*& at) {
  const PlainMarks marks(load_bytes(at));
  const size_t size = first_mark(marks.stops);
  if (!marks.stops || at[size] != ' ') return take_long_token(at);
  const size_t first = first_mark(marks.inner);
  const size_t last = last_mark(marks.inner);
  const size_t stripped = last + 1 - first;
  const size_t strip = last < first + 2 ? 0 : ~size_t{0};  // a mask, because the compiler would emit a branch
  const size_t length = size ^ ((size ^ stripped) & strip);
  const char* const word = at + (first & strip);
  at += size + 1;
  const bool negation = marks.apostrophes && contains_nt({word, length});
  return with_flags(find_word(word, length), negation, marks.upper && !marks.lower);
}

// Length of the white space character at `at`, or 0.
size_t space_at(const char* at) {
  if (!is_wide(*at)) return kAscii.of[static_cast<uint8_t>(*at)] & kSpace ? 1 : 0;
  const CodePoint decoded = decode_at(at);
  return class_of(decoded.value) == CharClass::space ? decoded.bytes : 0;
}

// ---- text preparation ----

// Copies and pads the text; false if it is not all ASCII.
bool copy_text(std::string_view text, TextBuffer& copy) {
  copy.size = 0;
  char* const out = copy.room(text.size() + kPadding);
  Bytes all = {};
  const auto copy_vector = [&](size_t at) {
    const Bytes bytes = load_bytes(text.data() + at);
    all |= bytes;
    std::memcpy(out + at, &bytes, 16);
  };
  if (text.size() >= 16) {
    for (size_t at = 0; at + 16 < text.size(); at += 16) copy_vector(at);
    copy_vector(text.size() - 16);
  } else {
    std::copy(text.begin(), text.end(), out);
    std::memset(out + text.size(), ' ', 16);
    all = load_bytes(out);
  }
  copy.size = text.size();
  copy.pad();
  return !wide_marks(all);
}

// Marks for bytes that may begin an emoji of the lexicon.
uint64_t emoji_leads(const char* at) {
  const Bytes bytes = load_bytes(at);
  Bytes leads = {};
  for (const uint8_t lead : kEmojiLeads) leads |= reinterpret_cast<Bytes>(bytes == lead);
  return marks_of(leads);
}

bool may_hold_emoji(std::string_view padded) {
  uint64_t leads = 0;
  for (size_t at = 0; at < padded.size(); at += 16) leads |= emoji_leads(padded.data() + at);
  return leads;
}

// Copies valid, padded text and replaces each emoji of the lexicon by its description. A space is inserted before it
// unless it follows a space or starts the text; none is inserted after it, so a directly following word is joined to
// the description, as in the reference.
void describe_emoji(std::string_view text, TextBuffer& out) {
  out.size = 0;
  size_t at = 0;
  while (at < text.size()) {
    char* const to = out.room(16 + 1 + kLongestEmojiText);
    std::memcpy(to, text.data() + at, 16);
    const uint64_t leads = emoji_leads(text.data() + at);
    const size_t before = leads ? first_mark(leads) : 16;
    at += before;
    out.size += before;
    if (!leads) continue;
    const CodePoint decoded = decode_at(text.data() + at);
    const char32_t c = decoded.value;
    const uint16_t emoji = c < 0x20000 ? kEmoji[kEmojiPage[c >> 6] * 64 + (c & 63)] : 0;
    if (emoji) {
      const bool spaced = at == 0 || text[at - 1] == ' ';
      to[before] = ' ';
      std::memcpy(to + before + !spaced, kEmojiText + kEmojiTextAt[emoji - 1], kLongestEmojiText);
      out.size += !spaced + kEmojiTextAt[emoji] - kEmojiTextAt[emoji - 1];
    } else {
      std::memcpy(to + before, text.data() + at, 4);
      out.size += decoded.bytes;
    }
    at += decoded.bytes;
  }
  out.size -= at - text.size();  // padding that was copied with the last bytes
  out.pad();
}

// Input text for the rules: valid UTF-8, padded, emoji described.
std::string_view prepare_text(std::string_view utf8, TextBuffer& copy, TextBuffer& described) {
  if (copy_text(utf8, copy)) return copy.text();
  if (!is_valid_utf8(utf8)) copy_text(replace_invalid_utf8(utf8), copy);
  if (!may_hold_emoji(copy.text())) return copy.text();
  describe_emoji(copy.text(), described);
  return described.text();
}

}  // namespace

char* TextBuffer::room(size_t count) {
  if (bytes.size() < size + count) bytes.resize(std::max(size + count, bytes.size() * 2));
  return bytes.data() + size;
}

void TextBuffer::pad() { std::memset(room(kPadding), ' ', kPadding); }

void TokenReader::read(std::string_view utf8) {
  text_ = prepare_text(utf8, copy_, described_);
  const size_t room = text_.size() / 2 + 1 + kBefore + kAfter;
  if (tokens_.size() < room) tokens_.resize(room);
  Token* const first = tokens_.data() + kBefore;
  Token* next = first;
  upper_count_ = any_flags_ = 0;
  const char* at = text_.data();
  const char* const end = at + text_.size();
  for (;;) {
    while (static_cast<uint8_t>(*at - '!') > '~' - '!' && at < end) {  // not a plain character
      const size_t space = space_at(at);
      if (space == 0) break;
      at += space;
    }
    if (at >= end) break;
    *next = take_token(at);
    any_flags_ |= next->bits;
    upper_count_ += next->is(kUpper);
    ++next;
  }
  count_ = next - first;
  std::fill_n(next, kAfter, Token{});
}

void TokenReader::give_back_large_buffers() {
  constexpr size_t kKeepBytes = 1 << 18;
  const size_t held = copy_.bytes.capacity() + described_.bytes.capacity() + tokens_.capacity() * sizeof(Token);
  if (held > kKeepBytes) *this = {};
}

}  // namespace brim::text::vader
