// SPDX-License-Identifier: Apache-2.0
// Token format for models: the vocabulary id in the low bits, the token type (index of the text in a pair) above. One
// integer carries both through windows, caches, staging and graphs; single texts have type 0.
#pragma once
#include <cstdint>

namespace brim {

inline constexpr int kTypeShift = 24;
inline constexpr int32_t kIdMask = (1 << kTypeShift) - 1;
constexpr int32_t typed(int32_t id, int32_t type) { return id | type << kTypeShift; }
constexpr int32_t id_of(int32_t token) { return token & kIdMask; }
constexpr int32_t type_of(int32_t token) { return token >> kTypeShift; }

}  // namespace brim
