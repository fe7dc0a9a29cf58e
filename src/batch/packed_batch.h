// SPDX-License-Identifier: Apache-2.0
// Packing: tokenized sequences become flat batches of at most `tokens` tokens, without padding. The packer looks ahead
// over a bounded window so that a long sequence does not end a batch early; rows are found again by their tickets.
#pragma once
#include <cstdint>
#include <deque>
#include <span>
#include <vector>

#include "ops/batch_view.h"

namespace brim::batch {

// One sequence to be computed. `ticket` is the caller's: it says whose result this is.
struct Sequence {
  const int32_t* ids = nullptr;
  int32_t length = 0;
  uint64_t ticket = 0;
};

// Host side of a batch; reused from batch to batch, it stops allocating once it has seen the largest.
struct PackedBatch {
  std::vector<int32_t> ids, positions, starts, order;
  std::vector<uint64_t> tickets;  // one per sequence
  int64_t longest = 0, n_long = 0;
  int64_t padding_tokens = 0;  // padding ids within texts; above 0, positions are not consecutive
  double sum_squares = 0;

  int64_t tokens() const { return static_cast<int64_t>(ids.size()); }
  int64_t sequences() const { return static_cast<int64_t>(tickets.size()); }
  void clear();
  // Positions count from `position_offset`. If that is above 0 (RoBERTa), the padding id is position_offset - 1: such
  // tokens are not counted and take the position position_offset - 1, as in transformers.
  void add(const Sequence& sequence, int64_t position_offset);
  void finish();                // computes starts' end and the order; call once after the last add
  ops::BatchView view() const;  // onto the vectors: for the CPU, and as the source of copies
};

struct PackLimits {
  int64_t tokens = 0, sequences = 0;
};

// Takes sequences in order and gives out full batches. Within the window, a sequence that does not fit the open batch
// waits for the next one while shorter followers fill the gap; none waits longer than one batch.
class Packer {
 public:
  Packer(PackLimits limits, int64_t position_offset) : limits_(limits), position_offset_(position_offset) {}
  void push(const Sequence& sequence) {
    waiting_.push_back(sequence);
    waiting_tokens_ += sequence.length;
  }
  // True if a batch can be closed now without losing fill: more than a batch and a window's worth is waiting.
  bool ready() const {
    return waiting_tokens_ >= limits_.tokens + limits_.tokens / 8 ||
           static_cast<int64_t>(waiting_.size()) > limits_.sequences;
  }
  bool empty() const { return waiting_.empty(); }
  uint64_t next_ticket() const { return waiting_.front().ticket; }  // of the first sequence given that still waits
  void pop(PackedBatch& batch);  // fills `batch` with what fits; at least one sequence if any waits

 private:
  PackLimits limits_;
  int64_t position_offset_;
  std::deque<Sequence> waiting_;
  int64_t waiting_tokens_ = 0;
};

}  // namespace brim::batch
