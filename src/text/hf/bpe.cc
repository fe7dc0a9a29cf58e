// SPDX-License-Identifier: Apache-2.0
#include "text/hf/bpe.h"

#include <algorithm>
#include <bit>
#include <queue>

#include "base/error.h"
#include "base/utf8.h"
#include "text/hf/byte_level.h"

namespace brim::text {
namespace {

constexpr size_t kShort = 48;  // up to this many symbols a scan is faster than a heap

struct Candidate {
  uint32_t rank, at;
  int32_t id;  // merged token
  bool operator>(const Candidate& other) const { return rank != other.rank ? rank > other.rank : at > other.at; }
};

}  // namespace

BpeModel::BpeModel(const BpeConfig& config, const std::filesystem::path& file)
    : vocab_(config.vocab, file),
      continuing_subword_prefix_(config.continuing_subword_prefix),
      end_of_word_suffix_(config.end_of_word_suffix),
      fuse_unk_(config.fuse_unk),
      byte_fallback_(config.byte_fallback),
      ignore_merges_(config.ignore_merges) {
  if (!config.unk_token.empty()) {
    unk_id_ = vocab_.find(config.unk_token);
    if (unk_id_ < 0) {
      fail(ErrorCode::bad_model, "{}: the unknown token \"{}\" is not in the vocabulary of {} tokens", file.string(),
           config.unk_token, vocab_.count());
    }
  }
  if (config.merges.size() >= (size_t{1} << 22) - 1) {
    fail(ErrorCode::bad_model, "{}: {} merges exceed the maximum of {}", file.string(), config.merges.size(),
         (1 << 22) - 2);
  }
  merges_.assign(std::bit_ceil(config.merges.size() * 2 + 1), 0);
  mask_ = merges_.size() - 1;
  filter_.assign(std::bit_ceil(std::max<size_t>(config.merges.size() / 8, 2)), 0);
  filter_shift_ = 64 - std::countr_zero(filter_.size());
  merged_.reserve(config.merges.size());
  std::string joined;
  for (size_t i = 0; i < config.merges.size(); ++i) {
    const std::string &left = config.merges[i].first,
                      &right = config.merges[i].second;  // clang 14 cannot capture structured bindings
    auto known = [&](const std::string& token) {
      const int32_t found = vocab_.find(token);
      if (found < 0) {
        fail(ErrorCode::bad_model, "{}: merge {} (\"{} {}\") requires \"{}\", which is not in the vocabulary",
             file.string(), i, left, right, token);
      }
      return found;
    };
    const int32_t a = known(left), b = known(right);
    joined = left;
    joined += right.size() >= continuing_subword_prefix_.size() ? right.substr(continuing_subword_prefix_.size()) : "";
    merged_.push_back(known(joined));
    const uint64_t key = static_cast<uint64_t>(a) << 21 | static_cast<uint64_t>(b);
    const uint64_t h = hash(key);
    filter_[h >> filter_shift_] |= uint64_t{1} << (h & 63);
    size_t slot = (h >> 6) & mask_;
    while (merges_[slot] != 0 && merges_[slot] >> 22 != key) slot = (slot + 1) & mask_;
    merges_[slot] = key << 22 | (i + 1);  // the last of equal pairs wins
  }

  character_ids_.resize(kCharacters);
  for (char32_t c = 0; c < kCharacters; ++c) {
    joined.clear();
    append_utf8(joined, c);
    character_ids_[c] = vocab_.find(joined);
  }

  bool every_byte = true;
  for (int b = 0; b < 256; ++b) {
    std::string one;
    append_utf8(one, byte_level_char(static_cast<uint8_t>(b)));
    byte_ids_[static_cast<size_t>(b)] = vocab_.find(one);
    every_byte = every_byte && byte_ids_[static_cast<size_t>(b)] >= 0;
    fallback_ids_[static_cast<size_t>(b)] = vocab_.find(fmt::format("<0x{:02X}>", b));
  }
  byte_level_ = every_byte && continuing_subword_prefix_.empty() && end_of_word_suffix_.empty();
  if (byte_level_ && ignore_merges_) {
    std::vector<std::pair<std::string, int32_t>> raw;
    std::string bytes;
    for (int32_t i = 0; i < vocab_.size(); ++i) {
      if (!vocab_.token(i).empty() && from_byte_level(vocab_.token(i), bytes)) raw.emplace_back(bytes, i);
    }
    raw_ = Vocab(raw, file);
  }
}

int32_t BpeModel::character_id(std::string_view character) const {
  const char32_t c = decode_valid(character, 0).value;
  return c < character_ids_.size() ? character_ids_[c] : vocab_.find(character);
}

void BpeModel::symbols_of(std::string_view piece, std::vector<Symbol>& out) const {
  out.clear();
  std::string with_affixes;
  int32_t unk = -1;
  uint32_t unk_bytes = 0;
  auto flush_unk = [&] {
    if (unk >= 0) out.push_back({unk, unk_bytes});
    unk = -1;
  };
  for (size_t i = 0; i < piece.size();) {
    const auto bytes = static_cast<size_t>(decode_valid(piece, i).bytes);
    std::string_view symbol = piece.substr(i, bytes);
    const bool prefix = i > 0 && !continuing_subword_prefix_.empty();
    const bool suffix = i + bytes == piece.size() && !end_of_word_suffix_.empty();
    if (prefix || suffix) {
      with_affixes = prefix ? continuing_subword_prefix_ : "";
      with_affixes += symbol;
      if (suffix) with_affixes += end_of_word_suffix_;
      symbol = with_affixes;
    }
    i += bytes;
    const int32_t id = prefix || suffix ? vocab_.find(symbol) : character_id(symbol);
    if (id >= 0) {
      flush_unk();
      out.push_back({id, static_cast<uint32_t>(bytes)});
      continue;
    }
    auto fallback = [&](char b) { return fallback_ids_[static_cast<unsigned char>(b)]; };
    if (byte_fallback_ && std::all_of(symbol.begin(), symbol.end(), [&](char b) { return fallback(b) >= 0; })) {
      for (const char b : symbol) out.push_back({fallback(b), 1});  // a pending unknown token follows, as upstream
      continue;
    }
    if (unk_id_ < 0) continue;
    if (fuse_unk_ && unk >= 0) {
      unk_bytes += static_cast<uint32_t>(bytes);
    } else {
      flush_unk();
      unk = unk_id_;
      unk_bytes = static_cast<uint32_t>(bytes);
    }
  }
  flush_unk();
}

void BpeModel::merge(std::vector<Symbol>& symbols) const {
  if (symbols.size() < 2) return;
  if (symbols.size() <= kShort) {
    merge_short(symbols);
  } else {
    merge_long(symbols);
  }
}

void BpeModel::merge_short(std::vector<Symbol>& symbols) const {
  uint32_t ranks[kShort];
  size_t n = symbols.size();
  for (size_t i = 0; i + 1 < n; ++i) ranks[i] = rank(symbols[i].id, symbols[i + 1].id);
  while (n > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < n; ++i) {
      if (ranks[i] < ranks[best]) best = i;
    }
    if (ranks[best] == kNone) break;
    symbols[best] = {merged_[ranks[best]], symbols[best].bytes + symbols[best + 1].bytes};
    --n;
    for (size_t i = best + 1; i < n; ++i) {
      symbols[i] = symbols[i + 1];
      ranks[i - 1] = ranks[i];
    }
    if (best > 0) ranks[best - 1] = rank(symbols[best - 1].id, symbols[best].id);
    if (best + 1 < n) ranks[best] = rank(symbols[best].id, symbols[best + 1].id);
  }
  symbols.resize(n);
}

void BpeModel::merge_long(std::vector<Symbol>& symbols) const {
  const auto n = static_cast<uint32_t>(symbols.size());
  constexpr uint32_t kEnd = UINT32_MAX;
  std::vector<uint32_t> previous(n), next(n);
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  auto offer = [&](uint32_t at) {
    if (next[at] == kEnd) return;
    const uint32_t r = rank(symbols[at].id, symbols[next[at]].id);
    if (r != kNone) queue.push({r, at, merged_[r]});
  };
  for (uint32_t i = 0; i < n; ++i) {
    previous[i] = i == 0 ? kEnd : i - 1;
    next[i] = i + 1 == n ? kEnd : i + 1;
  }
  for (uint32_t i = 0; i < n; ++i) offer(i);
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    // The pair may be stale: its left part was merged away or has grown, or its right part has.
    if (symbols[top.at].bytes == 0 || next[top.at] == kEnd) continue;
    const uint32_t right = next[top.at];
    if (rank(symbols[top.at].id, symbols[right].id) != top.rank) continue;
    symbols[top.at] = {top.id, symbols[top.at].bytes + symbols[right].bytes};
    symbols[right].bytes = 0;
    next[top.at] = next[right];
    if (next[right] != kEnd) previous[next[right]] = top.at;
    if (previous[top.at] != kEnd) offer(previous[top.at]);
    offer(top.at);
  }
  std::erase_if(symbols, [](const Symbol& s) { return s.bytes == 0; });
}

void BpeModel::tokenize(std::string_view piece, std::vector<Token>& out) const {
  if (ignore_merges_) {
    if (const int32_t whole = vocab_.find(piece); whole >= 0) {
      out.push_back({whole, 0, static_cast<uint32_t>(piece.size())});
      return;
    }
  }
  thread_local std::vector<Symbol> symbols;
  symbols_of(piece, symbols);
  merge(symbols);
  uint32_t at = 0;
  for (const Symbol& s : symbols) {
    out.push_back({s.id, at, at + s.bytes});
    at += s.bytes;
  }
}

void BpeModel::tokenize_ids(std::string_view piece, std::vector<int32_t>& out) const {
  if (ignore_merges_) {
    if (const int32_t whole = vocab_.find(piece); whole >= 0) return out.push_back(whole);
  }
  thread_local std::vector<Symbol> symbols;
  symbols_of(piece, symbols);
  merge(symbols);
  for (const Symbol& s : symbols) out.push_back(s.id);
}

void BpeModel::tokenize_bytes(std::string_view bytes, std::vector<int32_t>& out) const {
  if (ignore_merges_) {
    if (const int32_t whole = raw_.find(bytes); whole >= 0) return out.push_back(whole);
  }
  thread_local std::vector<Symbol> symbols;
  symbols.clear();
  for (const char b : bytes) symbols.push_back({byte_ids_[static_cast<unsigned char>(b)], 1});
  merge(symbols);
  for (const Symbol& s : symbols) out.push_back(s.id);
}

std::unique_ptr<TokenModel> make_bpe(const BpeConfig& config, const std::filesystem::path& file) {
  return std::make_unique<BpeModel>(config, file);
}

}  // namespace brim::text
