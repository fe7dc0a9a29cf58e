// SPDX-License-Identifier: Apache-2.0
// Shared parts of the gradient kernels of packed attention. With P recomputed from the saved log-sum-exp and
// delta = out · d_out per query,
//   dS = P ∘ (d_out Vᵀ − delta),   d_q = dS K,   d_k = dSᵀ Q,   d_v = Pᵀ d_out.
// No atomics, fixed order everywhere.
#pragma once
#include "ops/attention.h"
#include "ops/cuda/attention_tile.cuh"

namespace brim::ops {

constexpr float kLog2e = 1.44269504f;
constexpr int kWholeTokens = 64;  // sequences up to this length are held by one block

template <class Elem>
struct Rows {
  Elem* data;
  unsigned ld;
};
template <class Elem>
struct GradProblem {
  AttentionProblem p;  // lse and drop as in the forward pass
  Rows<const Elem> q, k, v, out, d_out;
  Rows<Elem> d_q, d_k, d_v;
  float* delta;      // [Tq, heads], for sequences longer than kWholeTokens
  float* bias_sums;  // [kBiasParts, heads, 2 reach + 1]
};

template <int D>
struct GradTile {
  QTile<D> first, second;      // own rows: Q and d_out, or K and V
  Accum<D> d_first, d_second;  // d_q; or d_k and d_v
};

// (Dropped) probabilities s and dS of 16 own rows against other rows c0 .. c0+15 of `other`; rows past c0 + left are
// masked. `lse` (base 2) and `delta` belong to queries: own rows g and g + 8 (two values) if those are queries, other
// rows (indexed like `other`) if the own rows are keys. `own` and `far` are the positions of the first own and other
// row in their sequence.
template <class Elem, int D, bool kKeys, class Source, class Kept>
__device__ __forceinline__ void score_gradients(float (&s)[2][4], float (&dp)[2][4], const GradTile<D>& tile,
                                                const Source& other, int c0, int left, const float* lse,
                                                const float* delta, const AttentionProblem& p, const Kept& kept,
                                                int own, int far, int head, int g, int t) {
  const float scale_log2 = p.scale * kLog2e;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int row = c0 + min(8 * j + g, left);
    const KRow<D> first = other.wide(0, row, t), second = other.wide(1, row, t);
    s[j][0] = s[j][1] = s[j][2] = s[j][3] = 0.0f;
    dp[j][0] = dp[j][1] = dp[j][2] = dp[j][3] = 0.0f;
#pragma unroll
    for (int i = 0; i < D / 32; ++i) {
      mma_16816<Elem>(s[j], tile.first.f[2 * i], first.v[i].x, first.v[i].y);
      mma_16816<Elem>(s[j], tile.first.f[2 * i + 1], first.v[i].z, first.v[i].w);
      mma_16816<Elem>(dp[j], tile.second.f[2 * i], second.v[i].x, second.v[i].y);
      mma_16816<Elem>(dp[j], tile.second.f[2 * i + 1], second.v[i].z, second.v[i].w);
    }
  }
  if (p.bias != nullptr) {
#pragma unroll
    for (int j = 0; j < 2; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int distance = far + 8 * j + 2 * t + (e & 1) - (own + g + 8 * (e >> 1));
        s[j][e] += bias_of(p, head, kKeys ? -distance : distance);
      }
  }
  // s becomes the (dropped) probability, dp becomes dS.
#pragma unroll
  for (int j = 0; j < 2; ++j)
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int h = e >> 1, column = 8 * j + 2 * t + (e & 1);
      const int at = c0 + min(column, left);
      const float row_lse = kKeys ? lse[at] : lse[h], row_delta = kKeys ? delta[at] : delta[h];
      const int query = kKeys ? far + column : own + g + 8 * h, key = kKeys ? own + g + 8 * h : far + column;
      const bool unseen = column > left || (p.window > 0 && abs(query - key) > p.window);
      const float prob = unseen ? 0.0f : exp2_fast(fmaf(s[j][e], scale_log2, -row_lse));
      float factor = 1.0f;
      if (p.drop.threshold != 0) factor = kept.at(query, key) ? p.drop.scale : 0.0f;
      dp[j][e] = prob * (dp[j][e] * factor - row_delta);
      s[j][e] = prob * factor;
    }
}

// out · d_out of one query and head.
template <class Elem, int D>
__device__ __forceinline__ float row_delta(const Elem* out, const Elem* d_out) {
  float sum = 0.0f;
#pragma unroll
  for (int d = 0; d < D; d += 8) {
    float a[8], b[8];
    load8(out + d, a);
    load8(d_out + d, b);
#pragma unroll
    for (int i = 0; i < 8; ++i) sum = fmaf(a[i], b[i], sum);
  }
  return sum;
}

// Sequences of up to kWholeTokens (attention_grad_whole_cuda.cu).
template <class Elem, int D>
void launch_whole_gradients(device::CudaStream& s, const GradProblem<Elem>& x);
// Computes x.bias_sums of all sequences, on tensor cores or in fp32 (attention_grad_bias_cuda.cu).
template <class Elem>
void launch_bias_gradients(device::CudaStream& s, const GradProblem<Elem>& x, int D, bool tensor_cores);

}  // namespace brim::ops
