// SPDX-License-Identifier: Apache-2.0
#include "io/sha256.h"

#include <bit>
#include <cmath>

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

void mix_block(std::array<uint32_t, 8>& state, const uint8_t* block) {
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

}  // namespace

std::array<uint8_t, 32> sha256(std::string_view bytes) {
  std::array<uint32_t, 8> state = sha256_table().square;
  const size_t whole = bytes.size() / 64 * 64;  // hash in place without copying: a model's weights are hashed too
  for (size_t at = 0; at < whole; at += 64) mix_block(state, reinterpret_cast<const uint8_t*>(bytes.data()) + at);
  std::string padded(bytes.substr(whole));
  padded += '\x80';
  while (padded.size() % 64 != 56) padded += '\0';
  for (int shift = 56; shift >= 0; shift -= 8) padded += static_cast<char>(bytes.size() * 8 >> shift);
  for (size_t at = 0; at < padded.size(); at += 64)
    mix_block(state, reinterpret_cast<const uint8_t*>(padded.data()) + at);
  std::array<uint8_t, 32> digest;
  for (size_t i = 0; i < 32; ++i) digest[i] = static_cast<uint8_t>(state[i / 4] >> (24 - 8 * (i % 4)));
  return digest;
}

std::string sha256_hex(std::string_view bytes) {
  std::string text;
  for (const uint8_t byte : sha256(bytes)) {
    text += "0123456789abcdef"[byte >> 4];
    text += "0123456789abcdef"[byte & 15];
  }
  return text;
}

}  // namespace brim::io
