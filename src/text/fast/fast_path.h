// SPDX-License-Identifier: Apache-2.0
// Single-pass encoding to ids for the most common pipelines: BERT (normalizer, pre-tokenizer, WordPiece), RoBERTa
// (byte-level BPE) and SentencePiece. The result equals the general pipeline token for token. ASCII is read eight bytes
// at a time; words of up to 15 bytes become a two-register key and are looked up in a per-thread cache.
// Does not produce tokens or offsets.
#pragma once
#include <memory>
#include <string_view>
#include <vector>

#include "text/fast/scratch.h"
#include "text/pipeline.h"

namespace brim::text {

class BertNormalizer;
class BpeModel;
class WordPieceModel;

class FastPath {
 public:
  virtual ~FastPath() = default;
  // Appends the ids of `part`, which must lie in Scratch::input. Returns false and appends nothing if only the general
  // pipeline can encode it (marks that must be reordered).
  virtual bool encode(std::string_view part, Scratch& scratch, std::vector<int32_t>& out) const = 0;
};

// Returns nullptr if the components are unsupported. `parts` must outlive the result.
std::unique_ptr<FastPath> make_fast_path(const PipelineParts& parts);

std::unique_ptr<FastPath> make_bert_fast_path(const BertNormalizer& normalizer, const WordPieceModel& model);
std::unique_ptr<FastPath> make_byte_bpe_fast_path(const BpeModel& model, bool add_prefix_space);
std::unique_ptr<FastPath> make_spm_fast_path(const PipelineParts& parts);  // nullptr if unsupported

// Looks up words in batches of a few dozen: add() prefetches the cache line of each word and flush() reads it, which
// hides the memory latency.
class WordBatch {
 public:
  WordBatch(Scratch& scratch, std::vector<int32_t>& out, size_t expected) : cache_(scratch.cache), out_(out) {
    open(out.size(), expected);
  }
  // `miss(word, out)` appends the ids of a word that is not in the cache.
  template <class Miss>
  void add(const ShortKey& key, Miss miss) {
    if (count_ == std::size(items_)) [[unlikely]]
      flush(miss);
    Item& item = items_[count_++];
    item.key = key;
    item.hash = key.hash();
    cache_.prefetch(item.hash);
  }
  template <class Miss>
  void add_id(int32_t id, Miss miss) {
    if (count_ == std::size(items_)) [[unlikely]]
      flush(miss);
    items_[count_++] = {{static_cast<uint64_t>(id), 0}, 0};  // no key has length 0
  }
  template <class Miss>
  void add_long(std::string_view word, Miss miss) {
    flush(miss);
    call(word, miss);
  }
  template <class Miss>
  void flush(Miss miss) {
    if (end_ - at_ < static_cast<ptrdiff_t>(kRoom)) [[unlikely]] {
      open(static_cast<size_t>(at_ - out_.data()), kRoom);
    }
    for (size_t i = 0; i < count_; ++i) {
      const Item& item = items_[i];
      if (item.key.high == 0) {
        *at_++ = static_cast<int32_t>(item.key.low);
      } else if (const WordCache::Entry* hit = cache_.find(item.key, item.hash)) [[likely]] {
        for (size_t k = 0; k < WordCache::kMostIds; ++k) at_[k] = hit->ids[k];  // all: avoids a branch on the count
        at_ += hit->count;
      } else {
        char word[16];
        std::memcpy(word, &item.key, 16);
        const auto before = static_cast<size_t>(at_ - out_.data());
        call({word, static_cast<size_t>(item.key.high >> 56)}, miss);
        cache_.store(item.key, item.hash, {out_.data() + before, at_});
      }
    }
    count_ = 0;
  }
  // Truncates the vector to the ids written. Call after the last flush.
  void close() { out_.resize(static_cast<size_t>(at_ - out_.data())); }

 private:
  struct Item {
    ShortKey key;
    uint64_t hash;
  };
  template <class Miss>
  void call(std::string_view word, Miss miss) {
    close();
    miss(word, out_);
    open(out_.size(), 0);
  }
  // Reserves space for this text only, not for the capacity of `out_`: resize zeroes what it adds, and callers may
  // collect the ids of thousands of texts in one vector (zeroing to capacity per text was quadratic: 3 to 5 MB/s
  // instead of 48).
  void open(size_t size, size_t expected) {
    out_.resize(size + expected + kRoom);
    at_ = out_.data() + size;
    end_ = out_.data() + out_.size();
  }
  static constexpr size_t kItems = 32, kRoom = kItems * WordCache::kMostIds;
  WordCache& cache_;
  std::vector<int32_t>& out_;
  int32_t *at_, *end_;
  size_t count_ = 0;
  Item items_[kItems];
};

// SWAR helpers for eight ASCII bytes. Masks hold their result in the high bit of each byte.
namespace swar {

constexpr uint64_t kOnes = 0x0101010101010101ULL, kHigh = 0x8080808080808080ULL;

// Bytes in [low, high], for bytes below 0x80.
constexpr uint64_t in_range(uint64_t bytes, uint64_t low, uint64_t high) {
  return (bytes + kOnes * (0x80 - low)) & ~(bytes + kOnes * (0x7F - high)) & kHigh;
}
// ASCII letters; `lower` becomes the bytes with upper case letters lowered.
inline uint64_t letters(uint64_t bytes, uint64_t& lower) {
  const uint64_t low7 = bytes & ~kHigh;
  lower = bytes | (in_range(low7, 'A', 'Z') & ~bytes) >> 2;
  return in_range(lower & ~kHigh, 'a', 'z') & ~bytes;
}
inline uint64_t digits(uint64_t bytes) { return in_range(bytes & ~kHigh, '0', '9') & ~bytes; }
// Number of leading bytes that are set in the mask: 0 to 8.
inline size_t run(uint64_t answers) {
  const uint64_t others = ~answers & kHigh;
  return others == 0 ? 8 : static_cast<size_t>(std::countr_zero(others)) / 8;
}

}  // namespace swar

}  // namespace brim::text
