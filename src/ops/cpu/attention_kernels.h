// SPDX-License-Identifier: Apache-2.0
// CPU attention kernels: one head of one sequence, on one thread. attention_kernels.cc is compiled once per instruction
// set. Uses plain pointers only, because files of every instruction set include it.
#pragma once
#include "ops/cpu/row_kernels.h"

namespace brim::ops {
namespace cpu {

// Relative biases of one head: `at` is distance 0; distances are clamped to `reach`.
struct HeadBias {
  const float* at = nullptr;  // may be null
  int64_t reach = 0;
};

// Tables of one head with a row of D per distance (key position - query position); `reach` is the row of distance 0.
struct HeadDistances {
  const float *queries = nullptr, *keys = nullptr;  // either may be null; multiplied with keys and with queries
  int64_t ld_queries = 0, ld_keys = 0, reach = 0;
  float* scratch = nullptr;  // distance_scratch_floats, 64-byte aligned
  bool any() const { return queries != nullptr || keys != nullptr; }
};

// Queries of one head against the keys of their sequence, or the subset visible to them.
struct HeadArgs {
  // First row of the queries and of the sequence, columns of the head. f32, or bf16 with bf16_in.
  const void *q, *k, *v;
  void* out;   // f32, or bf16 with bf16_out
  float* lse;  // null if not needed
  int64_t ld_q, ld_k, ld_v, ld_out, ld_lse;
  int64_t queries, keys, D;        // keys >= 1
  int64_t window;                  // maximum distance between query and key; 0: unlimited
  int64_t first_query, first_key;  // first query's position among these keys; first key's position in its sequence
  float scale;                     // applied to the scores
  HeadBias bias;                   // only without a window
  HeadDistances distances;         // only without a window and a bias
  DropRows drop;                   // for the probabilities; row of query i: first_row + i * drop_step
  int64_t drop_step;
  bool bf16_in, bf16_out;
  const void *next_q, *next_k, *next_v;  // rows to prefetch for the next call, same strides; may be null
  int64_t next_rows;
  float* scratch;  // head_scratch_floats(keys, D), 64-byte aligned
};

struct HeadGradArgs {
  const float *q, *k, *v, *out, *d_out, *lse;
  float *d_q, *d_k, *d_v;
  int64_t ld_q, ld_k, ld_v, ld_out, ld_d_out, ld_lse, ld_d_q, ld_d_k, ld_d_v;
  int64_t queries, keys, D;
  int64_t window;  // the first query has the position of the first key
  float scale;
  HeadBias bias;
  float* d_bias;  // accumulated gradient of the head's biases, pointing at distance 0; null without a bias
  HeadDistances distances;
  float *d_distance_queries, *d_distance_keys;  // accumulated, rows as in the tables; null without
  int64_t ld_d_distances;
  DropRows drop;
  int64_t drop_step;
  float* scratch;  // head_grad_scratch_floats(keys, D)
};

// Range of keys visible to some query, starting at a multiple of `step`; positions are relative to the first key.
struct KeySpan {
  int64_t first, end;
};
static inline constexpr KeySpan seen_keys(int64_t window, int64_t first_query, int64_t queries, int64_t keys,
                                          int64_t step) {
  if (window == 0) return {0, keys};
  const int64_t first = first_query - window, end = first_query + queries + window;
  return {first > 0 ? first / step * step : 0, end < keys ? end : keys};
}

// Queries per block: calls that split a sequence do so at multiples of it.
constexpr int64_t kQueryBlock = 32;

struct AttentionKernels {
  const char* name;
  void (*attend)(const HeadArgs& args);  // scratch of head_scratch_floats, or head_scratch_floats_bf16 for bf16 views
  void (*attend_grad)(const HeadGradArgs& args);
};
// bf16 products. No dropout and no log-sum-exp, because training uses fp32.
struct Bf16AttentionKernels {
  const char* name;
  bool (*takes)(int64_t queries, int64_t keys, int64_t D);  // else the fp32 kernel is the one to use
  void (*begin)();                                          // call on the thread before calls of attend
  void (*attend)(const HeadArgs& args);
  void (*end)();  // call after them
};

// Prefetches row `row` of the next call into L2: a head's rows are a few cache lines each, far apart, and hardware
// prefetchers do not detect the pattern.
static inline __attribute__((always_inline)) void fetch_next(const HeadArgs& a, int64_t row) {
  if (row >= a.next_rows) return;
  const int64_t size = a.bf16_in ? 2 : 4, bytes = a.D * size;
  const char* q = static_cast<const char*>(a.next_q) + row * a.ld_q * size;
  const char* k = static_cast<const char*>(a.next_k) + row * a.ld_k * size;
  const char* v = static_cast<const char*>(a.next_v) + row * a.ld_v * size;
  for (int64_t i = 0; i < bytes; i += 64) {
    __builtin_prefetch(q + i, 0, 2);
    __builtin_prefetch(k + i, 0, 2);
    __builtin_prefetch(v + i, 0, 2);
  }
}

// Adds a query's biases to its scores, which are scaled later. Plain loops over neighbours, vectorised by the compiler
// for every instruction set.
static inline __attribute__((always_inline)) void add_bias(const HeadBias& bias, int64_t query, int64_t keys,
                                                           float scale, float* scores) {
  const float unscaled = 1.0f / scale;
  const int64_t left = query - bias.reach, right = query + bias.reach + 1;
  const int64_t begin = left < 0 ? 0 : left < keys ? left : keys, end = right < keys ? right : keys;
  const float before = bias.at[-bias.reach] * unscaled, after = bias.at[bias.reach] * unscaled;
  const float* near = bias.at - query;
  for (int64_t j = 0; j < begin; ++j) scores[j] += before;
  for (int64_t j = begin; j < end; ++j) scores[j] += near[j] * unscaled;
  for (int64_t j = end; j < keys; ++j) scores[j] += after;
}
// d_bias += gradients of a query's scores (with respect to the unscaled ones), key by key.
static inline __attribute__((always_inline)) void add_bias_gradient(const HeadBias& bias, int64_t query, int64_t keys,
                                                                    float scale, const float* d_scores, float* d_bias) {
  const float unscaled = 1.0f / scale;
  const int64_t left = query - bias.reach, right = query + bias.reach + 1;
  const int64_t begin = left < 0 ? 0 : left < keys ? left : keys, end = right < keys ? right : keys;
  float before = 0, after = 0;
  float* near = d_bias - query;
  for (int64_t j = 0; j < begin; ++j) before += d_scores[j];
  for (int64_t j = begin; j < end; ++j) near[j] += d_scores[j] * unscaled;
  for (int64_t j = end; j < keys; ++j) after += d_scores[j];
  d_bias[-bias.reach] += before * unscaled;
  d_bias[bias.reach] += after * unscaled;
}

// Large enough for every instruction set (vectors of up to 16 floats).
static inline constexpr int64_t round_up(int64_t n, int64_t multiple) {
  return (n + multiple - 1) / multiple * multiple;
}
static inline constexpr int64_t head_scratch_floats(int64_t keys, int64_t D) {
  const int64_t L = round_up(keys, 16), padded = round_up(D, 16);
  return D * L + keys * padded + kQueryBlock * L + 2 * kQueryBlock + padded + 16;
}
// For bf16 products: space to widen q, k, v and out, or for AMX tiles, whose keys come in steps of 32; bfmmla needs
// less.
static inline constexpr int64_t head_scratch_floats_bf16(int64_t keys, int64_t D) {
  const int64_t L = round_up(keys, 32), tiles = 3 * L * D / 2 + kQueryBlock * L + kQueryBlock * kQueryBlock;
  const int64_t widened = head_scratch_floats(keys, D) + 4 * keys * D + 64;
  return tiles > widened ? tiles : widened;
}
static inline constexpr int64_t head_grad_scratch_floats(int64_t keys, int64_t D) {
  const int64_t L = round_up(keys, 16), padded = round_up(D, 16);
  return 2 * D * L + 2 * kQueryBlock * L + 3 * keys * padded + 2 * kQueryBlock + padded + 16;
}
// Two transposed or padded tables, their products with a block of queries and with a block of keys.
static inline constexpr int64_t distance_scratch_floats(int64_t keys, int64_t D) {
  const int64_t padded = round_up(D, 16), rows = 2 * keys + 64;
  return 4 * rows * padded + kQueryBlock * (keys + kQueryBlock + 32) + kQueryBlock * (2 * kQueryBlock + 16) + 64;
}

const AttentionKernels& attention_kernels(device::Isa isa);
const Bf16AttentionKernels* bf16_attention_kernels(device::Isa isa);  // null if fp32 is equally fast

}  // namespace cpu

namespace generic {
extern const cpu::AttentionKernels kAttentionKernels;
}
namespace avx2 {
extern const cpu::AttentionKernels kAttentionKernels;
}
namespace avx512 {
extern const cpu::AttentionKernels kAttentionKernels;
}
namespace amx {
extern const cpu::Bf16AttentionKernels kAttentionKernels;
}
namespace neon {
extern const cpu::AttentionKernels kAttentionKernels;
}
namespace neon_mm {
extern const cpu::Bf16AttentionKernels kAttentionKernels;
}

}  // namespace brim::ops
