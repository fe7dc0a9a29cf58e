// SPDX-License-Identifier: Apache-2.0
// The CPU's attention kernels: one head of one sequence, on one thread. attention_kernels.cc is compiled once per
// instruction set. Plain pointers only: files of every instruction set include it.
#pragma once
#include "ops/cpu/row_kernels.h"

namespace brim {
namespace cpu {

// Some queries of one head against all keys of their sequence.
struct HeadArgs {
  const float *q, *k, *v;        // first row of the queries; of the sequence; columns of the head
  float* out;
  float* lse;                    // null when not kept
  int64_t ld_q, ld_k, ld_v, ld_out, ld_lse;
  int64_t queries, keys, D;      // keys >= 1
  float scale;                   // of the scores
  DropRows drop;                 // of the probabilities; row of query i: first_row + i * drop_step
  int64_t drop_step;
  float* scratch;                // head_scratch_floats(keys, D), 64-byte aligned
};

struct HeadGradArgs {
  const float *q, *k, *v, *out, *d_out, *lse;
  float *d_q, *d_k, *d_v;
  int64_t ld_q, ld_k, ld_v, ld_out, ld_d_out, ld_lse, ld_d_q, ld_d_k, ld_d_v;
  int64_t queries, keys, D;
  float scale;
  DropRows drop;
  int64_t drop_step;
  float* scratch;                // head_grad_scratch_floats(keys, D)
};

// Queries taken at once: calls that split a sequence do so at multiples of it.
constexpr int64_t kQueryBlock = 32;

struct AttentionKernels {
  const char* name;
  void (*attend)(const HeadArgs& args);
  void (*attend_grad)(const HeadGradArgs& args);
};

// Enough for every instruction set (vectors of up to 16 floats).
static inline constexpr int64_t round_up(int64_t n, int64_t multiple) { return (n + multiple - 1) / multiple * multiple; }
static inline constexpr int64_t head_scratch_floats(int64_t keys, int64_t D) {
  const int64_t L = round_up(keys, 16), padded = round_up(D, 16);
  return D * L + keys * padded + kQueryBlock * L + 2 * kQueryBlock + padded + 16;
}
static inline constexpr int64_t head_grad_scratch_floats(int64_t keys, int64_t D) {
  const int64_t L = round_up(keys, 16), padded = round_up(D, 16);
  return 2 * D * L + 2 * kQueryBlock * L + 3 * keys * padded + 2 * kQueryBlock + padded + 16;
}

const AttentionKernels& attention_kernels(Isa isa);

}  // namespace cpu

namespace generic { extern const cpu::AttentionKernels kAttentionKernels; }
namespace avx2 { extern const cpu::AttentionKernels kAttentionKernels; }
namespace avx512 { extern const cpu::AttentionKernels kAttentionKernels; }
namespace neon { extern const cpu::AttentionKernels kAttentionKernels; }

}  // namespace brim
