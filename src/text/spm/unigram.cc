// SPDX-License-Identifier: Apache-2.0
#include "text/spm/unigram.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "base/error.h"
#include "base/utf8.h"
#include "text/spm/prefix_trie.h"

namespace brim::text {
namespace {

constexpr double kUnknownPenalty = 10;

class Unigram final : public TokenModel {
 public:
  Unigram(UnigramConfig config, const std::string& where) : unk_id_(config.unk_id), where_(where) {
    const size_t size = config.vocab.size();
    if (size == 0) fail(ErrorCode::bad_model, "{}: the vocabulary is empty", where);
    if (size > static_cast<size_t>(PrefixTrie::kMostIds)) {
      fail(ErrorCode::bad_model, "{}: {} entries exceed the maximum of {}", where, size, PrefixTrie::kMostIds);
    }
    if (unk_id_ < -1 || unk_id_ >= static_cast<int64_t>(size)) {
      fail(ErrorCode::bad_model, "{}: unk_id is {}, must be below {}", where, unk_id_, size);
    }
    std::vector<std::string_view> keys;
    keys.reserve(size);
    scores_.reserve(size);
    tokens_.reserve(size);
    double lowest = std::numeric_limits<double>::infinity();
    for (auto& [text, score] : config.vocab) {
      if (std::isnan(score)) fail(ErrorCode::bad_model, "{}: entry {} ({}) has no score", where, tokens_.size(), text);
      lowest = std::min(lowest, score);
      scores_.push_back(score);
      tokens_.push_back(std::move(text));
    }
    unknown_score_ = lowest - kUnknownPenalty;
    for (const std::string& token : tokens_) keys.push_back(token);
    trie_ = PrefixTrie(keys);
    if (config.byte_fallback) find_byte_tokens();
  }

  void tokenize(std::string_view piece, std::vector<Token>& out) const override {
    cut(piece, [&](int32_t id, uint32_t begin, uint32_t end) { out.push_back({id, begin, end}); });
  }
  void tokenize_ids(std::string_view piece, std::vector<int32_t>& out) const override {
    cut(piece, [&](int32_t id, uint32_t, uint32_t) { out.push_back(id); });
  }
  std::string token_text(int32_t id, std::string_view surface) const override {
    return id == unk_id_ ? std::string(surface) : tokens_[id];
  }
  int32_t id(std::string_view token) const override { return trie_.find(token); }
  std::string_view token(int32_t id) const override {
    return id >= 0 && id < vocab_size() ? std::string_view(tokens_[id]) : std::string_view();
  }
  int32_t vocab_size() const override { return static_cast<int32_t>(tokens_.size()); }
  int32_t unk_id() const override { return unk_id_; }
  const char* kind() const override { return "unigram"; }

 private:
  // Best path to the end of a character: start position and entry.
  struct Step {
    double score;
    int32_t begin;  // -1: unreachable
    int32_t id;
  };
  static constexpr size_t kStackSteps = 256;

  void find_byte_tokens() {
    byte_ids_.resize(256);
    for (int byte = 0; byte < 256; ++byte) byte_ids_[byte] = trie_.find(fmt::format("<0x{:02X}>", byte));
  }

  template <class Emit>
  void cut(std::string_view text, Emit emit) const {
    if (text.size() < kStackSteps) {
      std::array<Step, kStackSteps> steps;
      std::array<int32_t, kStackSteps> ends;
      cut(text, steps.data(), ends.data(), emit);
    } else {
      std::vector<Step> steps(text.size() + 1);
      std::vector<int32_t> ends(text.size());
      cut(text, steps.data(), ends.data(), emit);
    }
  }

  template <class Emit>
  void cut(std::string_view text, Step* steps, int32_t* ends, Emit emit) const {
    find_best(text, steps);
    size_t count = 0;
    for (int32_t at = static_cast<int32_t>(text.size()); at > 0; at = steps[at].begin) ends[count++] = at;
    while (count > 0) {
      const int32_t end = ends[--count];
      const uint32_t begin = steps[end].begin;
      if (steps[end].id != unk_id_) {
        emit(steps[end].id, begin, end);
      } else {
        while (count > 0 && steps[ends[count - 1]].id == unk_id_) --count;
        unknown(text, begin, ends[count], emit);
      }
    }
  }

  void find_best(std::string_view text, Step* steps) const {
    const size_t size = text.size();
    steps[0] = {0, 0, 0};
    for (size_t i = 1; i <= size; ++i) steps[i].begin = -1;
    for (size_t at = 0; at < size;) {
      const double score = steps[at].score;
      const size_t bytes = decode_valid(text, at).bytes;
      bool covered = false;
      // On ties the first candidate wins, which is the entry that begins earlier.
      const auto offer = [&](int32_t id, size_t length, double with) {
        Step& step = steps[at + length];
        if (step.begin < 0 || with > step.score) step = {with, static_cast<int32_t>(at), id};
      };
      trie_.walk(text.substr(at), [&](int32_t id, size_t length) {
        offer(id, length, score + scores_[id]);
        covered |= length == bytes;
      });
      if (!covered) {
        if (unk_id_ < 0) refuse(text.substr(at, bytes));
        offer(unk_id_, bytes, score + unknown_score_);
      }
      at += bytes;
    }
  }

  // Emits a run of unknown characters, which may still be an entry (the unknown token spelled out).
  template <class Emit>
  void unknown(std::string_view text, uint32_t begin, uint32_t end, Emit emit) const {
    const std::string_view run = text.substr(begin, end - begin);
    const int32_t known = trie_.find(run);
    const auto has_token = [&](char c) { return byte_ids_[static_cast<unsigned char>(c)] >= 0; };
    if (known < 0 && !byte_ids_.empty() && std::all_of(run.begin(), run.end(), has_token)) {
      for (const char c : run) emit(byte_ids_[static_cast<unsigned char>(c)], begin, end);
    } else {
      emit(known >= 0 ? known : unk_id_, begin, end);
    }
  }

  [[noreturn]] void refuse(std::string_view character) const {
    fail(ErrorCode::bad_model, "{}: no entry for \"{}\" and no unk_id", where_, character);
  }

  std::vector<std::string> tokens_;
  std::vector<double> scores_;
  PrefixTrie trie_;
  std::vector<int32_t> byte_ids_;  // by byte, -1 if missing; empty without byte fallback
  int32_t unk_id_;
  double unknown_score_ = 0;
  std::string where_;
};

}  // namespace

std::unique_ptr<TokenModel> make_unigram(UnigramConfig config, const std::string& where) {
  return std::make_unique<Unigram>(std::move(config), where);
}

}  // namespace brim::text
