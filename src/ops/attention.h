// SPDX-License-Identifier: Apache-2.0
// Attention over packed sequences: each query attends to the keys of its own sequence, all of them or those within a
// window. The softmax is exact, in fp32. With first_query_only, one query per sequence is computed (last layer of a
// classifier); the query of an empty sequence gives zeros and a log-sum-exp of -infinity.
#pragma once
#include "ops/batch_view.h"
#include "ops/dropout.h"
#include "ops/linear.h"
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

struct AttentionArgs {
  // [Tq,H], strided rows (a part of qkv). CPU: f32, or bf16 if precision is bf16 or int8 (half the memory traffic: on
  // AMX, 256 tokens of BERT-base take 0.14 ms instead of 0.31).
  TensorView q;
  TensorView k, v;                // [T,H], strided rows, same type as q
  TensorView out;                 // [Tq,H]. CUDA: type of q; CPU: f32, or bf16 if q may be bf16
  BatchView batch;                // starts, order, n_long, S. Row of token i of sequence b: starts[b] - starts[0] + i
  bool first_query_only = false;  // Tq = B: query b is the first token of sequence b
  int64_t heads = 0;              // N; D = H / N
  int64_t window = 0;             // maximum distance between query and key; 0: unlimited
  // CUDA, scoring only: if positive, q and k are first rotated by their positions, as by rope (ops/rope.h); the
  // contents of q and k are unspecified afterwards.
  float rope_theta = 0;
  TensorView lse;        // [Tq,N] f32 log-sum-exp of the scaled scores; training only, else empty
  TensorView out_scale;  // fp8 output: [1] f32 on the device; else empty
  // [N,2R+1] f32, added to the scaled scores: column R + (key position - query position), with distances clamped to R
  // (ops/relative_bias.h); may be empty.
  TensorView bias;
  // [2R+1,H], row R + (key position - query position), R >= S - 1: vectors by distance (ops/distance_rows.h). A score
  // also gets the product of its query with distance_keys and that of its key with distance_queries; with n of the two,
  // scores are divided by sqrt((1 + n) D). CPU: f32; CUDA: type of q. Not with a bias, a window or rope_theta.
  TensorView distance_queries, distance_keys;
  TensorView scratch;                     // u8[attention_scratch_bytes]
  Precision precision = Precision::fp32;  // CPU matmul precision; CUDA uses the type of the views
  // For the probabilities, training only: row (first_row + query row) * N + head, column = position of the key.
  Dropout dropout;

  template <class F>
  void views(F&& f) const {  // clang-format off
    for (const TensorView& t : {q, k, v, out, batch.starts, batch.order, lse, out_scale, bias, distance_queries,
                                distance_keys, scratch})
      f(t);  // clang-format on
  }
};
void attention(device::Stream& stream, const AttentionArgs& args);
// Exact flops need the sum of squared lengths of the batch.
Work attention_work(int64_t T, int64_t Tq, int64_t H, double sum_query_key_pairs, tensor::DType dtype);
// Set `rotary` if rope_theta is used, `distances` if a table of distances is.
int64_t attention_scratch_bytes(const device::Stream& stream, int64_t T, int64_t S, int64_t H, int64_t heads,
                                Precision precision, int threads, bool rotary = false, bool distances = false);
// Factor of the scores before the softmax; `tables`: the number of tables of distances.
float attention_scale(int64_t head_size, int64_t tables);

struct AttentionGradArgs {
  TensorView q, k, v, out, lse, d_out;  // as in the forward pass
  TensorView d_q, d_k, d_v;             // [T,H] strided rows, overwritten
  BatchView batch;
  bool first_query_only = false;  // d_q has B rows; d_k, d_v have T
  int64_t heads = 0;
  int64_t window = 0;
  TensorView bias, d_bias;  // [N,2R+1] f32, d_bias overwritten; or both empty
  // As in the forward pass. Their gradients are f32 of the same shape, strided rows, overwritten.
  TensorView distance_queries, distance_keys, d_distance_queries, d_distance_keys;
  TensorView scratch;  // u8[attention_grad_scratch_bytes]
  Dropout dropout;

  template <class F>
  void views(F&& f) const {  // clang-format off
    for (const TensorView& t :
         {q, k, v, out, lse, d_out, d_q, d_k, d_v, batch.starts, batch.order, bias, d_bias, distance_queries,
          distance_keys, d_distance_queries, d_distance_keys, scratch})
      f(t);  // clang-format on
  }
};
void attention_grad(device::Stream& stream, const AttentionGradArgs& args);
// `bias_width` is 2R+1, or 0 without a bias; `distance_rows` the number of rows of the tables of distances, or 0.
int64_t attention_grad_scratch_bytes(const device::Stream& stream, int64_t T, int64_t S, int64_t H, int64_t heads,
                                     int threads, int64_t bias_width = 0, int64_t distance_rows = 0);

// The gradient of the bias is summed in this many parts on all devices and thread counts, so its bits do not depend on
// them.
constexpr int64_t kBiasParts = 32;
constexpr int64_t kMaxBiasWidth = 257;
// The same for the tables of distances on a CPU; on CUDA, see cuda/distance_parts.h.
constexpr int64_t kDistanceParts = 4;

}  // namespace brim::ops
