// SPDX-License-Identifier: Apache-2.0
#include "text/vocab.h"

#include <bit>

#include "base/error.h"
#include "text/short_key.h"

namespace brim::text {

uint64_t Vocab::hash(std::string_view token) { return hash_bytes(token); }

Vocab::Vocab(const std::vector<std::pair<std::string, int32_t>>& tokens, const std::filesystem::path& file) {
  size_t bytes = 0;
  int32_t largest = -1;
  for (const auto& [token, id] : tokens) {
    if (id < 0 || id >= kMostIds) {
      fail(ErrorCode::bad_model, "{}: token \"{}\" has id {}, must be between 0 and {}", file.string(), token, id,
           kMostIds - 1);
    }
    largest = std::max(largest, id);
    bytes += token.size();
  }
  if (bytes > UINT32_MAX / 2)
    fail(ErrorCode::bad_model, "{}: the vocabulary is too large: {} bytes of text", file.string(), bytes);
  bytes_.reserve(bytes);
  begins_.assign(static_cast<size_t>(largest + 1), UINT32_MAX);
  lengths_.assign(static_cast<size_t>(largest + 1), 0);
  slots_.assign(std::bit_ceil(tokens.size() * 2 + 1), 0);
  const size_t mask = slots_.size() - 1;
  for (const auto& [token, id] : tokens) {
    const auto i = static_cast<size_t>(id);
    if (begins_[i] != UINT32_MAX) {
      fail(ErrorCode::bad_model, "{}: duplicate id {} of \"{}\" and \"{}\"", file.string(), id, this->token(id), token);
    }
    begins_[i] = static_cast<uint32_t>(bytes_.size());
    lengths_[i] = static_cast<uint32_t>(token.size());
    bytes_ += token;
    size_t slot = hash(token) & mask;
    while (slots_[slot] != 0 && this->token(slots_[slot] - 1) != token) slot = (slot + 1) & mask;
    if (slots_[slot] == 0) ++count_;
    slots_[slot] = id + 1;
  }
  for (uint32_t& begin : begins_) {
    if (begin == UINT32_MAX) begin = 0;
  }
}

int32_t Vocab::find(std::string_view token) const {
  if (slots_.empty()) return -1;
  const size_t mask = slots_.size() - 1;
  for (size_t slot = hash(token) & mask; slots_[slot] != 0; slot = (slot + 1) & mask) {
    if (this->token(slots_[slot] - 1) == token) return slots_[slot] - 1;
  }
  return -1;
}

}  // namespace brim::text
