// SPDX-License-Identifier: Apache-2.0
// SHA-256 and SHA-1 of bytes that arrive in pieces (FIPS 180-4). SHA-1 only identifies Git blobs; it is not secure.
#pragma once
#include <array>
#include <cstdint>
#include <string>
#include <string_view>

namespace brim::io {

// Collects 64-byte blocks for `Mix`, which has a static `initial()` state and `mix(state, block)`.
template <class Mix>
class BlockHash {
 public:
  void update(std::string_view bytes);
  auto finish() -> std::array<uint8_t, sizeof(typename Mix::State)>;  // call once

 private:
  typename Mix::State state_ = Mix::initial();
  std::array<uint8_t, 64> pending_{};
  uint64_t bytes_ = 0;
};

struct Sha256Mix {
  using State = std::array<uint32_t, 8>;
  static State initial();
  static void mix(State& state, const uint8_t* block);
};
struct Sha1Mix {
  using State = std::array<uint32_t, 5>;
  static State initial();
  static void mix(State& state, const uint8_t* block);
};
using Sha256 = BlockHash<Sha256Mix>;
using Sha1 = BlockHash<Sha1Mix>;
extern template class BlockHash<Sha256Mix>;
extern template class BlockHash<Sha1Mix>;

std::array<uint8_t, 32> sha256(std::string_view bytes);
std::string sha256_hex(std::string_view bytes);

template <size_t N>
std::string hex_text(const std::array<uint8_t, N>& digest) {
  std::string text;
  for (const uint8_t byte : digest) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace brim::io
