// SPDX-License-Identifier: Apache-2.0
// Word scores on CUDA. Scores of spans: a warp per word computes the sums of its spans and labels in registers, a
// few at a time, so that neither the vectors of spans nor their scores per label are stored.
#include "ops/cuda/rows2d.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kWordThreads = 128;

__device__ __forceinline__ float gate_of(float x) { return 1.0f / (1.0f + expf(-x)); }
// NaN for infinity, like softmax.
__device__ __forceinline__ float score_of(float x) { return 1.0f / (1.0f + expf(-x)) + (x - x); }

template <class Elem>
__global__ void __launch_bounds__(kWordThreads)
    pool_words_kernel(const Elem* x, int64_t ldx, const int32_t* starts, Elem* y, int64_t ldy, int D, bool maximum) {
  const int64_t w = blockIdx.x;
  const int begin = starts[w], end = starts[w + 1];
  for (int d = threadIdx.x; d < D; d += kWordThreads) {
    float value = 0.0f;
    for (int r = begin; r < end; ++r) {
      const float next = to_f32(x[r * ldx + d]);
      value = r == begin ? next : maximum ? fmaxf(value, next) : value + next;
    }
    if (!maximum && end - begin > 1) value /= static_cast<float>(end - begin);
    y[w * ldy + d] = from_f32<Elem>(value);
  }
}

template <class Elem>
struct LstmRows {
  const Elem *inputs, *recurrent;
  float* cell;
  Elem *state, *y;
  int64_t ld_inputs, ld_recurrent, ld_cell, ld_state, ldy;
  const int32_t *first_word, *lengths;
  int step, n, h;
};

template <class Elem>
__global__ void __launch_bounds__(kWordThreads) lstm_step_kernel(LstmRows<Elem> a) {
  const int i = static_cast<int>(blockIdx.x), direction = static_cast<int>(blockIdx.y);
  const int64_t row = static_cast<int64_t>(direction) * a.n + i;
  const int64_t word = a.first_word[i] + (direction == 0 ? a.step : a.lengths[i] - 1 - a.step);
  const Elem* in = a.inputs + word * a.ld_inputs + direction * 4 * a.h;
  const Elem* recurrent = a.recurrent + row * a.ld_recurrent;
  for (int k = threadIdx.x; k < a.h; k += kWordThreads) {
    float gate[4];
#pragma unroll
    for (int g = 0; g < 4; ++g)
      gate[g] = to_f32(in[g * a.h + k]) + (a.step > 0 ? to_f32(recurrent[g * a.h + k]) : 0.0f);
    const float kept = a.step > 0 ? gate_of(gate[1]) * a.cell[row * a.ld_cell + k] : 0.0f;
    const float cell = kept + gate_of(gate[0]) * tanhf(gate[2]);
    const Elem out = from_f32<Elem>(gate_of(gate[3]) * tanhf(cell));
    a.cell[row * a.ld_cell + k] = cell;
    a.state[row * a.ld_state + k] = out;
    a.y[word * a.ldy + direction * a.h + k] = out;
  }
}

constexpr int kSpansAtOnce = 4, kLabelsAtOnce = 8;

template <class Elem, int kWidth>
__global__ void __launch_bounds__(kWordThreads)
    span_scores_kernel(const Elem* starts, int64_t ld_starts, const Elem* ends, int64_t ld_ends, const Elem* labels,
                       int64_t ld_labels, const WordOfWindow* words, float* scores, int64_t ld_scores, int W, int F,
                       int width) {
  const int w = static_cast<int>((blockIdx.x * kWordThreads + threadIdx.x) / 32), lane = threadIdx.x % 32;
  if (w >= W) return;
  const WordOfWindow word = words[w];
  const int spans = min(width, word.end - w);
  const Elem* x = starts + w * ld_starts;
  float* out = scores + word.row * ld_scores;
  for (int j0 = 0; j0 < spans; j0 += kSpansAtOnce) {
    float best[kSpansAtOnce];
    int label[kSpansAtOnce];
#pragma unroll
    for (int j = 0; j < kSpansAtOnce; ++j) best[j] = -1.0f, label[j] = 0;
    for (int c0 = 0; c0 < word.labels; c0 += kLabelsAtOnce) {
      float sum[kSpansAtOnce][kLabelsAtOnce] = {};
      for (int k = lane * kWidth; k < F; k += 32 * kWidth) {
        float a[kWidth], z[kSpansAtOnce][kWidth], v[kWidth];
        load_piece<kWidth>(x + k, a);
#pragma unroll
        for (int j = 0; j < kSpansAtOnce; ++j) {  // past the last span: the last one again, not stored
          load_piece<kWidth>(ends + (w + min(j0 + j, spans - 1)) * ld_ends + k, z[j]);
#pragma unroll
          for (int i = 0; i < kWidth; ++i) z[j][i] = a[i] + z[j][i] < 0.0f ? 0.0f : a[i] + z[j][i];  // keeps NaN
        }
#pragma unroll
        for (int c = 0; c < kLabelsAtOnce; ++c) {
          if (c0 + c >= word.labels) break;
          load_piece<kWidth>(labels + (word.label + c0 + c) * ld_labels + k, v);
#pragma unroll
          for (int j = 0; j < kSpansAtOnce; ++j)
#pragma unroll
            for (int i = 0; i < kWidth; ++i) sum[j][c] = fmaf(z[j][i], v[i], sum[j][c]);
        }
      }
#pragma unroll
      for (int c = 0; c < kLabelsAtOnce; ++c) {
        if (c0 + c >= word.labels) break;
        const float bias = to_f32(labels[(word.label + c0 + c) * ld_labels + F]);
#pragma unroll
        for (int j = 0; j < kSpansAtOnce; ++j) {
          const float score = score_of(warp_sum(sum[j][c]) + bias);
          if (best[j] != best[j] || score <= best[j]) continue;  // NaN stays
          best[j] = score;
          label[j] = c0 + c;
        }
      }
    }
#pragma unroll
    for (int j = 0; j < kSpansAtOnce; ++j)
      if (lane == 0 && j0 + j < spans) {
        out[2 * (j0 + j)] = best[j];
        out[2 * (j0 + j) + 1] = static_cast<float>(label[j]);
      }
  }
}

template <class Elem>
__global__ void __launch_bounds__(kWordThreads)
    word_pairs_kernel(const Elem* x, int64_t ldx, const Elem* labels, int64_t ld_labels, const WordOfWindow* words,
                      const int32_t* pairs, Elem* y, int64_t ldy, int D) {
  const int64_t w = blockIdx.x;
  const WordOfWindow word = words[w];
  const int64_t first = pairs[w] - pairs[0];
  for (int d = threadIdx.x; d < D; d += kWordThreads) {
    const float value = to_f32(x[w * ldx + d]);
    for (int c = 0; c < word.labels; ++c)
      y[(first + c) * ldy + d] = from_f32<Elem>(value * to_f32(labels[(word.label + c) * ld_labels + d]));
  }
}

template <class Elem>
__global__ void __launch_bounds__(kWordThreads)
    pair_scores_kernel(const Elem* both, int64_t ld_both, const Elem* x, int64_t ldx, const Elem* labels,
                       int64_t ld_labels, const Elem* out, int64_t ld_out, const WordOfWindow* words,
                       const int32_t* pairs, float* scores, int64_t ld_scores, int F) {
  const int64_t w = blockIdx.x;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const WordOfWindow word = words[w];
  const int64_t first = pairs[w] - pairs[0];
  for (int c = warp; c < word.labels; c += kWordThreads / 32) {
    const Elem *row = both + (first + c) * ld_both, *label = labels + (word.label + c) * ld_labels;
    float sum[3] = {0.0f, 0.0f, 0.0f};
    for (int k = lane; k < F; k += 32) {
      const float sums = to_f32(row[k]) + to_f32(x[w * ldx + k]) + to_f32(label[k]), z = sums < 0.0f ? 0.0f : sums;
#pragma unroll
      for (int o = 0; o < 3; ++o) sum[o] = fmaf(z, to_f32(out[o * ld_out + k]), sum[o]);
    }
#pragma unroll
    for (int o = 0; o < 3; ++o) {
      const float score = score_of(warp_sum(sum[o]) + to_f32(out[o * ld_out + F]));
      if (lane == 0) scores[word.row * ld_scores + 3 * c + o] = score;
    }
  }
}

const WordOfWindow* words_of(const tensor::TensorView& words) {
  return reinterpret_cast<const WordOfWindow*>(words.as<int32_t>());
}
dim3 grid_of(int64_t blocks) { return dim3(static_cast<unsigned>(blocks)); }

}  // namespace

void pool_words_cuda(device::Stream& stream, const PoolWordsArgs& a) {
  cuda_op(stream, "pool_words", [&](device::CudaStream& s) {
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<pool_words_kernel<Elem>>(
          s, grid_of(a.y.rows()), dim3(kWordThreads), static_cast<const Elem*>(a.x.data), a.x.ld(),
          a.starts.as<int32_t>(), static_cast<Elem*>(a.y.data), a.y.ld(), static_cast<int>(a.y.cols()), a.max);
    });
  });
}

void lstm_step_cuda(device::Stream& stream, const LstmStepArgs& a) {
  cuda_op(stream, "lstm_step", [&](device::CudaStream& s) {
    dispatch_elem(a.inputs.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      LstmRows<Elem> rows;
      rows.inputs = static_cast<const Elem*>(a.inputs.data);
      rows.recurrent = static_cast<const Elem*>(a.recurrent.data);
      rows.cell = a.cell.as<float>();
      rows.state = static_cast<Elem*>(a.state.data);
      rows.y = static_cast<Elem*>(a.y.data);
      rows.ld_inputs = a.inputs.ld();
      rows.ld_recurrent = a.recurrent.ld();
      rows.ld_cell = a.cell.ld();
      rows.ld_state = a.state.ld();
      rows.ldy = a.y.ld();
      rows.first_word = a.first_word.as<int32_t>();
      rows.lengths = a.lengths.as<int32_t>();
      rows.step = static_cast<int>(a.step);
      rows.n = static_cast<int>(a.cell.rows() / 2);
      rows.h = static_cast<int>(a.cell.cols());
      device::launch<lstm_step_kernel<Elem>>(s, dim3(static_cast<unsigned>(a.active), 2), dim3(kWordThreads), rows);
    });
  });
}

void span_scores_cuda(device::Stream& stream, const SpanScoresArgs& a) {
  cuda_op(stream, "span_scores", [&](device::CudaStream& s) {
    const int W = static_cast<int>(a.starts.rows()), F = static_cast<int>(a.starts.cols()),
              width = static_cast<int>(a.scores.cols() / 2);
    const dim3 grid(device::blocks_for(W, kWordThreads / 32)), block(kWordThreads);
    const bool wide = F % 8 == 0 && eight_wide(a.starts) && eight_wide(a.ends) && eight_wide(a.labels);
    dispatch_elem(a.starts.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const auto *starts = static_cast<const Elem*>(a.starts.data), *ends = static_cast<const Elem*>(a.ends.data),
                 *labels = static_cast<const Elem*>(a.labels.data);
      if (wide)
        device::launch<span_scores_kernel<Elem, 8>>(s, grid, block, starts, a.starts.ld(), ends, a.ends.ld(), labels,
                                                    a.labels.ld(), words_of(a.words), a.scores.as<float>(),
                                                    a.scores.ld(), W, F, width);
      else
        device::launch<span_scores_kernel<Elem, 1>>(s, grid, block, starts, a.starts.ld(), ends, a.ends.ld(), labels,
                                                    a.labels.ld(), words_of(a.words), a.scores.as<float>(),
                                                    a.scores.ld(), W, F, width);
    });
  });
}

void word_pairs_cuda(device::Stream& stream, const WordPairsArgs& a) {
  cuda_op(stream, "word_pairs", [&](device::CudaStream& s) {
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<word_pairs_kernel<Elem>>(
          s, grid_of(a.x.rows()), dim3(kWordThreads), static_cast<const Elem*>(a.x.data), a.x.ld(),
          static_cast<const Elem*>(a.labels.data), a.labels.ld(), words_of(a.words), a.pairs.as<int32_t>(),
          static_cast<Elem*>(a.y.data), a.y.ld(), static_cast<int>(a.x.cols()));
    });
  });
}

void pair_scores_cuda(device::Stream& stream, const PairScoresArgs& a) {
  cuda_op(stream, "pair_scores", [&](device::CudaStream& s) {
    dispatch_elem(a.x.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<pair_scores_kernel<Elem>>(
          s, grid_of(a.x.rows()), dim3(kWordThreads), static_cast<const Elem*>(a.both.data), a.both.ld(),
          static_cast<const Elem*>(a.x.data), a.x.ld(), static_cast<const Elem*>(a.labels.data), a.labels.ld(),
          static_cast<const Elem*>(a.out.data), a.out.ld(), words_of(a.words), a.pairs.as<int32_t>(),
          a.scores.as<float>(), a.scores.ld(), static_cast<int>(a.x.cols()));
    });
  });
}

}  // namespace brim::ops
