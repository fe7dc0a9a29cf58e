// SPDX-License-Identifier: Apache-2.0
// Packs tokenized sequences into flat batches of at most `tokens` tokens, without padding. A bounded lookahead window
// prevents long sequences from closing a batch early; results are matched to rows by ticket. Does not tokenize.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "ops/batch_view.h"

namespace brim::batch {

// Tokens of a word within its sequence; none if the tokenizer drops the word.
struct WordTokens {
  int32_t first, count;
};

// For a head that scores words for labels; the caller keeps the data until the batch is collected.
struct SequenceWords {
  std::span<const WordTokens> words;  // at most as many as tokens
  std::span<const int32_t> labels;    // the token that represents each label; empty if `prepared`
  const void* prepared = nullptr;     // labels that the head prepared
};

// One sequence to compute. `ticket` is the caller's identifier for the result.
struct Sequence {
  const int32_t* ids = nullptr;
  int32_t length = 0;
  uint64_t ticket = 0;
  SequenceWords words = {};
};

// Host side of a batch. Reused between batches, so it stops allocating after the largest one.
struct PackedBatch {
  std::vector<int32_t> ids, positions, starts, order;
  std::vector<uint64_t> tickets;     // one per sequence
  std::vector<SequenceWords> words;  // one per sequence
  int64_t longest = 0, n_long = 0;
  int64_t padding_tokens = 0;  // padding ids within texts; above 0, positions are not consecutive
  double sum_squares = 0;

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t sequences() const { return static_cast<int64_t>(tickets.size()); }
  void clear();
  // Positions count from `position_offset`. If that is above 0 (RoBERTa), the padding id is position_offset - 1: such
  // tokens are not counted and take the position position_offset - 1, as in transformers.
  void add(const Sequence& sequence, int64_t position_offset);
  void finish();                // sets the end of `starts` and the order; call once after the last add
  ops::BatchView view() const;  // points into the vectors: used directly on the CPU, and as the source of copies
};

struct PackLimits {
  int64_t tokens = 0, sequences = 0;
};

// Takes sequences in order and returns full batches. Within the window, a sequence that does not fit the open batch
// waits for the next one while shorter ones fill the gap; no sequence waits longer than one batch.
class Packer {
 public:
  Packer(PackLimits limits, int64_t position_offset) : limits_(limits), position_offset_(position_offset) {}
  void push(const Sequence& sequence) {
    waiting_.push_back(sequence);
    waiting_tokens_ += sequence.length;
  }
  // True if a batch can be closed now at full fill: more than a batch plus a window is waiting.
  bool ready() const {
    return waiting_tokens_ >= limits_.tokens + limits_.tokens / 8 ||
           static_cast<int64_t>(waiting_.size()) > limits_.sequences;
  }
  bool empty() const { return waiting_.empty(); }
  uint64_t next_ticket() const { return waiting_.front().ticket; }  // ticket of the oldest waiting sequence
  void pop(PackedBatch& batch);  // fills `batch` with sequences that fit; at least one if any are waiting

 private:
  PackLimits limits_;
  int64_t position_offset_;
  std::deque<Sequence> waiting_;
  int64_t waiting_tokens_ = 0;
};

}  // namespace brim::batch
