// SPDX-License-Identifier: Apache-2.0
#include "text/spm/charsmap.h"

#include <array>

#include "base/error.h"
#include "base/utf8.h"
#include "text/components.h"
#include "text/json_reader.h"
#include "text/unicode/grapheme.h"
#include "text/unicode/unicode.h"

namespace brim::text {
namespace {

uint32_t little_endian(std::string_view bytes, size_t at) {
  uint32_t value = 0;
  for (int i = 3; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[at + i]);
  return value;
}

class Precompiled final : public Normalizer {
 public:
  Precompiled(std::string_view blob, const std::string& where) : map_(blob, where) {
    for (int c = 0; c < 128; ++c) {
      const char text[1] = {static_cast<char>(c)};
      // A carriage return may be part of a \r\n cluster.
      plain_[c] = c != '\r' && !map_.find(std::string_view(text, 1));
    }
  }

  void apply(NormalizedText& text) const override {
    const size_t begin = first_rewriting(text.text);
    if (begin == text.text.size()) return;
    if (text.tracked) {
      rewrite_tracked(text, begin);
    } else {
      rewrite(text, begin);
    }
  }

  Traits traits() const override { return {.by_word = !map_.has_key_with_space() && !map_.makes_odd_white_space()}; }

 private:
  // Longer clusters are never looked up as a whole.
  static constexpr size_t kLongestWhole = 5;

  // True for a code point below 128 that is unchanged and ends its cluster.
  bool plain_at(std::string_view text, size_t at) const {
    const auto c = static_cast<unsigned char>(text[at]);
    return c < 0x80 && plain_[c] && (at + 1 == text.size() || static_cast<unsigned char>(text[at + 1]) < 0x80);
  }

  // Calls rewritten(old, fresh) or kept(old) for each part of the cluster at `at`; returns the cluster's end.
  template <class Rewritten, class Kept>
  size_t cluster(std::string_view text, size_t at, Rewritten rewritten, Kept kept) const {
    const size_t end = grapheme_end(text, at);
    const std::string_view whole = text.substr(at, end - at);
    if (whole.size() <= kLongestWhole) {
      if (const auto fresh = map_.find(whole)) {
        rewritten(whole, *fresh);
        return end;
      }
      if (whole.size() == static_cast<size_t>(decode_valid(text, at).bytes)) {
        kept(whole);
        return end;
      }
    }
    while (at < end) {
      const std::string_view part = text.substr(at, decode_valid(text, at).bytes);
      if (const auto fresh = map_.find(part)) {
        rewritten(part, *fresh);
      } else {
        kept(part);
      }
      at += part.size();
    }
    return end;
  }

  // Start of the first cluster that changes; the size if none does.
  size_t first_rewriting(std::string_view text) const {
    size_t at = 0;
    while (at < text.size()) {
      if (plain_at(text, at)) {
        ++at;
        continue;
      }
      bool found = false;
      const size_t end = cluster(
          text, at, [&](auto, auto) { found = true; }, [](auto) {});
      if (found) return at;
      at = end;
    }
    return at;
  }

  void rewrite(NormalizedText& normalized, size_t at) const {
    thread_local std::string out;
    std::string& text = normalized.text;
    out.assign(text, 0, at);
    while (at < text.size()) {
      if (plain_at(text, at)) {
        out.push_back(text[at++]);
        continue;
      }
      at = cluster(
          text, at, [&](std::string_view, std::string_view fresh) { out.append(fresh); },
          [&](std::string_view old) { out.append(old); });
      normalized.expect_bytes(out.size());
    }
    text.assign(out);
  }

  void rewrite_tracked(NormalizedText& text, size_t at) const {
    thread_local std::vector<Rewrite> out;
    out.clear();
    const std::string_view old_text = text.text;
    const auto keep = [&](std::string_view old) { out.push_back({decode_valid(old, 0).value, 0}); };
    // Surplus code points count as inserted; missing ones are attributed to the last one written, regardless of its
    // origin. If nothing has been written yet they are ignored and the origins shift, as in the reference.
    const auto replace = [&](std::string_view old, std::string_view fresh) {
      const auto old_count = static_cast<int32_t>(count_code_points(old));
      int32_t fresh_count = 0;
      for (size_t i = 0; i < fresh.size();) {
        const CodePoint c = decode_valid(fresh, i);
        out.push_back({c.value, fresh_count++ < old_count ? 0 : 1});
        i += c.bytes;
      }
      if (fresh_count < old_count && !out.empty()) out.back().change += fresh_count - old_count;
    };
    for (size_t i = 0; i < at;) {
      const CodePoint c = decode_valid(old_text, i);
      out.push_back({c.value, 0});
      i += c.bytes;
    }
    while (at < old_text.size()) {
      at = cluster(old_text, at, replace, keep);
      text.expect_bytes(out.size());
    }
    text.transform(out);
  }

  Charsmap map_;
  std::array<bool, 128> plain_{};
};

std::string decode_base64(const JsonValue& json) {
  const std::string text = json.as_string();
  std::string out;
  out.reserve(text.size() / 4 * 3);
  uint32_t bits = 0;
  size_t count = 0, size = text.size();
  if (size % 4 != 0) json.fail(fmt::format("{} characters are not a multiple of 4", size));
  while (size > 0 && text.size() - size < 2 && text[size - 1] == '=') --size;
  for (size_t i = 0; i < size; ++i) {
    const char c = text[i];
    uint32_t value;
    if (c >= 'A' && c <= 'Z') {
      value = c - 'A';
    } else if (c >= 'a' && c <= 'z') {
      value = c - 'a' + 26;
    } else if (c >= '0' && c <= '9') {
      value = c - '0' + 52;
    } else if (c == '+' || c == '/') {
      value = c == '+' ? 62 : 63;
    } else {
      json.fail(fmt::format("character {} is not base64", i));
    }
    bits = bits << 6 | value;
    if (++count % 4 != 1) out.push_back(static_cast<char>(bits >> (6 - 2 * ((count - 1) % 4))));
  }
  return out;
}

}  // namespace

Charsmap::Charsmap(std::string_view blob, const std::string& where) {
  const auto bad = [&](const std::string& what) {
    fail(ErrorCode::bad_model, "{}: precompiled_charsmap: {}; the file is damaged; download it again", where, what);
  };
  if (blob.size() < 4) bad(fmt::format("{} bytes are too few", blob.size()));
  const uint32_t trie_bytes = little_endian(blob, 0);
  if (trie_bytes > blob.size() - 4)
    bad(fmt::format("trie requires {} bytes, but {} are left", trie_bytes, blob.size() - 4));
  if (trie_bytes % 4 != 0 || trie_bytes == 0) bad(fmt::format("invalid trie size of {} bytes", trie_bytes));
  units_.resize(trie_bytes / 4);
  for (size_t i = 0; i < units_.size(); ++i) units_[i] = little_endian(blob, 4 + 4 * i);
  rewritings_ = blob.substr(4 + trie_bytes);
  if (!is_valid_utf8(rewritings_)) bad("rewritings are not UTF-8");

  // A transition from unit i leads to (i ^ offset) ^ label, within one block of 256. Units with the top bit set are
  // values; no transition reaches them as nodes.
  const size_t size = units_.size();
  for (size_t i = 0; i < size; ++i) {
    const uint32_t unit = units_[i];
    if (i > 0 && (unit >> 31) != 0) continue;
    const size_t block = i ^ offset(unit);
    if ((block | 0xFF) >= size) bad(fmt::format("unit {} ({:#x}) points to {} of {}", i, unit, block, size));
    if (i > 0 && (unit & kHasValue)) {
      const size_t value = units_[block] & kValueMask;
      const bool inside = value <= rewritings_.size();  // the end is an empty replacement
      if (!inside || (static_cast<unsigned char>(rewritings_[value]) & 0xC0) == 0x80) {
        bad(fmt::format("unit {} has its rewriting at {} of {}", block, value, rewritings_.size()));
      }
    }
  }
}

bool Charsmap::makes_odd_white_space() const {
  for (size_t at = 0; at < rewritings_.size();) {
    const CodePoint c = decode_valid(rewritings_, at);
    if (c.value != ' ' && unicode::is_white_space(c.value)) return true;
    at += c.bytes;
  }
  return false;
}

std::unique_ptr<Normalizer> make_precompiled(std::string_view blob, const std::string& where) {
  return std::make_unique<Precompiled>(blob, where);
}

std::unique_ptr<Normalizer> make_precompiled(const JsonValue& json) {
  const std::string blob = decode_base64(json.at("precompiled_charsmap"));
  return make_precompiled(blob, fmt::format("{}: {}", json.file().string(), json.place()));
}

}  // namespace brim::text
