// SPDX-License-Identifier: Apache-2.0
// embedding: y = dropout(LN(word[id] + position[p] + type[t])), the first op of every supported encoder family.
#pragma once
#include "ops/batch_view.h"
#include "ops/dropout.h"
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

struct EmbeddingArgs {
  BatchView batch;              // ids, positions
  TensorView word;              // [V,H] f32, f16 or bf16 (CPU: any of them; CUDA: activation type)
  TensorView position;          // [P,H]; empty for models with rotary embeddings
  TensorView type;              // [types,H]; empty for DistilBERT, which has none
  TensorView gamma, beta;       // [H]; beta may be empty
  TensorView y;                 // [T,H]
  TensorView sum;               // [T,H] before the norm, kept in training; else empty
  TensorView mean, rstd;        // [T] f32 in training
  TensorView y_fp8, fp8_scale;  // as in layer_norm
  float eps = 1e-12f;
  Dropout dropout;  // after the norm

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v :
         {batch.ids, batch.positions, word, position, type, gamma, beta, y, sum, mean, rstd, y_fp8, fp8_scale})
      f(v);
  }
};
void embedding(device::Stream& stream, const EmbeddingArgs& args);
Work embedding_work(const EmbeddingArgs& args);

// Gradient of the tables from d_sum [T,H] (after layer_norm_grad). Rows are added in a fixed order, tokens sorted by
// id, so the same batch gives the same bits.
struct EmbeddingGradArgs {
  BatchView batch;
  TensorView d_sum;                       // [T,H]
  TensorView sorted;                      // [T] i32: token rows sorted by (id, row), computed by the packer
  TensorView sorted_positions;            // [T] i32: token rows sorted by (position, row)
  TensorView d_word, d_position, d_type;  // f32, accumulated; the last two may be empty
  TensorView scratch;                     // u8[embedding_grad_scratch_bytes]
  int64_t padding_id = -1;                // its row gets no gradient, like padding_idx in PyTorch; -1: none
  int64_t position_padding_id = -1;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v :
         {batch.ids, batch.positions, d_sum, sorted, sorted_positions, d_word, d_position, d_type, scratch})
      f(v);
  }
};
void embedding_grad(device::Stream& stream, const EmbeddingGradArgs& args);
int64_t embedding_grad_scratch_bytes(const device::Stream& stream, int64_t T, int64_t H, int64_t types);

}  // namespace brim::ops
