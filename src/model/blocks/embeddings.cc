// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/embeddings.h"

#include "ops/embedding.h"
#include "ops/rows.h"

namespace brim::model {

using ops::Dropout;
using tensor::TensorView;

void embed(const Pass& p, const EmbeddingParams& at, const Hidden& to, const Fp8Scale& fp8, EmbeddingSaved* saved) {
  const int64_t T = p.batch.T, E = p.s.embedding_size();
  const bool projects = at.project.w >= 0;
  ops::EmbeddingArgs args{.batch = p.batch, .word = p.param(at.word).plain};
  if (at.position >= 0) args.position = p.param(at.position).plain;
  if (p.s.types > 0) args.type = p.param(at.type).plain;
  args.gamma = p.param(at.norm.gamma).plain;
  args.beta = p.param(at.norm.beta).plain;
  args.y = projects ? p.activations(T, E) : to.x;
  if (saved != nullptr) {
    args.sum = saved->norm.sum = p.activations(T, E);
    args.mean = saved->norm.mean = p.f32({T});
    args.rstd = saved->norm.rstd = p.f32({T});
  }
  if (to.narrow && !projects) {
    args.y_fp8 = to.narrow;
    args.fp8_scale = to.scales ? to.scales : fp8.quantise;
  }
  args.eps = p.s.eps;
  args.dropout = p.dropout(p.s.hidden_dropout, kEmbeddingSite);
  embedding(p.e.stream, args);
  if (!projects) return;
  if (p.trains_fp8(at.project.w)) {
    saved->y = operand_of(p, {args.y}, at.project.w);
    multiply_fp8(p, saved->y, at.project, to.x);
    return;
  }
  if (saved != nullptr) saved->y = args.y;
  apply_linear(p, {args.y}, at.project, to.x);
  if (to.narrow) ops::convert(p.e.stream, {.x = to.x, .y = to.narrow, .scale = to.scales ? to.scales : fp8.quantise});
}

void embed_backward(const Pass& p, const EmbeddingParams& at, const EmbeddingSaved& saved, TensorView d_x) {
  if (at.project.w >= 0) {
    const TensorView d_y = p.activations(p.batch.T, p.s.embedding_size());
    linear_backward(p, saved.y, at.project, d_x, d_y);
    d_x = d_y;
  }
  const Dropout drop = p.dropout(p.s.hidden_dropout, kEmbeddingSite);
  if (drop.on()) ops::dropout_rows(p.e.stream, {.x = d_x, .y = d_x, .dropout = drop});  // dropout follows the norm
  const NormGrad d = norm_backward(p, at.norm, saved.norm, Dropout(), d_x);
  ops::EmbeddingGradArgs args{.batch = p.batch,
                              .d_sum = d.residual,
                              .sorted = p.training->sorted,
                              .sorted_positions = p.training->sorted_positions,
                              .d_word = p.param(at.word).grad};
  if (at.position >= 0) args.d_position = p.param(at.position).grad;
  if (p.s.types > 0) args.d_type = p.param(at.type).grad;
  args.padding_id = p.s.padding_id;
  if (p.s.position_offset > 0) args.position_padding_id = p.s.padding_id;  // positions start after the padding id
  args.scratch =
      p.e.memory.scratch(ops::embedding_grad_scratch_bytes(p.e.stream, p.batch.T, p.s.embedding_size(), p.s.types));
  embedding_grad(p.e.stream, args);
}

}  // namespace brim::model
