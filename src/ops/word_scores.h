// SPDX-License-Identifier: Apache-2.0
// Ops of heads that score spans of words for labels (GLiNER): pooling of words, one step of an LSTM, and the last
// products of span and word scores, whose operands would be too large to store. Matrix products are linear's.
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

// A word of a window, as stored on the device. Rows of words and of labels are those of the views of an op.
struct WordOfWindow {
  int32_t end;            // one past the last word of the window
  int32_t label, labels;  // first label and number of labels
  int32_t row;            // index into the scores
};
constexpr int64_t kWordInts = sizeof(WordOfWindow) / sizeof(int32_t);

// y[w] = mean, or maximum, of x[starts[w]] to x[starts[w+1]-1]; 0 if there are none.
struct PoolWordsArgs {
  TensorView x;       // [R,D]
  TensorView starts;  // [W+1] i32
  TensorView y;       // [W,D]
  bool max = false;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, starts, y}) f(v);
  }
};
void pool_words(device::Stream& stream, const PoolWordsArgs& args);

// One word of each of the first `active` windows, forwards and backwards. Gates: input, forget, cell, output. The
// products of the previous state are empty in the first step, which sets the cells.
struct LstmStepArgs {
  TensorView inputs;      // [W,8h]: products of the words, forwards and backwards
  TensorView recurrent;   // [2n,4h]: products of the state; empty if step is 0
  TensorView cell;        // [2n,h] f32
  TensorView state;       // [2n,h], written
  TensorView y;           // [W,2h], written
  TensorView first_word;  // [n] i32
  TensorView lengths;     // [n] i32: words of a window, more than `step` for the active ones
  int64_t step = 0, active = 0;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {inputs, recurrent, cell, state, y, first_word, lengths}) f(v);
  }
};
void lstm_step(device::Stream& stream, const LstmStepArgs& args);

// The best label of each span of at most `width` words: scores[row of w][2 j], [2 j + 1] = score and label of words w
// to w + j, where score = max over labels c of sigmoid(relu(starts[w] + ends[w + j]) · labels[c][0..F) + labels[c][F]),
// the first of equal ones. NaN if a score is. Spans that end outside of the window are not written.
struct SpanScoresArgs {
  TensorView starts, ends;  // [W,F]
  TensorView labels;        // [L,F+1], strided rows
  TensorView words;         // [W,4] i32: WordOfWindow
  TensorView scores;        // [rows,2 width] f32
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {starts, ends, labels, words, scores}) f(v);
  }
};
void span_scores(device::Stream& stream, const SpanScoresArgs& args);

// y[pairs[w] - pairs[0] + c] = x[w] * labels[first label of w + c], for each label c of each word.
struct WordPairsArgs {
  TensorView x;       // [W,D], strided rows
  TensorView labels;  // [L,D], strided rows
  TensorView words;   // [W,4] i32: WordOfWindow
  TensorView pairs;   // [W] i32
  TensorView y;       // [P,D]
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, labels, words, pairs, y}) f(v);
  }
};
void word_pairs(device::Stream& stream, const WordPairsArgs& args);

// scores[row of w][3 c + k] = sigmoid(relu(both[pair] + x[w] + labels[c]) · out[k][0..F) + out[k][F]); pairs as above.
// NaN and infinity give NaN.
struct PairScoresArgs {
  TensorView both;    // [P,F]
  TensorView x;       // [W,F]
  TensorView labels;  // [L,F]
  TensorView out;     // [3,F+1], strided rows
  TensorView words;   // [W,4] i32: WordOfWindow
  TensorView pairs;   // [W] i32
  TensorView scores;  // [rows, at least 3 labels] f32
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {both, x, labels, out, words, pairs, scores}) f(v);
  }
};
void pair_scores(device::Stream& stream, const PairScoresArgs& args);

}  // namespace brim::ops
