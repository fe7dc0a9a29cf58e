// SPDX-License-Identifier: Apache-2.0
// Prefix search over pieces: finds all pieces that are a prefix of a text, shortest first, in one walk. A byte trie in
// a double array: the child of a node for byte b is at (node's base ^ b) and is verified by its label, so a transition
// is one load and one compare.
#pragma once
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace brim::text {

class PrefixTrie {
 public:
  static constexpr int32_t kMostIds = (1 << 26) - 2, kMostUnits = 1 << 28;

  PrefixTrie() = default;
  // keys[id]; the last of equal keys wins. Empty keys are never found. At most kMostIds keys; throws Error(bad_model)
  // if they need more than kMostUnits nodes.
  explicit PrefixTrie(std::span<const std::string_view> keys);

  // Calls found(id, length) for each key that is a prefix of `text`.
  template <class Found>
  void walk(std::string_view text, Found found) const {
    uint64_t base = root_;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto byte = static_cast<unsigned char>(text[i]);
      const uint64_t unit = units_[base ^ byte];
      if ((unit & kLabelMask) != (byte | kUsed)) return;
      base = unit >> kBaseShift;
      const auto id = static_cast<int32_t>(unit >> kIdShift & kIdMask);
      if (id != 0) found(id - 1, i + 1);
    }
  }
  int32_t find(std::string_view key) const;  // -1 if missing

 private:
  friend class PrefixTrieBuilder;
  // Unit layout: base 28 bits, id + 1 (0: none) 27 bits, used 1 bit, label 8 bits.
  static constexpr uint64_t kUsed = 0x100, kLabelMask = 0x1FF, kIdMask = (1u << 27) - 1;
  static constexpr int kIdShift = 9, kBaseShift = 36;

  uint64_t root_ = 0;
  std::vector<uint64_t> units_ = std::vector<uint64_t>(256, 0);
};

}  // namespace brim::text
