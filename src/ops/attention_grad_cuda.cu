// SPDX-License-Identifier: Apache-2.0
// Gradients of packed attention for sequences too long for one block, and for types or head sizes without tensor core
// support. d_q and (d_k, d_v) are two passes of the same form: 16 own rows per warp, held in registers, against
// chunks of 16 other rows; the second pass computes Sᵀ = K Qᵀ, so nothing is transposed, at the cost of seven products
// instead of five. A block has 64 own rows; the other side streams through two buffers in shared memory.
#include "ops/cuda/attention_distance.cuh"
#include "ops/cuda/attention_grad.cuh"
#include "ops/cuda/column_sums.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;
constexpr int kTileRows = 16 * kWarps;  // own rows per block, and other rows per buffer

template <class Elem, int D>
struct SharedRows {
  SharedAddress first, second;
  __device__ __forceinline__ KRow<D> wide(int which, int row, int t) const {
    return staged_k<D>(which == 0 ? first : second, row, t);
  }
  __device__ __forceinline__ VRow<D> deep(int which, int row, int g) const {
    return staged_v<D>(which == 0 ? first : second, row, g);
  }
};

template <class Elem, int D>
__device__ __forceinline__ void weigh_chunk(Accum<D>& o, const uint32_t (&a)[4], const VRow<D> (&v)[4]) {
#pragma unroll
  for (int j = 0; j < D / 8; ++j) {
    const uint32_t pick = (j & 1) != 0 ? 0x7632 : 0x5410;
    mma_16816<Elem>(o.c[j], a, __byte_perm(v[0].w[j / 2], v[1].w[j / 2], pick),
                    __byte_perm(v[2].w[j / 2], v[3].w[j / 2], pick));
  }
}

// Dropout mask of a query's probabilities in shared memory: one bit per key, 32 keys per word, computed once by all
// lanes with one hash per four keys (attention_grad of 128 tokens on an H200: 1,068 us instead of 1,359).
struct KeptWords {
  const uint32_t* words;
  int per_query, first_query, first_key;
  __device__ __forceinline__ bool at(int query, int key) const {
    const int k = key - first_key;
    return (words[(query - first_query) * per_query + k / 32] >> (k & 31) & 1) != 0;
  }
};
// Mask word of keys first .. first+31 of a query.
__device__ __forceinline__ uint32_t kept_word(const AttentionProblem& p, int row, int head, int first) {
  const uint64_t drop = drop_row(p, row, head);
  uint32_t word = 0;
#pragma unroll
  for (int quad = 0; quad < 8; ++quad) {
    const uint64_t bits = dropout_bits(p.drop.seed, p.drop.site, drop, static_cast<uint32_t>(first) / 4 + quad);
#pragma unroll
    for (int i = 0; i < 4; ++i)
      word |= static_cast<uint32_t>(dropout_keeps(bits, i, p.drop.threshold)) << (4 * quad + i);
  }
  return word;
}

template <class Elem, int D, bool kKeys, class Source, class Kept>
__device__ __forceinline__ void grad_chunk(GradTile<D>& tile, const Source& other, int c0, int left, const float* lse,
                                           const float* delta, const AttentionProblem& p, const Kept& kept, int own,
                                           int far, int head, int g, int t) {
  float s[2][4], dp[2][4];
  score_gradients<Elem, D, kKeys>(s, dp, tile, other, c0, left, lse, delta, p, kept, own, far, head, g, t);
  VRow<D> rows[4];
  uint32_t a[4];
#pragma unroll
  for (int i = 0; i < 4; ++i) a[i] = pack2<Elem>(dp[i >> 1][2 * (i & 1)], dp[i >> 1][2 * (i & 1) + 1]);
#pragma unroll
  for (int r = 0; r < 4; ++r) rows[r] = other.deep(0, c0 + min(v_key(0, r, t), left), g);
  weigh_chunk<Elem, D>(tile.d_first, a, rows);
  if constexpr (kKeys) {
#pragma unroll
    for (int i = 0; i < 4; ++i) a[i] = pack2<Elem>(s[i >> 1][2 * (i & 1)], s[i >> 1][2 * (i & 1) + 1]);
#pragma unroll
    for (int r = 0; r < 4; ++r) rows[r] = other.deep(1, c0 + min(v_key(0, r, t), left), g);
    weigh_chunk<Elem, D>(tile.d_second, a, rows);
  }
}

// Stores own rows first + g and first + g + 8 of a tile to `to`, with rows relative to the start of the sequence.
template <class Elem, int D>
__device__ __forceinline__ void store_grad(const Accum<D>& o, float factor, Elem* to, unsigned ld, int first, int rows,
                                           int g, int t) {
#pragma unroll
  for (int h = 0; h < 2; ++h) {
    const int row = first + g + 8 * h;
    if (row >= rows) continue;
    float f[D / 4];
#pragma unroll
    for (int e = 0; e < 2; ++e)
#pragma unroll
      for (int j = 0; j < D / 8; ++j) f[D / 8 * e + j] = o.c[j][2 * h + e] * factor;
    auto* at = reinterpret_cast<uint4*>(to + static_cast<size_t>(row) * ld + D / 4 * t);
#pragma unroll
    for (int i = 0; i < D / 32; ++i)
      at[i] = make_uint4(pack2<Elem>(f[8 * i], f[8 * i + 1]), pack2<Elem>(f[8 * i + 2], f[8 * i + 3]),
                         pack2<Elem>(f[8 * i + 4], f[8 * i + 5]), pack2<Elem>(f[8 * i + 6], f[8 * i + 7]));
  }
}

// Sequences of up to kWholeTokens are handled elsewhere; longer ones come first in sorted order.
__device__ __forceinline__ bool is_whole(const AttentionSequence& seq) { return seq.kv_len <= kWholeTokens; }

// delta of the queries of longer sequences: one thread per query and head.
template <class Elem, int D>
__global__ void __launch_bounds__(kThreads) attention_delta_kernel(const GradProblem<Elem> x) {
  const AttentionProblem& p = x.p;
#pragma unroll 1
  for (int index = static_cast<int>(blockIdx.x); index < p.n_long; index += static_cast<int>(gridDim.x)) {
    const AttentionSequence seq = attention_sequence(p, index);
    if (is_whole(seq)) {
      if (p.order != nullptr) break;
      continue;
    }
    for (int i = static_cast<int>(blockIdx.y) * kThreads + threadIdx.x; i < seq.q_len * p.heads;
         i += static_cast<int>(gridDim.y) * kThreads) {
      const size_t row = static_cast<size_t>(seq.q_start + i / p.heads);
      const int head = i % p.heads;
      x.delta[row * p.heads + head] =
          row_delta<Elem, D>(x.out.data + row * x.out.ld + head * D, x.d_out.data + row * x.d_out.ld + head * D);
    }
  }
}

// One tile of 64 own rows of one head of one long sequence.
template <class Elem, int D, bool kKeys>
__device__ __forceinline__ void grad_tile(const GradProblem<Elem>& x, const AttentionSequence& seq, int head,
                                          int tile_index, uint8_t (*staged)[2][kTileRows * D * 2],
                                          float (*stats)[2][kTileRows], uint32_t (*words)[2], int warp, int g, int t) {
  const AttentionProblem& p = x.p;
  const auto head_of = [&](auto rows, int first) {
    return rows.data + static_cast<size_t>(first) * rows.ld + head * D;
  };
  const Elem *q = head_of(x.q, seq.q_start), *k = head_of(x.k, seq.kv_start), *v = head_of(x.v, seq.kv_start),
             *d_out = head_of(x.d_out, seq.q_start);
  const Elem *own_first = kKeys ? k : q, *own_second = kKeys ? v : d_out, *far_first = kKeys ? q : k,
             *far_second = kKeys ? d_out : v;
  const unsigned ld_own_first = kKeys ? x.k.ld : x.q.ld, ld_own_second = kKeys ? x.v.ld : x.d_out.ld,
                 ld_far_first = kKeys ? x.q.ld : x.k.ld, ld_far_second = kKeys ? x.d_out.ld : x.v.ld;
  const int own_len = kKeys ? seq.kv_len : seq.q_len, far_len = kKeys ? seq.q_len : seq.kv_len;
  const int first = tile_index * kTileRows + 16 * warp;
  // Windows are symmetric: the queries that see a key are the keys seen by a query in its position.
  const KeyRange seen = seen_keys(p.window, tile_index * kTileRows, kTileRows, far_len, kTileRows),
                 warp_seen = seen_keys(p.window, first, 16, far_len, 16);
  const int begin = seen.first / kTileRows, buffers = (seen.end + kTileRows - 1) / kTileRows;
  const bool active = first < own_len;
  const auto stage = [&](int b) {
    const int from = b * kTileRows, rows = min(kTileRows, far_len - from);
    stage_rows<Elem, D>(shared_address(staged[b & 1][0]), far_first + static_cast<size_t>(from) * ld_far_first,
                        ld_far_first, rows);
    stage_rows<Elem, D>(shared_address(staged[b & 1][1]), far_second + static_cast<size_t>(from) * ld_far_second,
                        ld_far_second, rows);
    copy_async_commit();
    if constexpr (kKeys)
      if (static_cast<int>(threadIdx.x) < rows) {
        const size_t at = static_cast<size_t>(seq.q_start + from + static_cast<int>(threadIdx.x)) * p.heads + head;
        stats[b & 1][0][threadIdx.x] = p.lse[at] * kLog2e;
        stats[b & 1][1][threadIdx.x] = x.delta[at];
      }
  };
  if (begin < buffers) stage(begin);
  GradTile<D> tile;
  clear(tile.d_first);
  clear(tile.d_second);
  float row_lse[2] = {0.0f, 0.0f}, row_deltas[2] = {0.0f, 0.0f};
  if (active) {
    load_q<Elem, D>(tile.first, own_first, ld_own_first, first, own_len - 1, g, t);
    load_q<Elem, D>(tile.second, own_second, ld_own_second, first, own_len - 1, g, t);
    if constexpr (!kKeys) {
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const size_t at = static_cast<size_t>(seq.q_start + min(first + g + 8 * h, own_len - 1)) * p.heads + head;
        row_lse[h] = p.lse[at] * kLog2e;
        row_deltas[h] = x.delta[at];
      }
    }
  }
#pragma unroll 1
  for (int b = begin; b < buffers; ++b) {
    if (b + 1 < buffers) {
      stage(b + 1);
      copy_async_wait<1>();
    } else {
      copy_async_wait<0>();
    }
    if (p.drop.threshold != 0) {  // each thread hashes half of a query's keys of this tile and buffer
      const int row = static_cast<int>(threadIdx.x) / 2, half = static_cast<int>(threadIdx.x) % 2,
                query = (kKeys ? b : tile_index) * kTileRows + row, key = (kKeys ? tile_index : b) * kTileRows;
      words[row][half] = kept_word(p, seq.q_start + query, head, key + 32 * half);
    }
    const KeptWords kept{words[0], 2, (kKeys ? b : tile_index) * kTileRows, (kKeys ? tile_index : b) * kTileRows};
    __syncthreads();
    if (active) {
      const int from = b * kTileRows, rows = min(kTileRows, far_len - from);
      const SharedRows<Elem, D> other{shared_address(staged[b & 1][0]), shared_address(staged[b & 1][1])};
      const float *lse = kKeys ? stats[b & 1][0] : row_lse, *delta = kKeys ? stats[b & 1][1] : row_deltas;
#pragma unroll 1
      for (int c = 0; c < rows; c += 16) {
        if (from + c < warp_seen.first || from + c >= warp_seen.end) continue;
        grad_chunk<Elem, D, kKeys>(tile, other, c, min(15, rows - 1 - c), lse, delta, p, kept, first, from + c, head, g,
                                   t);
      }
    }
    __syncthreads();  // before this buffer is refilled
  }
  if (!active) return;
  if constexpr (kKeys) {
    store_grad<Elem, D>(tile.d_first, p.scale, head_of(x.d_k, seq.kv_start), x.d_k.ld, first, own_len, g, t);
    store_grad<Elem, D>(tile.d_second, 1.0f, head_of(x.d_v, seq.kv_start), x.d_v.ld, first, own_len, g, t);
  } else {
    store_grad<Elem, D>(tile.d_first, p.scale, head_of(x.d_q, seq.q_start), x.d_q.ld, first, own_len, g, t);
  }
}

// Both passes over every tile, longest sequence first; stops at the first sequence that fits in one block.
template <class Elem, int D>
__global__ void __launch_bounds__(kThreads, 2) attention_grad_tile_kernel(const GradProblem<Elem> x, int tiles) {
  __shared__ __align__(128) uint8_t staged[2][2][kTileRows * D * 2];
  __shared__ float stats[2][2][kTileRows];
  __shared__ uint32_t words[kTileRows][2];
  const AttentionProblem& p = x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3;
  const int64_t each = static_cast<int64_t>(tiles) * 2 * p.heads, blocks = gridDim.x;  // each: maximum per sequence
#pragma unroll 1
  for (int64_t item = blockIdx.x; item < p.n_long * each; item += blocks) {
    const int index = static_cast<int>(item / each), head = static_cast<int>(item % p.heads),
              pass = static_cast<int>(item / p.heads % 2), tile = static_cast<int>(item % each / p.heads / 2);
    const AttentionSequence seq = attention_sequence(p, index);
    const bool whole = is_whole(seq);
    if (whole && p.order != nullptr) break;
    if (whole || tile * kTileRows >= seq.kv_len) {  // next sequence
      item += ((index + 1) * each - 1 - item) / blocks * blocks;
      continue;
    }
    if (pass == 0 && tile * kTileRows < seq.q_len)
      grad_tile<Elem, D, false>(x, seq, head, tile, staged, stats, words, warp, g, t);
    if (pass == 1) grad_tile<Elem, D, true>(x, seq, head, tile, staged, stats, words, warp, g, t);
  }
}

// ---- Plain kernel: any head size up to 32 * kSlices, fp32 arithmetic, one own row per warp ----
template <class Elem, int kSlices, bool kKeys>
__global__ void __launch_bounds__(kThreads) attention_grad_plain_kernel(const GradProblem<Elem> x, int D) {
  const AttentionProblem& p = x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int index = static_cast<int>(blockIdx.x) / p.heads, head = static_cast<int>(blockIdx.x) % p.heads;
  const AttentionSequence seq = attention_sequence(p, index);
  const int own_len = kKeys ? seq.kv_len : p.first_query_only ? 1 : seq.q_len, far_len = kKeys ? seq.q_len : seq.kv_len;
  const auto load = [&](auto rows, int row, float(&f)[kSlices]) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      f[i] =
          lane + 32 * i < D ? to_f32(rows.data[static_cast<size_t>(row) * rows.ld + head * D + lane + 32 * i]) : 0.0f;
  };
  const auto store = [&](auto rows, int row, const float(&f)[kSlices], float factor) {
#pragma unroll
    for (int i = 0; i < kSlices; ++i)
      if (lane + 32 * i < D)
        rows.data[static_cast<size_t>(row) * rows.ld + head * D + lane + 32 * i] = from_f32<Elem>(f[i] * factor);
  };
  const auto dot = [&](const float(&a)[kSlices], const float(&b)[kSlices]) {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kSlices; ++i) sum = fmaf(a[i], b[i], sum);
    return warp_sum(sum);
  };
  for (int row = static_cast<int>(blockIdx.y) * kWarps + warp; row < own_len;
       row += static_cast<int>(gridDim.y) * kWarps) {
    float own_first[kSlices], own_second[kSlices], d_first[kSlices], d_second[kSlices], out[kSlices];
    const int own = (kKeys ? seq.kv_start : seq.q_start) + row;
    load(kKeys ? x.k : x.q, own, own_first);
    load(kKeys ? x.v : x.d_out, own, own_second);
    float lse = 0.0f, delta = 0.0f;
    if constexpr (!kKeys) {
      load(x.out, own, out);
      lse = p.lse[static_cast<size_t>(own) * p.heads + head];
      delta = dot(out, own_second);
    }
#pragma unroll
    for (int i = 0; i < kSlices; ++i) d_first[i] = d_second[i] = 0.0f;
    const KeyRange seen = seen_keys(p.window, row, 1, far_len, 1);
    for (int j = seen.first; j < seen.end; ++j) {
      float far_first[kSlices], far_second[kSlices];
      const int far = (kKeys ? seq.q_start : seq.kv_start) + j;
      load(kKeys ? x.q : x.k, far, far_first);
      load(kKeys ? x.d_out : x.v, far, far_second);
      if constexpr (kKeys) {
        load(x.out, far, out);
        lse = p.lse[static_cast<size_t>(far) * p.heads + head];
        delta = dot(out, far_second);
      }
      float score = dot(own_first, far_first);
      if (p.bias != nullptr) score += bias_of(p, head, kKeys ? row - j : j - row);
      const float prob = expf(score * p.scale - lse);
      float factor = 1.0f;
      if (p.drop.threshold != 0) {
        const int query = kKeys ? far : own, key = kKeys ? row : j;
        const uint64_t bits =
            dropout_bits(p.drop.seed, p.drop.site, drop_row(p, query, head), static_cast<uint32_t>(key) / 4);
        factor = dropout_keeps(bits, key, p.drop.threshold) ? p.drop.scale : 0.0f;
      }
      const float d_score = prob * (dot(own_second, far_second) * factor - delta);
#pragma unroll
      for (int i = 0; i < kSlices; ++i) {
        d_first[i] = fmaf(d_score, far_first[i], d_first[i]);
        if constexpr (kKeys) d_second[i] = fmaf(prob * factor, far_second[i], d_second[i]);
      }
    }
    store(kKeys ? x.d_k : x.d_q, own, d_first, p.scale);
    if constexpr (kKeys) store(x.d_v, own, d_second, 1.0f);
  }
}

// ---- Launches ----
template <class Elem, int D>
void launch_tensor(device::CudaStream& s, const GradProblem<Elem>& x) {
  const AttentionProblem& p = x.p;
  if (p.n_long > 0 && p.S > kWholeTokens) {  // first, because it takes longest
    const auto cores = static_cast<unsigned>(s.info().sm_count), sequences = static_cast<unsigned>(p.n_long);
    device::launch<attention_delta_kernel<Elem, D>>(
        s,
        dim3(std::min(sequences, cores),
             std::clamp(device::blocks_for(static_cast<int64_t>(p.first_query_only ? 1 : p.S) * p.heads, kThreads), 1u,
                        64u)),
        dim3(kThreads), x);
    device::launch<attention_grad_tile_kernel<Elem, D>>(s, dim3(cores * 2), dim3(kThreads), x,
                                                        static_cast<int>(device::blocks_for(p.S, kTileRows)));
  }
  launch_whole_gradients<Elem, D>(s, x);
}
template <class Elem>
void launch_plain(device::CudaStream& s, const GradProblem<Elem>& x, int D) {
  BRIM_CHECK(D <= 128, "attention_grad: head size is {}, the CUDA kernels support up to 128", D);
  const dim3 grid(static_cast<unsigned>(x.p.B * x.p.heads), std::clamp(device::blocks_for(x.p.S, kWarps), 1u, 64u)),
      block(kThreads);
  const auto both = [&](auto slices) {
    constexpr int kSlices = decltype(slices)::value;
    device::launch<attention_grad_plain_kernel<Elem, kSlices, false>>(s, grid, block, x, D);
    device::launch<attention_grad_plain_kernel<Elem, kSlices, true>>(s, grid, block, x, D);
  };
  if (D <= 32)
    both(std::integral_constant<int, 1>{});
  else if (D <= 64)
    both(std::integral_constant<int, 2>{});
  else
    both(std::integral_constant<int, 4>{});
}

}  // namespace

void attention_grad_cuda(device::Stream& stream, const AttentionGradArgs& a) {
  cuda_op(stream, "attention_grad", [&](device::CudaStream& s) {
    if (a.distance_queries || a.distance_keys) return attention_distance_grad_cuda(s, a);
    const int D = static_cast<int>(a.q.cols() / a.heads);
    const AttentionProblem p = attention_problem(a);
    const int64_t bias_floats = a.bias ? kBiasParts * a.bias.elements() : 0;
    bool aligned = true;
    for (const tensor::TensorView& v : {a.q, a.k, a.v, a.out, a.d_out, a.d_q, a.d_k, a.d_v})
      aligned = aligned && rows_aligned16(v);
    const bool tensor_cores =
        (a.q.dtype == tensor::DType::f16 || (a.q.dtype == tensor::DType::bf16 && s.info().bf16)) &&
        (D == 32 || D == 64) && aligned;
    if ((tensor_cores && p.n_long > 0) || a.bias) {
      const int64_t wanted = (a.out.rows() * a.heads + bias_floats) * static_cast<int64_t>(sizeof(float)),
                    given = a.scratch ? a.scratch.bytes() : 0;
      BRIM_CHECK(given >= wanted, "attention_grad: scratch has {} bytes, needs {}", given, wanted);
    }
    dispatch_elem(a.q.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      const auto in = [](const tensor::TensorView& v) {
        return Rows<const Elem>{static_cast<const Elem*>(v.data), static_cast<unsigned>(v.ld())};
      };
      const auto out = [](const tensor::TensorView& v) {
        return Rows<Elem>{static_cast<Elem*>(v.data), static_cast<unsigned>(v.ld())};
      };
      auto* sums = static_cast<float*>(a.scratch.data);
      const GradProblem<Elem> x{p,           in(a.q),    in(a.k),    in(a.v),    in(a.out),
                                in(a.d_out), out(a.d_q), out(a.d_k), out(a.d_v), sums + bias_floats,
                                sums};
      if (a.bias) launch_bias_gradients<Elem>(s, x, D, tensor_cores);
      if constexpr (!std::is_same_v<Elem, float>) {
        if (tensor_cores && D == 64) return launch_tensor<Elem, 64>(s, x);
        if (tensor_cores) return launch_tensor<Elem, 32>(s, x);
      }
      launch_plain<Elem>(s, x, D);
    });
    if (a.bias)
      add_rows_cuda(s, static_cast<const float*>(a.scratch.data), kBiasParts, a.bias.elements(), 1,
                    a.d_bias.as<float>(), 0, false);
  });
}

}  // namespace brim::ops
