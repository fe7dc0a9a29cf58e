// SPDX-License-Identifier: Apache-2.0
// Plain loops: the reference for the kernels on CUDA.
#include <algorithm>
#include <cmath>
#include <vector>

#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

using cpu::row_of;

float gate_value(float x) { return 1 / (1 + std::exp(-x)); }
float finite_sigmoid(float x) { return gate_value(x) + (x - x); }  // NaN for infinity, like SoftmaxArgs

const WordOfWindow* words_of(const tensor::TensorView& words) {
  return reinterpret_cast<const WordOfWindow*>(words.as<int32_t>());
}

}  // namespace

void pool_words_cpu(device::Stream& stream, const PoolWordsArgs& a) {
  const int32_t* starts = a.starts.as<int32_t>();
  const int64_t D = a.y.cols();
  parallel_pieces(stream, a.y.rows(), rows_per_piece(D), [&](int64_t begin, int64_t end, int) {
    for (int64_t w = begin; w < end; ++w) {
      float* y = row_of<float>(a.y, w);
      const int32_t n = starts[w + 1] - starts[w];
      std::fill_n(y, D, 0.0f);
      for (int32_t r = starts[w]; r < starts[w + 1]; ++r)
        for (int64_t d = 0; d < D; ++d) {
          const float value = row_of<float>(a.x, r)[d];
          y[d] = r == starts[w] ? value : a.max ? std::max(y[d], value) : y[d] + value;
        }
      for (int64_t d = 0; d < D && n > 1 && !a.max; ++d) y[d] /= static_cast<float>(n);
    }
  });
}

void lstm_step_cpu(device::Stream& stream, const LstmStepArgs& a) {
  const int64_t h = a.cell.cols(), n = a.cell.rows() / 2;
  const int32_t *first = a.first_word.as<int32_t>(), *lengths = a.lengths.as<int32_t>();
  parallel_pieces(stream, 2 * a.active, rows_per_piece(8 * h), [&](int64_t begin, int64_t end, int) {
    for (int64_t at = begin; at < end; ++at) {
      const int64_t i = at / 2, direction = at % 2, row = direction * n + i;
      const int64_t word = first[i] + (direction == 0 ? a.step : lengths[i] - 1 - a.step);
      const float* in = row_of<float>(a.inputs, word) + direction * 4 * h;
      const float* recurrent = a.recurrent ? row_of<float>(a.recurrent, row) : nullptr;
      float *cell = row_of<float>(a.cell, row), *state = row_of<float>(a.state, row);
      float* y = row_of<float>(a.y, word) + direction * h;
      const auto gate = [&](int64_t k) { return in[k] + (recurrent != nullptr ? recurrent[k] : 0.0f); };
      for (int64_t k = 0; k < h; ++k) {
        const float kept = a.step == 0 ? 0.0f : gate_value(gate(h + k)) * cell[k];
        cell[k] = kept + gate_value(gate(k)) * std::tanh(gate(2 * h + k));
        y[k] = state[k] = gate_value(gate(3 * h + k)) * std::tanh(cell[k]);
      }
    }
  });
}

void span_scores_cpu(device::Stream& stream, const SpanScoresArgs& a) {
  const int64_t F = a.starts.cols(), width = a.scores.cols() / 2;
  parallel_pieces(stream, a.starts.rows(), 4, [&](int64_t begin, int64_t end, int) {
    std::vector<float> z(static_cast<size_t>(F));
    for (int64_t w = begin; w < end; ++w) {
      const WordOfWindow& word = words_of(a.words)[w];
      float* out = row_of<float>(a.scores, word.row);
      for (int64_t j = 0; j < width && w + j < word.end; ++j) {
        const float *x = row_of<float>(a.starts, w), *y = row_of<float>(a.ends, w + j);
        for (int64_t k = 0; k < F; ++k) z[static_cast<size_t>(k)] = std::max(x[k] + y[k], 0.0f);
        float best = -1;
        int32_t label = 0;
        for (int32_t c = 0; c < word.labels; ++c) {
          const float* v = row_of<float>(a.labels, word.label + c);
          float sum = v[F];
          for (int64_t k = 0; k < F; ++k) sum += z[static_cast<size_t>(k)] * v[k];
          const float score = finite_sigmoid(sum);
          if (std::isnan(best) || score <= best) continue;
          best = score;
          label = c;
        }
        out[2 * j] = best;
        out[2 * j + 1] = static_cast<float>(label);
      }
    }
  });
}

void word_pairs_cpu(device::Stream& stream, const WordPairsArgs& a) {
  const int32_t* pairs = a.pairs.as<int32_t>();
  parallel_pieces(stream, a.x.rows(), 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t w = begin; w < end; ++w) {
      const WordOfWindow& word = words_of(a.words)[w];
      for (int32_t c = 0; c < word.labels; ++c) {
        const float *x = row_of<float>(a.x, w), *label = row_of<float>(a.labels, word.label + c);
        float* y = row_of<float>(a.y, pairs[w] - pairs[0] + c);
        for (int64_t d = 0; d < a.x.cols(); ++d) y[d] = x[d] * label[d];
      }
    }
  });
}

void pair_scores_cpu(device::Stream& stream, const PairScoresArgs& a) {
  const int32_t* pairs = a.pairs.as<int32_t>();
  const int64_t F = a.x.cols();
  parallel_pieces(stream, a.x.rows(), 4, [&](int64_t begin, int64_t end, int) {
    for (int64_t w = begin; w < end; ++w) {
      const WordOfWindow& word = words_of(a.words)[w];
      for (int32_t c = 0; c < word.labels; ++c) {
        const float *both = row_of<float>(a.both, pairs[w] - pairs[0] + c), *x = row_of<float>(a.x, w);
        const float* label = row_of<float>(a.labels, word.label + c);
        for (int64_t o = 0; o < 3; ++o) {
          const float* out = row_of<float>(a.out, o);
          float sum = out[F];
          for (int64_t k = 0; k < F; ++k) {
            const float z = both[k] + x[k] + label[k];
            sum += (z < 0 ? 0.0f : z) * out[k];  // keeps NaN
          }
          row_of<float>(a.scores, word.row)[3 * c + o] = finite_sigmoid(sum);
        }
      }
    }
  });
}

}  // namespace brim::ops
