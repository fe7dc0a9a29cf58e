// SPDX-License-Identifier: Apache-2.0
// Gradient of the relative-position bias of attention: a separate pass that recomputes dS, so that only models with a
// bias pay for it.
#include "ops/cuda/attention_grad.cuh"

namespace brim::ops {
namespace {

constexpr int kWarps = 4, kThreads = 32 * kWarps;

// Rows of the other operand in device memory: first is K or Q, second V or d_out.
template <class Elem, int D>
struct GlobalRows {
  const Elem *first, *second;
  unsigned ld_first, ld_second;
  __device__ __forceinline__ KRow<D> wide(int which, int row, int t) const {
    return which == 0 ? load_k<Elem, D>(first, ld_first, row, t) : load_k<Elem, D>(second, ld_second, row, t);
  }
  __device__ __forceinline__ VRow<D> deep(int which, int row, int g) const {
    return which == 0 ? load_v<Elem, D>(first, ld_first, row, g) : load_v<Elem, D>(second, ld_second, row, g);
  }
};

// Dropout mask of a query's probabilities by key position, hashed for each access.
struct HashedKept {
  const AttentionProblem& p;
  int q_start, head;
  __device__ __forceinline__ bool at(int query, int key) const {
    const uint64_t bits =
        dropout_bits(p.drop.seed, p.drop.site, drop_row(p, q_start + query, head), static_cast<uint32_t>(key) / 4);
    return dropout_keeps(bits, key, p.drop.threshold);
  }
};

// ---- Gradient of the bias: sums of dS by distance. A warp processes 64 queries of one head of one sequence at a time
// with its own table; the four tables of a block are added in order, then those of the blocks, so the result does not
// depend on timing ----
constexpr int kBiasQueries = 64;

// Adds the lanes' values to a warp's table. The distances of neighbouring lanes differ by one, so conflicts occur only
// among those beyond the table.
__device__ __forceinline__ void add_by_distance(float* table, int reach, int distance, int lowest, float value,
                                                int lane) {
  if (distance > -reach && distance < reach) table[reach + distance] += value;
  if (lowest <= -reach) {  // uniform across the warp
    const float beyond = warp_sum(distance <= -reach ? value : 0.0f);
    if (lane == 0) table[0] += beyond;
  }
  if (lowest + 31 >= reach) {
    const float beyond = warp_sum(distance >= reach ? value : 0.0f);
    if (lane == 0) table[2 * reach] += beyond;
  }
  __syncwarp();  // the next query maps distances to other lanes
}

// Calls fn(seq, first query, queries) for the warp's share of the batch, then sums the tables of the block.
template <class Elem, class Fn>
__device__ __forceinline__ void sum_by_distance(const GradProblem<Elem>& x, float (*tables)[kMaxBiasWidth], int head,
                                                int warp, Fn&& fn) {
  const AttentionProblem& p = x.p;
  const int width = 2 * p.reach + 1, pieces = p.first_query_only ? 1 : (p.S + kBiasQueries - 1) / kBiasQueries;
  for (int i = threadIdx.x; i < kWarps * width; i += kThreads) tables[i / width][i % width] = 0.0f;
  __syncthreads();
#pragma unroll 1
  for (int64_t item = static_cast<int64_t>(blockIdx.y) * kWarps + warp; item < static_cast<int64_t>(p.B) * pieces;
       item += static_cast<int64_t>(gridDim.y) * kWarps) {
    const AttentionSequence seq = attention_sequence(p, static_cast<int>(item / pieces));
    const int first = static_cast<int>(item % pieces) * kBiasQueries;
    if (first < seq.q_len) fn(seq, first, min(seq.q_len, first + kBiasQueries));
  }
  __syncthreads();
  float* sums = x.bias_sums + (static_cast<size_t>(blockIdx.y) * p.heads + head) * width;
  for (int i = threadIdx.x; i < width; i += kThreads) {
    float sum = 0.0f;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) sum += tables[w][i];
    sums[i] = sum;
  }
}

template <class Elem, int D>
__global__ void __launch_bounds__(kThreads, 3) attention_bias_grad_kernel(const GradProblem<Elem> x) {
  __shared__ float tables[kWarps][kMaxBiasWidth], squares[kWarps][16][17];
  const AttentionProblem& p = x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane >> 2, t = lane & 3, head = blockIdx.x;
  float(*square)[17] = squares[warp];
  sum_by_distance(x, tables, head, warp, [&](const AttentionSequence& seq, int begin, int end) {
    const auto head_of = [&](auto rows, int first) {
      return rows.data + static_cast<size_t>(first) * rows.ld + head * D;
    };
    const Elem *q = head_of(x.q, seq.q_start), *d_out = head_of(x.d_out, seq.q_start),
               *out = head_of(x.out, seq.q_start);
    const GlobalRows<Elem, D> keys{head_of(x.k, seq.kv_start), head_of(x.v, seq.kv_start), x.k.ld, x.v.ld};
    GradTile<D> tile;
#pragma unroll 1
    for (int first = begin; first < end; first += 16) {
      load_q<Elem, D>(tile.first, q, x.q.ld, first, seq.q_len - 1, g, t);
      load_q<Elem, D>(tile.second, d_out, x.d_out.ld, first, seq.q_len - 1, g, t);
      float lse[2], delta[2];
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int row = min(first + g + 8 * h, seq.q_len - 1);
        lse[h] = p.lse[static_cast<size_t>(seq.q_start + row) * p.heads + head] * kLog2e;
        delta[h] = row_delta<Elem, D>(out + static_cast<size_t>(row) * x.out.ld,
                                      d_out + static_cast<size_t>(row) * x.d_out.ld);
      }
#pragma unroll 1
      for (int c = 0; c < seq.kv_len; c += 16) {
        float s[2][4], ds[2][4];
        score_gradients<Elem, D, false>(s, ds, tile, keys, c, min(15, seq.kv_len - 1 - c), lse, delta, p,
                                        HashedKept{p, seq.q_start, head}, first, c, head, g, t);
#pragma unroll
        for (int j = 0; j < 2; ++j)
#pragma unroll
          for (int e = 0; e < 4; ++e) {
            const int row = g + 8 * (e >> 1);
            square[row][8 * j + 2 * t + (e & 1)] = first + row < end ? ds[j][e] : 0.0f;
          }
        __syncwarp();
        // One diagonal per lane: keys are lane - 15 after their queries.
        float sum = 0.0f;
#pragma unroll
        for (int row = 0; row < 16; ++row) {
          const int column = row + lane - 15;
          if (column >= 0 && column < 16) sum += square[row][column];
        }
        __syncwarp();
        add_by_distance(tables[warp], p.reach, c - first + lane - 15, c - first - 15, sum, lane);
      }
    }
  });
}

// Any head size: one key per lane, fp32 arithmetic.
template <class Elem>
__global__ void __launch_bounds__(kThreads) attention_bias_grad_plain_kernel(const GradProblem<Elem> x, int D) {
  __shared__ float tables[kWarps][kMaxBiasWidth];
  const AttentionProblem& p = x.p;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, head = blockIdx.x;
  sum_by_distance(x, tables, head, warp, [&](const AttentionSequence& seq, int begin, int end) {
    const auto row_of = [&](auto rows, int row) { return rows.data + static_cast<size_t>(row) * rows.ld + head * D; };
    for (int query = begin; query < end; ++query) {
      const int row = seq.q_start + query;
      const Elem *q = row_of(x.q, row), *out = row_of(x.out, row), *d_out = row_of(x.d_out, row);
      float delta = 0.0f;
      for (int d = lane; d < D; d += 32) delta = fmaf(to_f32(out[d]), to_f32(d_out[d]), delta);
      delta = warp_sum(delta);
      const float lse = p.lse[static_cast<size_t>(row) * p.heads + head];
      for (int k0 = 0; k0 < seq.kv_len; k0 += 32) {
        const int key = min(k0 + lane, seq.kv_len - 1);
        const Elem *k = row_of(x.k, seq.kv_start + key), *v = row_of(x.v, seq.kv_start + key);
        float score = 0.0f, dp = 0.0f, factor = 1.0f;
        for (int d = 0; d < D; ++d) {
          score = fmaf(to_f32(q[d]), to_f32(k[d]), score);
          dp = fmaf(to_f32(d_out[d]), to_f32(v[d]), dp);
        }
        const float prob = expf((score + bias_of(p, head, key - query)) * p.scale - lse);
        if (p.drop.threshold != 0) {
          const uint64_t bits =
              dropout_bits(p.drop.seed, p.drop.site, drop_row(p, row, head), static_cast<uint32_t>(key) / 4);
          factor = dropout_keeps(bits, key, p.drop.threshold) ? p.drop.scale : 0.0f;
        }
        add_by_distance(tables[warp], p.reach, k0 + lane - query, k0 - query,
                        k0 + lane < seq.kv_len ? prob * (dp * factor - delta) : 0.0f, lane);
      }
    }
  });
}

}  // namespace

template <class Elem>
void launch_bias_gradients(device::CudaStream& s, const GradProblem<Elem>& x, int D, bool tensor_cores) {
  const dim3 grid(static_cast<unsigned>(x.p.heads), static_cast<unsigned>(kBiasParts)), block(kThreads);
  if constexpr (!std::is_same_v<Elem, float>) {
    if (tensor_cores && D == 64) return device::launch<attention_bias_grad_kernel<Elem, 64>>(s, grid, block, x);
    if (tensor_cores) return device::launch<attention_bias_grad_kernel<Elem, 32>>(s, grid, block, x);
  }
  device::launch<attention_bias_grad_plain_kernel<Elem>>(s, grid, block, x, D);
}

template void launch_bias_gradients(device::CudaStream&, const GradProblem<float>&, int, bool);
template void launch_bias_gradients(device::CudaStream&, const GradProblem<__half>&, int, bool);
template void launch_bias_gradients(device::CudaStream&, const GradProblem<__nv_bfloat16>&, int, bool);

}  // namespace brim::ops
