// SPDX-License-Identifier: Apache-2.0
// Writes SentencePiece model files and charsmaps for tests, well-formed or not.
#pragma once
#include <bit>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "text/spm/spm_model.h"

namespace brim::text {

inline std::string proto_varint(uint64_t value) {
  std::string out;
  for (; value >= 0x80; value >>= 7) out.push_back(static_cast<char>(value | 0x80));
  out.push_back(static_cast<char>(value));
  return out;
}
inline std::string proto_number(uint64_t field, uint64_t value) {
  return proto_varint(field << 3) + proto_varint(value);
}
inline std::string proto_bytes(uint64_t field, std::string_view bytes) {
  return proto_varint(field << 3 | 2) + proto_varint(bytes.size()) + std::string(bytes);
}
inline std::string little_endian_u32(uint32_t value) {
  std::string out;
  for (int i = 0; i < 4; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
  return out;
}
inline std::string proto_float(uint64_t field, float value) {
  return proto_varint(field << 3 | 5) + little_endian_u32(std::bit_cast<uint32_t>(value));
}

inline std::string spm_piece_proto(std::string_view text, float score, SpmPieceType type = SpmPieceType::normal) {
  std::string piece = proto_bytes(1, text) + proto_float(2, score);
  if (type != SpmPieceType::normal) piece += proto_number(3, static_cast<uint64_t>(type));
  return proto_bytes(1, piece);
}

// Builds a charsmap blob for the given replacements; each trie node gets its own block of 256 units.
inline std::string make_charsmap(const std::map<std::string, std::string>& rules) {
  struct Node {
    std::map<unsigned char, size_t> children;
    int64_t value = -1;
  };
  std::vector<Node> nodes(1);
  std::string rewritings;
  for (const auto& [key, value] : rules) {
    size_t at = 0;
    for (const char c : key) {
      const auto [child, fresh] = nodes[at].children.try_emplace(static_cast<unsigned char>(c), nodes.size());
      at = child->second;
      if (fresh) nodes.emplace_back();
    }
    nodes[at].value = static_cast<int64_t>(rewritings.size());
    rewritings += value + '\0';
  }
  // Children of node n are in block n + 1, at their labels; its value is at label 0.
  std::vector<uint32_t> units(256 * (nodes.size() + 1), 0xFF);
  const auto offset_bits = [](size_t from, size_t to) { return static_cast<uint32_t>(from ^ to) << 10; };
  units[0] = offset_bits(0, 256);
  for (size_t n = 0; n < nodes.size(); ++n) {
    const size_t block = 256 * (n + 1);
    if (nodes[n].value >= 0) units[block] = 0x80000000u | static_cast<uint32_t>(nodes[n].value);
    for (const auto& [label, child] : nodes[n].children) {
      const size_t unit = block + label;
      units[unit] = offset_bits(unit, 256 * (child + 1)) | label | (nodes[child].value >= 0 ? 1u << 8 : 0);
    }
  }
  std::string blob = little_endian_u32(static_cast<uint32_t>(4 * units.size()));
  for (const uint32_t unit : units) blob += little_endian_u32(unit);
  return blob + rewritings;
}

}  // namespace brim::text
