// SPDX-License-Identifier: Apache-2.0
#include "ops/word_scores.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

void pool_words(device::Stream& stream, const PoolWordsArgs& a) {
  const char* op = "pool_words";
  check_activation(op, "x", stream, a.x.dtype);
  check_view(op, "x", a.x, a.x.dtype, {a.x.rows(), a.y.cols()});
  check_view(op, "y", a.y, a.x.dtype, {a.y.rows(), a.y.cols()});
  check_view(op, "starts", a.starts, DType::i32, {a.y.rows() + 1});
  if (a.y.elements() == 0) return;
  dispatch(stream, a, {static_cast<double>(a.x.elements()), 2.0 * static_cast<double>(a.y.bytes())});
}

void lstm_step(device::Stream& stream, const LstmStepArgs& a) {
  const char* op = "lstm_step";
  const int64_t W = a.y.rows(), h = a.cell.cols(), rows = a.cell.rows();
  check_activation(op, "inputs", stream, a.inputs.dtype);
  check_view(op, "inputs", a.inputs, a.inputs.dtype, {W, 8 * h});
  check_optional(op, "recurrent", a.recurrent, a.inputs.dtype, {rows, 4 * h});
  check_view(op, "cell", a.cell, DType::f32, {rows, h});
  check_view(op, "state", a.state, a.inputs.dtype, {rows, h});
  check_view(op, "y", a.y, a.inputs.dtype, {W, 2 * h});
  check_view(op, "first_word", a.first_word, DType::i32, {rows / 2});
  check_view(op, "lengths", a.lengths, DType::i32, {rows / 2});
  BRIM_CHECK(a.step == 0 || a.recurrent, "{}: step {} requires products of the state", op, a.step);
  BRIM_CHECK(rows % 2 == 0 && a.active <= rows / 2, "{}: {} active windows, {} rows of cells", op, a.active, rows);
  if (a.active == 0 || h == 0) return;
  const double values = static_cast<double>(2 * a.active * h);
  dispatch(stream, a, {20 * values, 40 * values});
}

void span_scores(device::Stream& stream, const SpanScoresArgs& a) {
  const char* op = "span_scores";
  const int64_t W = a.starts.rows(), F = a.starts.cols();
  check_activation(op, "starts", stream, a.starts.dtype);
  check_view(op, "starts", a.starts, a.starts.dtype, {W, F});
  check_view(op, "ends", a.ends, a.starts.dtype, {W, F});
  check_view(op, "labels", a.labels, a.starts.dtype, {a.labels.rows(), F + 1});
  check_view(op, "words", a.words, DType::i32, {W, kWordInts});
  check_view(op, "scores", a.scores, DType::f32, {a.scores.rows(), a.scores.cols()});
  BRIM_CHECK(a.scores.cols() % 2 == 0, "{}: scores have {} columns", op, a.scores.cols());
  if (W == 0 || F == 0) return;
  const double spans = static_cast<double>(W * a.scores.cols() / 2);
  dispatch(stream, a, {spans * static_cast<double>(2 * F), 2.0 * static_cast<double>(a.starts.bytes())});
}

void word_pairs(device::Stream& stream, const WordPairsArgs& a) {
  const char* op = "word_pairs";
  const int64_t W = a.x.rows(), D = a.x.cols();
  check_activation(op, "x", stream, a.x.dtype);
  check_view(op, "x", a.x, a.x.dtype, {W, D});
  check_view(op, "labels", a.labels, a.x.dtype, {a.labels.rows(), D});
  check_view(op, "words", a.words, DType::i32, {W, kWordInts});
  check_view(op, "pairs", a.pairs, DType::i32, {W});
  check_view(op, "y", a.y, a.x.dtype, {a.y.rows(), D});
  if (W == 0 || a.y.elements() == 0) return;
  dispatch(stream, a, {static_cast<double>(a.y.elements()), static_cast<double>(a.y.bytes())});
}

void pair_scores(device::Stream& stream, const PairScoresArgs& a) {
  const char* op = "pair_scores";
  const int64_t W = a.x.rows(), F = a.x.cols();
  check_activation(op, "x", stream, a.x.dtype);
  check_view(op, "both", a.both, a.x.dtype, {a.both.rows(), F});
  check_view(op, "x", a.x, a.x.dtype, {W, F});
  check_view(op, "labels", a.labels, a.x.dtype, {a.labels.rows(), F});
  check_view(op, "out", a.out, a.x.dtype, {3, F + 1});
  check_view(op, "words", a.words, DType::i32, {W, kWordInts});
  check_view(op, "pairs", a.pairs, DType::i32, {W});
  check_view(op, "scores", a.scores, DType::f32, {a.scores.rows(), a.scores.cols()});
  if (W == 0 || a.both.elements() == 0) return;
  dispatch(stream, a, {8.0 * static_cast<double>(a.both.elements()), static_cast<double>(a.both.bytes())});
}

}  // namespace brim::ops
