// SPDX-License-Identifier: Apache-2.0
#include "text/hf/wordpiece.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace brim::text {

void WordPieceModel::Table::add(std::string_view token, int32_t id) {
  if (!token.empty()) added_.emplace_back(token, id);
}

void WordPieceModel::Table::build() {
  single_.fill(-1);
  lengths_.assign(4096, 0);
  slots_.assign(std::bit_ceil(added_.size() * 4 / 3 + 2), Slot{});
  const size_t words = std::bit_ceil(std::max<size_t>(added_.size() / 8, 2));  // about eight bits per token
  filter_.assign(words, 0);
  filter_shift_ = 64 - std::countr_zero(words);
  const size_t mask = slots_.size() - 1;
  for (auto& [token, id] : added_) {
    longest_ = std::max(longest_, token.size());
    if (token.size() == 1) {
      single_[static_cast<unsigned char>(token[0])] = id;
    } else if (token.size() > ShortKey::kLongest) {
      long_.emplace_back(std::move(token), id);
    } else {
      const ShortKey key = ShortKey::from(token);
      const uint64_t hash = key.hash();
      lengths_[pair_index(key.low)] |= static_cast<uint16_t>(1u << token.size());
      filter_[hash >> filter_shift_] |= uint64_t{1} << (hash & 63);
      size_t slot = (hash >> 6) & mask;
      while (slots_[slot].id >= 0 && slots_[slot].key != key) slot = (slot + 1) & mask;
      slots_[slot] = {key, id};
    }
  }
  added_.clear();
  std::sort(long_.begin(), long_.end());
}

size_t WordPieceModel::Table::longest_of_long(std::string_view text, int32_t& id) const {
  for (size_t length = std::min(text.size(), longest_); length > ShortKey::kLongest; --length) {
    const std::string_view wanted = text.substr(0, length);
    const auto found = std::lower_bound(long_.begin(), long_.end(), wanted,
                                        [](const auto& entry, std::string_view w) { return entry.first < w; });
    if (found != long_.end() && found->first == wanted) {
      id = found->second;
      return length;
    }
  }
  return 0;
}

size_t WordPieceModel::Table::longest(std::string_view text, int32_t& id) const {
  if (text.size() > ShortKey::kLongest && longest_ > ShortKey::kLongest) {
    if (const size_t length = longest_of_long(text, id)) return length;
  }
  if (text.size() >= 2) {
    const uint64_t low = load8(text.data()), high = load8(text.data() + 8);
    const size_t top = std::min(text.size(), ShortKey::kLongest);
    const size_t mask = slots_.size() - 1;
    // Tokens consist of whole code points, so a length that splits one cannot match.
    for (uint32_t lengths = lengths_[pair_index(low)] & ((2u << top) - 1); lengths != 0;) {
      const auto length = static_cast<size_t>(std::bit_width(lengths) - 1);
      const ShortKey key = ShortKey::from_window(low, high, length);
      const uint64_t hash = key.hash();
      if (may_have(hash)) {
        for (size_t slot = (hash >> 6) & mask; slots_[slot].id >= 0; slot = (slot + 1) & mask) {
          if (slots_[slot].key == key) {
            id = slots_[slot].id;
            return length;
          }
        }
      }
      lengths ^= 1u << length;
    }
  }
  id = single_[static_cast<unsigned char>(text[0])];
  return id >= 0 ? 1 : 0;
}

WordPieceModel::WordPieceModel(const WordPieceConfig& config, const std::filesystem::path& file)
    : vocab_(config.vocab, file),
      max_chars_(static_cast<size_t>(std::max<int64_t>(config.max_input_chars_per_word, 0))) {
  unk_id_ = vocab_.find(config.unk_token);
  if (unk_id_ < 0) {
    fail(ErrorCode::bad_model,
         "{}: the vocabulary of {} tokens lacks the unknown token \"{}\"; use the vocabulary of the model",
         file.string(), vocab_.count(), config.unk_token);
  }
  const std::string& prefix = config.continuing_subword_prefix;
  for (int32_t i = 0; i < vocab_.size(); ++i) {
    const std::string_view token = vocab_.token(i);
    if (token.empty() || vocab_.find(token) != i) continue;
    first_.add(token, i);
    if (token.starts_with(prefix)) next_.add(token.substr(prefix.size()), i);
  }
  first_.build();
  next_.build();
}

// Calls emit(id, begin, end) for each token.
template <class Emit>
void WordPieceModel::split(std::string_view piece, Emit emit) const {
  // Copy that is readable past its end; longer words are rare enough to allocate.
  char buffer[144];
  std::string large;
  if (piece.size() + 16 <= sizeof(buffer)) {
    std::memcpy(buffer, piece.data(), piece.size());
    std::memset(buffer + piece.size(), 0, 16);
    piece = {buffer, piece.size()};
  } else {
    large.reserve(piece.size() + 16);
    large.assign(piece).append(16, '\0');
    piece = std::string_view(large).substr(0, piece.size());
  }
  int32_t id;
  for (size_t at = 0; at < piece.size();) {
    const size_t length = (at == 0 ? first_ : next_).longest(piece.substr(at), id);
    if (length == 0) return emit(-1, size_t{0}, piece.size());
    emit(id, at, at + length);
    at += length;
  }
}

void WordPieceModel::tokenize(std::string_view piece, std::vector<Token>& out) const {
  const size_t before = out.size();
  auto whole_unknown = [&] {
    out.resize(before);
    out.push_back({unk_id_, 0, static_cast<uint32_t>(piece.size())});
  };
  if (piece.size() > max_chars_ && count_code_points(piece) > max_chars_) return whole_unknown();
  split(piece, [&](int32_t id, size_t begin, size_t end) {
    if (id < 0) return whole_unknown();
    out.push_back({id, static_cast<uint32_t>(begin), static_cast<uint32_t>(end)});
  });
}

void WordPieceModel::tokenize_ids(std::string_view piece, std::vector<int32_t>& out) const {
  const size_t before = out.size();
  if (piece.size() > max_chars_ && count_code_points(piece) > max_chars_) {
    out.push_back(unk_id_);
    return;
  }
  split(piece, [&](int32_t id, size_t, size_t) {
    if (id < 0) {
      out.resize(before);
      id = unk_id_;
    }
    out.push_back(id);
  });
}

}  // namespace brim::text
