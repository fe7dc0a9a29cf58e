// SPDX-License-Identifier: Apache-2.0
// The words and labels of a batch as integers for a head on a device (word_head.h), in chunks of whole sequences that
// need a bounded amount of memory. Does not compute.
#pragma once
#include <cstdint>
#include <span>
#include <vector>

#include "batch/packed_batch.h"
#include "hub/gliner_config.h"
#include "model/forward_runner.h"

namespace brim::engine {

// Adjacent sequences of a batch. Indices of rows, words and labels count from the beginning of the chunk.
struct WordChunk {
  int64_t first_token = 0, tokens = 0;
  int64_t word_rows = 0, rows = 0;  // tokens that words use, and with those of labels
  int64_t words = 0, labels = 0;
  const void* prepared = nullptr;            // see SequenceWords
  int64_t begin = 0, ints = 0;               // all integers, in those of the batch
  int64_t starts = 0, infos = 0, pairs = 0;  // offsets from `begin`: [words+1], [words,4], [words+1]
  int64_t first_words = 0, lengths = 0;      // [windows] each, the longest first; the rows are at `begin`
  int64_t windows = 0;                       // with words
};

class WordStaging {
 public:
  // Sequences of a chunk have at most this many tokens together, or one sequence.
  WordStaging(hub::GlinerConfig::Pooling pooling, int64_t chunk_tokens) : pooling_(pooling), most_(chunk_tokens) {}
  // Upper bounds in bytes of a batch's integers, and of a chunk's.
  static int64_t batch_bytes(const model::BatchLimits& limits);
  static int64_t chunk_bytes(int64_t tokens);
  // Windows with words in a chunk of this many tokens; a window has at least two.
  static int64_t most_windows(int64_t tokens) { return (tokens + 1) / 2; }

  // Writes the integers of all chunks to `out`. Valid until the next call.
  const std::vector<WordChunk>& stage(const batch::PackedBatch& batch, int32_t* out);

 private:
  void add_chunk(const batch::PackedBatch& batch, size_t begin, size_t end, int32_t* out);
  void add_rows(const batch::PackedBatch& batch, size_t begin, size_t end, WordChunk& chunk);

  const hub::GlinerConfig::Pooling pooling_;
  const int64_t most_;
  std::vector<WordChunk> chunks_;
  std::vector<int32_t> rows_, starts_, infos_, pairs_;
  std::vector<int32_t> order_, first_words_;
};

}  // namespace brim::engine
