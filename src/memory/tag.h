// SPDX-License-Identifier: Apache-2.0
// Purpose of allocated bytes. Every byte of a plan is charged to one tag, and the tags sum to the peak.
#pragma once
#include <array>
#include <cstdint>

namespace brim::memory {

enum class Tag : uint8_t {
  weights,
  master,
  gradients,
  optimizer,
  activations,
  workspace,
  staging,
  token_set,
  graphs,
  context,
  count
};
constexpr int kTagCount = static_cast<int>(Tag::count);

inline const char* tag_name(Tag tag) {
  constexpr const char* names[] = {"weights",   "master",  "gradients", "optimizer", "activations",
                                   "workspace", "staging", "token set", "graphs",    "context"};
  return names[static_cast<int>(tag)];
}

struct TagBytes {
  std::array<int64_t, kTagCount> bytes{};
  int64_t& operator[](Tag tag) { return bytes[static_cast<size_t>(tag)]; }
  int64_t operator[](Tag tag) const { return bytes[static_cast<size_t>(tag)]; }
  int64_t total() const {
    int64_t sum = 0;
    for (const int64_t b : bytes) sum += b;
    return sum;
  }
};

}  // namespace brim::memory
