// SPDX-License-Identifier: Apache-2.0
#include "text/wordpiece.h"

#include <algorithm>

#include "base/error.h"
#include "base/utf8.h"

namespace brim {

void WordPieceModel::Table::add(std::string_view token, int32_t id) {
  if (!token.empty()) added_.emplace_back(token, id);
}

void WordPieceModel::Table::build() {
  single_.fill(-1);
  lengths_.assign(4096, 0);
  slots_.assign(std::bit_ceil(added_.size() * 2 + 1), Slot{});
  const size_t mask = slots_.size() - 1;
  for (auto& [token, id] : added_) {
    longest_ = std::max(longest_, token.size());
    if (token.size() == 1) {
      single_[static_cast<unsigned char>(token[0])] = id;
    } else if (token.size() > ShortKey::kLongest) {
      long_.emplace_back(std::move(token), id);
    } else {
      lengths_[pair_index(token.data())] |= static_cast<uint16_t>(1u << token.size());
      const ShortKey key = ShortKey::from(token);
      size_t slot = key.hash() & mask;
      while (slots_[slot].id >= 0 && slots_[slot].key != key) slot = (slot + 1) & mask;
      slots_[slot] = {key, id};
    }
  }
  added_.clear();
  std::sort(long_.begin(), long_.end());
}

int32_t WordPieceModel::Table::find_short(const char* text, size_t readable, size_t length) const {
  const ShortKey key = readable >= 16 ? ShortKey::from_padded(text, length) : ShortKey::from({text, length});
  const size_t mask = slots_.size() - 1;
  for (size_t slot = key.hash() & mask; slots_[slot].id >= 0; slot = (slot + 1) & mask) {
    if (slots_[slot].key == key) return slots_[slot].id;
  }
  return -1;
}

size_t WordPieceModel::Table::longest(std::string_view text, int32_t& id) const {
  const size_t most = std::min(text.size(), longest_);
  if (!long_.empty()) {
    for (size_t length = most; length > ShortKey::kLongest; --length) {
      const std::string_view wanted = text.substr(0, length);
      const auto found = std::lower_bound(long_.begin(), long_.end(), wanted,
                                          [](const auto& entry, std::string_view w) { return entry.first < w; });
      if (found != long_.end() && found->first == wanted) {
        id = found->second;
        return length;
      }
    }
  }
  if (most >= 2) {
    // Tokens are whole code points, so a length that cuts one cannot be found.
    const size_t top = std::min(most, ShortKey::kLongest);
    for (uint32_t lengths = lengths_[pair_index(text.data())] & ((2u << top) - 1); lengths != 0;) {
      const auto length = static_cast<size_t>(std::bit_width(lengths) - 1);
      id = find_short(text.data(), text.size(), length);
      if (id >= 0) return length;
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
         "{}: the vocabulary of {} tokens has no \"{}\", which stands for unknown words; use the vocabulary the model "
         "was "
         "trained with",
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

}  // namespace brim
