// SPDX-License-Identifier: Apache-2.0
// SentencePiece's precompiled character map: a trie of byte strings in a double array, each with the text that takes
// its place. Applied as Hugging Face's Precompiled normalizer does, which differs from SentencePiece's own way:
// grapheme by grapheme, and the whole grapheme gives way to the rewriting of its shortest known beginning.
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
  // `blob` is the file's: bytes of the trie (uint32), the trie's units, the rewritings, each ended by a zero. Throws
  // Error(bad_model) with `where` (file and place) unless every step from every unit stays inside: lookups check
  // nothing.
  Charsmap(std::string_view blob, const std::string& where);

  // The rewriting of the shortest key that `chunk` begins with.
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
  // True if some rewriting holds white space other than the space itself.
  bool makes_odd_white_space() const;

 private:
  static constexpr uint32_t kLabelMask = 0x800000FFu, kHasValue = 1u << 8, kValueMask = 0x7FFFFFFFu;
  static uint32_t offset(uint32_t unit) { return (unit >> 10) << ((unit & (1u << 9)) >> 6); }

  std::vector<uint32_t> units_;
  std::string rewritings_;
};

std::unique_ptr<Normalizer> make_precompiled(std::string_view blob, const std::string& where);

}  // namespace brim::text
