// SPDX-License-Identifier: Apache-2.0
// SentencePiece's precompiled character map: a double-array trie from byte strings to replacement text. Applied like
// Hugging Face's Precompiled normalizer, which differs from SentencePiece: it works per grapheme, and the
// replacement of the shortest matching prefix replaces the whole grapheme.
#pragma once
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "text/pipeline.h"

namespace brim::text {

class Charsmap {
 public:
  // `blob` as stored in the file: size of the trie in bytes (uint32), trie units, replacements, each zero-terminated.
  // Throws Error(bad_model) with `where` (file and location) unless all transitions stay in bounds: lookups are
  // unchecked.
  Charsmap(std::string_view blob, const std::string& where);

  // Replacement for the shortest key that is a prefix of `chunk`.
  std::optional<std::string_view> find(std::string_view chunk) const {
    uint32_t at = offset(units_[0]);
    for (const char ch : chunk) {
      const auto label = static_cast<unsigned char>(ch);
      if (label == 0) return std::nullopt;
      at ^= label;
      const uint32_t unit = units_[at];
      if ((unit & kLabelMask) != label) return std::nullopt;
      at ^= offset(unit);
      if (unit & kHasValue) return std::string_view(rewritings_.c_str() + (units_[at] & kValueMask));
    }
    return std::nullopt;
  }
  // True if some key begins with a space.
  bool has_key_with_space() const { return (units_[offset(units_[0]) ^ ' '] & kLabelMask) == ' '; }
  // True if some replacement contains white space other than U+0020.
  bool makes_odd_white_space() const;

 private:
  static constexpr uint32_t kLabelMask = 0x800000FFu, kHasValue = 1u << 8, kValueMask = 0x7FFFFFFFu;
  static uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

  std::vector<uint32_t> units_;
  std::string rewritings_;
};

std::unique_ptr<Normalizer> make_precompiled(std::string_view blob, const std::string& where);

}  // namespace brim::text
