// SPDX-License-Identifier: Apache-2.0
#include "io/sha256.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace brim::io {
namespace {

// The first 32 fractional bits of the cube roots of the first 64 primes, and of the square roots of the first 8.
struct Sha256Table {
  std::array<uint32_t, 64> cube;
  std::array<uint32_t, 8> square;
};

Sha256Table make_table() {
  Sha256Table table{};
  int prime = 1;
  for (size_t i = 0; i < 64; ++i) {
    const auto divides = [&](int n) {
      for (int d = 2; d * d <= n; ++d)
        if (n % d == 0) return true;
      return false;
    };
    while (divides(++prime)) {
    }
    const long double cube = std::cbrt(static_cast<long double>(prime));
    table.cube[i] = static_cast<uint32_t>((cube - std::floor(cube)) * 4294967296.0L);
    if (i >= 8) continue;
    const long double square = std::sqrt(static_cast<long double>(prime));
    table.square[i] = static_cast<uint32_t>((square - std::floor(square)) * 4294967296.0L);
  }
  return table;
}

const Sha256Table& sha256_table() {
  static const Sha256Table table = make_table();
  return table;
}

}  // namespace

Sha256Mix::State Sha256Mix::initial() { return sha256_table().square; }

void Sha256Mix::mix(State& state, const uint8_t* block) {
  std::array<uint32_t, 64> w;
  for (size_t i = 0; i < 16; ++i)
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 | uint32_t{block[4 * i + 2]} << 8 |
           uint32_t{block[4 * i + 3]};
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t a = std::rotr(w[i - 15], 7) ^ std::rotr(w[i - 15], 18) ^ (w[i - 15] >> 3);
    const uint32_t b = std::rotr(w[i - 2], 17) ^ std::rotr(w[i - 2], 19) ^ (w[i - 2] >> 10);
    w[i] = w[i - 16] + a + w[i - 7] + b;
  }
  const Sha256Table& table = sha256_table();
  std::array<uint32_t, 8> s = state;
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t e = std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25);
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t first = s[7] + e + choice + table.cube[i] + w[i];
    const uint32_t a = std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22);
    const uint32_t second = a + ((s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]));
    s = {first + second, s[0], s[1], s[2], s[3] + first, s[4], s[5], s[6]};
  }
  for (size_t i = 0; i < 8; ++i) state[i] += s[i];
}

Sha1Mix::State Sha1Mix::initial() { return {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0}; }

void Sha1Mix::mix(State& state, const uint8_t* block) {
  std::array<uint32_t, 80> w;
  for (size_t i = 0; i < 16; ++i)
    w[i] = uint32_t{block[4 * i]} << 24 | uint32_t{block[4 * i + 1]} << 16 | uint32_t{block[4 * i + 2]} << 8 |
           uint32_t{block[4 * i + 3]};
  for (size_t i = 16; i < 80; ++i) w[i] = std::rotl(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
  auto [a, b, c, d, e] = state;
  for (size_t i = 0; i < 80; ++i) {
    const uint32_t f = i < 20 ? (b & c) | (~b & d) : i < 40 || i >= 60 ? b ^ c ^ d : (b & c) | (b & d) | (c & d);
    constexpr std::array<uint32_t, 4> kAdd = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    const uint32_t next = std::rotl(a, 5) + f + e + kAdd[i / 20] + w[i];
    e = d, d = c, c = std::rotl(b, 30), b = a, a = next;
  }
  state = {state[0] + a, state[1] + b, state[2] + c, state[3] + d, state[4] + e};
}

template <class Mix>
void BlockHash<Mix>::update(std::string_view bytes) {
  size_t held = bytes_ % 64;
  bytes_ += bytes.size();
  if (held > 0) {
    const size_t more = std::min(bytes.size(), 64 - held);
    std::memcpy(pending_.data() + held, bytes.data(), more);
    bytes.remove_prefix(more);
    held += more;
    if (held < 64) return;
    Mix::mix(state_, pending_.data());
  }
  for (; bytes.size() >= 64; bytes.remove_prefix(64))  // whole blocks without copying: weights are hashed too
    Mix::mix(state_, reinterpret_cast<const uint8_t*>(bytes.data()));
  if (!bytes.empty()) std::memcpy(pending_.data(), bytes.data(), bytes.size());
}

template <class Mix>
auto BlockHash<Mix>::finish() -> std::array<uint8_t, sizeof(typename Mix::State)> {
  const uint64_t bits = bytes_ * 8;
  std::string padding = "\x80";
  padding.resize(1 + (119 - bytes_ % 64) % 64, '\0');
  for (int shift = 56; shift >= 0; shift -= 8) padding += static_cast<char>(bits >> shift);
  update(padding);
  std::array<uint8_t, sizeof(typename Mix::State)> digest;
  for (size_t i = 0; i < digest.size(); ++i) digest[i] = static_cast<uint8_t>(state_[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

template class BlockHash<Sha256Mix>;
template class BlockHash<Sha1Mix>;

std::array<uint8_t, 32> sha256(std::string_view bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.finish();
}

std::string sha256_hex(std::string_view bytes) { return hex_text(sha256(bytes)); }

}  // namespace brim::io
