// SPDX-License-Identifier: Apache-2.0
// Attention with tables of distances. A warp computes 16 queries of one head against all keys of their sequence, 32 at
// a time, with an online softmax. For 16 queries and 16 keys, the terms by distance are products with 32 rows of each
// table, gathered along the diagonals through shared memory; of the queries' products, half are those of the keys
// before. Tables are read from L1 and L2: blocks run head by head. Other head sizes and element types use a plain fp32
// kernel.
#include "ops/cuda/attention_distance.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr float kLog2e = 1.44269504f;
// Checks statistics, dropout and fp8 at run time.
constexpr AttentionMode kMode = AttentionMode::biased;

__device__ __forceinline__ float output_scale(const AttentionProblem& p) {
  return p.out_scale != nullptr ? *p.out_scale : p.drop.scale;
}

template <class Elem>
__device__ __forceinline__ void store_empty(void* out, const AttentionProblem& p, int row, int head, int D, int lane) {
  for (int d = lane; d < D; d += 32) {
    const size_t at = static_cast<size_t>(row) * p.ldo + head * D + d;
    if (p.out_scale != nullptr)
      static_cast<uint8_t*>(out)[at] = 0;
    else
      static_cast<Elem*>(out)[at] = from_f32<Elem>(0.0f);
  }
  if (p.lse != nullptr && lane == 0) p.lse[static_cast<size_t>(row) * p.heads + head] = -INFINITY;
}

// One warp: queries first .. first + 15.
template <class Elem, int D>
__device__ __forceinline__ void attend_tile(const Elem* q, const Elem* k, const Elem* v, void* out,
                                            const DistanceProblem<Elem>& x, const AttentionSequence& seq, int head,
                                            int first, DistanceRings& rings, int lane) {
  const AttentionProblem& p = x.p;
  const int g = lane >> 2, t = lane & 3, last = seq.kv_len - 1, tile = first / 16;
  const float scale_log2 = p.scale * kLog2e;
  QTile<D> qt;
  load_q<Elem, D>(qt, q, p.ldq, first, seq.q_len - 1, g, t);
  const DropLane drop = drop_lane(p, seq.q_start + first + g, head, t);
  const Side<Elem, false> side{x};
  TableBlock<D> before;
  begin_walk<Elem, D>(before, rings, qt, side, head, -tile, g, t);
  Running<D> run[1];
  start(run[0]);
#pragma unroll 1
  for (int key = 0; key <= last; key += kChunkKeys) {
    float s[1][4][4];
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int at = key + 16 * half;
      if (at > last) {
#pragma unroll
        for (int i = 0; i < 4; ++i) s[0][2][i] = s[0][3][i] = -INFINITY;
        break;
      }
      const KRow<D> k0 = load_k<Elem, D>(k, p.ldkv, min(at + g, last), t),
                    k1 = load_k<Elem, D>(k, p.ldkv, min(at + 8 + g, last), t);
      score_distances<Elem, D>(s[0][2 * half], s[0][2 * half + 1], before, rings, qt, k0, k1, side, head,
                               at / 16 - tile, g, t);
    }
    const int left = last - key;
    if (left < kChunkKeys - 1) mask_keys(s[0], left, t);
    follow_maxima<D, 1>(run, s, scale_log2);
    exponentials(run[0], s[0], scale_log2);
    if (p.drop.threshold != 0) drop_probabilities(s[0], drop, p.drop.site, key, t);
    Probs probs;
    pack_probabilities<Elem>(probs, s[0]);
#pragma unroll
    for (int step = 0; step < 2; ++step)
      if (16 * step <= left) {
        VRow<D> values[4];
#pragma unroll
        for (int r = 0; r < 4; ++r) values[r] = load_v<Elem, D>(v, p.ldkv, min(key + v_key(step, r, t), last), g);
        weigh_step<Elem, D>(run[0].o, probs, step, values);
      }
  }
  const float sum[2] = {quad_sum(run[0].sum[0]), quad_sum(run[0].sum[1])}, scale = output_scale(p);
  const float factor[2] = {__fdividef(scale, sum[0]), __fdividef(scale, sum[1])};
  if (p.lse != nullptr)
    store_lse({run[0].shift[0] + log2f(sum[0]), run[0].shift[1] + log2f(sum[1])}, p, seq, first, head, g, t);
  store_rows<Elem, D, kMode>(run[0].o, factor, out, p, seq, first, head, g, t);
}

template <class Elem, int D>
__global__ void __launch_bounds__(kThreads, 3)
    attention_distance_kernel(const Elem* q, const Elem* k, const Elem* v, void* out, const DistanceProblem<Elem> x,
                              int parts) {
  __shared__ DistanceRings rings[kWarps];
  const AttentionProblem& p = x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const TileWork work = tile_work<kWarps>(p, parts, static_cast<int>(blockIdx.x), warp);
  if (work.index >= p.B) return;
  const AttentionSequence seq = attention_sequence(p, work.index);
  if (seq.q_len == 0) {
    if (p.first_query_only && work.tile == 0) store_empty<Elem>(out, p, seq.q_start, work.head, D, lane);
    return;
  }
  const Elem* q_head = q + static_cast<size_t>(seq.q_start) * p.ldq + work.head * D;
  const Elem* k_head = k + static_cast<size_t>(seq.kv_start) * p.ldkv + work.head * D;
  const Elem* v_head = v + static_cast<size_t>(seq.kv_start) * p.ldkv + work.head * D;
#pragma unroll 1
  for (int tile = work.tile; 16 * tile < seq.q_len; tile += work.step)
    attend_tile<Elem, D>(q_head, k_head, v_head, out, x, seq, work.head, 16 * tile, rings[warp], lane);
}

// ---- Plain kernel: a warp per query, a lane per key ----
constexpr int kPlainSlices = 4;  // head sizes up to 128

template <class Elem>
__global__ void __launch_bounds__(kThreads)
    attention_distance_plain_kernel(const Elem* q, const Elem* k, const Elem* v, void* out, int D,
                                    const DistanceProblem<Elem> x) {
  const AttentionProblem& p = x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int index = static_cast<int>(blockIdx.x) / p.heads, head = static_cast<int>(blockIdx.x) % p.heads;
  const AttentionSequence seq = attention_sequence(p, index);
  if (p.first_query_only && seq.q_len == 0) {
    if (warp == 0 && blockIdx.y == 0) store_empty<Elem>(out, p, seq.q_start, head, D, lane);
    return;
  }
  const float out_scale = p.out_scale != nullptr ? *p.out_scale : 1.0f;
  for (int query = static_cast<int>(blockIdx.y) * kWarps + warp; query < seq.q_len;
       query += static_cast<int>(gridDim.y) * kWarps) {
    const int row = seq.q_start + query;
    const Elem* own = q + static_cast<size_t>(row) * p.ldq + head * D;
    float o[kPlainSlices] = {}, top = -INFINITY, sum = 0.0f;
    for (int k0 = 0; k0 < seq.kv_len; k0 += 32) {
      const int key = min(k0 + lane, seq.kv_len - 1);
      float s = plain_score(x, own, k + static_cast<size_t>(seq.kv_start + key) * p.ldkv + head * D, query, key,
                            head * D, D) *
                p.scale;
      if (k0 + lane >= seq.kv_len) s = -INFINITY;
      const float new_top = fmaxf(top, warp_max(s)), shrink = expf(top - new_top);
      float weight = expf(s - new_top);
      sum = sum * shrink + warp_sum(weight);
      top = new_top;
      weight *= plain_factor(p, row, head, key);
      for (float& value : o) value *= shrink;
      for (int j = 0; j < min(32, seq.kv_len - k0); ++j) {
        const float w = __shfl_sync(~0u, weight, j);
        const Elem* from = v + static_cast<size_t>(seq.kv_start + k0 + j) * p.ldkv + head * D;
        for (int i = 0; i < kPlainSlices; ++i)
          if (lane + 32 * i < D) o[i] = fmaf(w, to_f32(from[lane + 32 * i]), o[i]);
      }
    }
    if (p.lse != nullptr && lane == 0) p.lse[static_cast<size_t>(row) * p.heads + head] = top + logf(sum);
    for (int i = 0; i < kPlainSlices; ++i) {
      const int d = lane + 32 * i;
      if (d >= D) continue;
      const size_t at = static_cast<size_t>(row) * p.ldo + head * D + d;
      const float value = o[i] * out_scale / sum;
      if (p.out_scale != nullptr)
        static_cast<uint8_t*>(out)[at] = __nv_cvt_float_to_fp8(value, __NV_SATFINITE, __NV_E4M3);
      else
        static_cast<Elem*>(out)[at] = from_f32<Elem>(value);
    }
  }
}

template <class Elem, int D>
void launch_tensor(device::CudaStream& s, const AttentionArgs& a, const DistanceProblem<Elem>& x) {
  const AttentionProblem& p = x.p;
  const int parts = long_parts<kWarps>(p.first_query_only ? 1 : p.S);
  device::launch<attention_distance_kernel<Elem, D>>(
      s, tile_blocks<kWarps>(p, parts), dim3(kThreads), static_cast<const Elem*>(a.q.data),
      static_cast<const Elem*>(a.k.data), static_cast<const Elem*>(a.v.data), a.out.data, x, parts);
}

}  // namespace

void attention_distance_cuda(device::CudaStream& s, const AttentionArgs& a) {
  const int D = static_cast<int>(a.q.cols() / a.heads);
  AttentionProblem p = distance_problem(a);
  p.ldq = static_cast<unsigned>(a.q.ld());
  p.ldkv = static_cast<unsigned>(a.k.ld());
  p.ldo = static_cast<unsigned>(a.out.ld());
  p.out_scale = a.out_scale.as<float>();
  bool tensor_cores =
      (a.q.dtype == tensor::DType::f16 || (a.q.dtype == tensor::DType::bf16 && s.info().bf16)) && (D == 32 || D == 64);
  for (const tensor::TensorView& v : {a.q, a.k, a.v, a.out, a.distance_queries, a.distance_keys})
    tensor_cores = tensor_cores && (!v || rows_aligned16(v));
  dispatch_elem(a.q.dtype, [&](auto tag) {
    using Elem = typename decltype(tag)::type;
    const DistanceProblem<Elem> x{p, distance_table<Elem>(a.distance_queries), distance_table<Elem>(a.distance_keys)};
    BRIM_CHECK(p.out_scale == nullptr || p.drop.threshold == 0, "attention: fp8 output with a dropout of {}",
               a.dropout.probability);
    if constexpr (!std::is_same_v<Elem, float>) {
      if (tensor_cores && D == 64) return launch_tensor<Elem, 64>(s, a, x);
      if (tensor_cores) return launch_tensor<Elem, 32>(s, a, x);
    }
    BRIM_CHECK(D <= 32 * kPlainSlices, "attention: head size is {}, the CUDA kernels support up to {}", D,
               32 * kPlainSlices);
    const dim3 grid(static_cast<unsigned>(p.B * p.heads),
                    std::clamp(device::blocks_for(p.first_query_only ? 1 : p.S, kWarps), 1u, 64u));
    device::launch<attention_distance_plain_kernel<Elem>>(s, grid, dim3(kThreads), static_cast<const Elem*>(a.q.data),
                                                          static_cast<const Elem*>(a.k.data),
                                                          static_cast<const Elem*>(a.v.data), a.out.data, D, x);
  });
}

}  // namespace brim::ops
