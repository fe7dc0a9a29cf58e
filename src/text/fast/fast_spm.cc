// SPDX-License-Identifier: Apache-2.0
// Fast path for SentencePiece models with independent words (XLM-R, ViSoBERT, ALBERT): looks up the raw bytes between
// two spaces in the cache and normalizes and tokenizes only on a miss.
// Words that a neighbour can change (marks that join a space, white space that is not normalized to a space) are left
// to the general pipeline.
#include <algorithm>
#include <array>
#include <bit>

#include "base/utf8.h"
#include "text/fast/fast_path.h"
#include "text/unicode/grapheme.h"
#include "text/unicode/unicode.h"

namespace brim::text {
namespace {

constexpr std::string_view kMark = "\u2581";
constexpr std::string_view kBefore = "a ";  // prefix for normalizing a word that joins the space before it

class SpmFastPath final : public FastPath {
 public:
  SpmFastPath(const Normalizer* normalizer, const TokenModel& model) : normalizer_(normalizer), model_(model) {
    for (char32_t c = 0; c < 0x10000; ++c) {
      if (c != ' ' && unicode::is_white_space(c) && becomes_space(c)) spaces_.push_back(c);
    }
  }

  bool encode(std::string_view part, Scratch& s, std::vector<int32_t>& out) const override {
    if (s.subwords == nullptr) s.subwords = std::make_unique<SubwordCache>();
    if (joins_before(decode_valid(part, 0).value)) return false;  // words are assumed to follow a space
    const size_t before = out.size();
    Batch batch;
    for (size_t at = 0; at < part.size();) {
      if (part[at] == ' ') {
        ++at;
        continue;
      }
      const size_t end = word_end(part, at);
      Word& word = batch.words[batch.count++];
      word.text = part.substr(at, end - at);
      if (word.text.size() <= ShortKey::kLongest) {
        word.key = ShortKey::from_padded(word.text.data(), word.text.size());
        word.hash = word.key.hash();
        s.subwords->prefetch(word.hash);
      }
      at = end;
      if (batch.count == kBatch && !flush(batch, s, out)) return give_up(before, out);
    }
    return flush(batch, s, out) || give_up(before, out);
  }

 private:
  static constexpr size_t kBatch = 16;
  struct Word {
    std::string_view text;
    ShortKey key;
    uint64_t hash;
  };
  struct Batch {
    std::array<Word, kBatch> words;
    size_t count = 0;
  };

  bool becomes_space(char32_t c) const {
    if (normalizer_ == nullptr) return false;
    NormalizedText text;
    std::string around = "a";
    append_utf8(around, c);
    text.reset(around + "a", false);
    normalizer_->apply(text);
    return text.text == "a a";
  }

  // Position of the next space, or the end. The input is padded, so reading eight bytes is safe at any position.
  static size_t word_end(std::string_view part, size_t at) {
    for (; at < part.size(); at += 8) {
      const uint64_t others = load8(part.data() + at) ^ (swar::kOnes * ' ');
      const uint64_t space = (others - swar::kOnes) & ~others & swar::kHigh;
      if (space != 0) return std::min(part.size(), at + static_cast<size_t>(std::countr_zero(space)) / 8);
    }
    return part.size();
  }

  // Looks up the words of a batch; their cache lines were prefetched when they were added.
  bool flush(Batch& batch, Scratch& s, std::vector<int32_t>& out) const {
    std::array<int32_t, kBatch * SubwordCache::kMostIds> ids;
    int32_t* to = ids.data();
    for (size_t i = 0; i < batch.count; ++i) {
      const Word& word = batch.words[i];
      const bool small = word.text.size() <= ShortKey::kLongest;
      const SubwordCache::Entry* hit = small ? s.subwords->find(word.key, word.hash) : nullptr;
      if (hit != nullptr) [[likely]] {
        std::copy(std::begin(hit->ids), std::end(hit->ids), to);  // all: avoids a branch on the count
        to += hit->count;
        continue;
      }
      out.insert(out.end(), ids.data(), to);
      to = ids.data();
      const size_t before = out.size();
      if (!new_word(word.text, s, out)) return false;
      if (small) s.subwords->store(word.key, word.hash, std::span(out).subspan(before));
    }
    out.insert(out.end(), ids.data(), to);
    batch.count = 0;
    return true;
  }

  static bool give_up(size_t before, std::vector<int32_t>& out) {
    out.resize(before);
    return false;
  }

  bool independent(std::string_view word) const {
    for (size_t at = 0; at < word.size();) {
      const CodePoint c = decode_valid(word, at);
      if ((c.value < ' ' || c.value >= 0x80) &&
          ((unicode::is_white_space(c.value) && std::find(spaces_.begin(), spaces_.end(), c.value) == spaces_.end()) ||
           joins_after(c.value))) {
        return false;
      }
      at += c.bytes;
    }
    return true;
  }

  // Returns false if the word depends on its neighbours.
  bool new_word(std::string_view raw, Scratch& s, std::vector<int32_t>& out) const {
    if (!independent(raw)) return false;
    s.normalized.reset(raw, false);
    const bool after_space = joins_before(decode_valid(raw, 0).value);
    if (after_space) s.normalized.text.insert(0, kBefore);
    if (normalizer_ != nullptr) normalizer_->apply(s.normalized);
    std::string_view text = s.normalized.text;
    if (after_space) {
      if (!text.starts_with(kBefore)) return false;
      text.remove_prefix(kBefore.size());
    }
    if (text.find(kMark) != std::string_view::npos) return false;
    for (size_t at = 0; at < text.size();) {
      const size_t end = std::min(text.size(), text.find(' ', at));
      if (end > at) {
        s.word.assign(kMark);
        s.word.append(text, at, end - at);
        model_.tokenize_ids(s.word, out);
      }
      at = end + 1;
    }
    return true;
  }

  const Normalizer* const normalizer_;
  const TokenModel& model_;
  std::vector<char32_t> spaces_;  // white space that the normalizer turns into a space
};

}  // namespace

std::unique_ptr<FastPath> make_spm_fast_path(const PipelineParts& parts) {
  if (parts.pre_tokenizer == nullptr) return nullptr;
  const PreTokenizer::Traits split = parts.pre_tokenizer->traits();
  Normalizer::Traits text{.by_word = true};
  if (parts.normalizer != nullptr) text = parts.normalizer->traits();
  const bool tidy = split.drops_white_space || (text.strips_end && text.joins_spaces);
  if (!split.marks_words || !text.by_word || !tidy) return nullptr;
  return std::make_unique<SpmFastPath>(parts.normalizer.get(), *parts.model);
}

}  // namespace brim::text
