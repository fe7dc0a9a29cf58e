// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/attention.h"

#include <algorithm>

#include "ops/attention.h"
#include "ops/relative_bias.h"
#include "ops/rope.h"
#include "ops/rows.h"

namespace brim::model {

using ops::GradWrite;
using tensor::TensorView;

namespace {

// Queries, keys and values, in either layout.
struct QkvParts {
  TensorView q, k, v;
};
QkvParts parts_of(const AttentionSaved& saved, int64_t H) {
  if (saved.q) return {saved.q, saved.qkv.slice_cols(0, H), saved.qkv.slice_cols(H, 2 * H)};
  return {saved.qkv.slice_cols(0, H), saved.qkv.slice_cols(H, 2 * H), saved.qkv.slice_cols(2 * H, 3 * H)};
}

// Applies rotary positions to queries and keys; a first token has position 0 and is unchanged.
void turn(const Pass& p, const AttentionParams& at, const AttentionSaved& made, bool back) {
  if (at.theta == 0) return;
  ops::RopeArgs args{.x = made.qkv.slice_cols(0, made.q ? p.s.hidden : 2 * p.s.hidden), .positions = p.batch.positions};
  args.head_size = p.s.head_size();
  args.theta = at.theta;
  args.back = back;
  rope(p.e.stream, args);
}

// Whether the matrix is multiplied in two parts; inference stores that of the last layer only so.
bool in_parts(const Pass& p, int64_t l, bool first_tokens) {
  return first_tokens || !(p.training != nullptr || l + 1 < p.s.layers || p.s.mean_pooling);
}

void project_first_tokens(const Pass& p, const AttentionParams& at, const Hidden& x, AttentionSaved& made) {
  const int64_t H = p.s.hidden, B = p.batch.B;
  const Param& w = p.param(at.qkv.w);
  made.first = gather_first_tokens(p, x.x);
  made.qkv = p.between(p.batch.T, 2 * H);
  Hidden first{made.first};
  if (p.trains_fp8(at.qkv.w)) {
    made.input = operand_of(p, x, at.qkv.w, {.columns = made.keep_input});
    multiply_fp8(p, made.input, at.qkv, made.qkv, H, 3 * H);
    made.first_input = operand_of(p, first, at.qkv.w);
    made.q = p.between(B, H);
    multiply_fp8(p, made.first_input, at.qkv, made.q, 0, H);
    return;
  }
  if (x.narrow && !x.scales) {
    first.narrow = p.narrow(B, H);
    ops::convert(p.e.stream, {.x = first.x, .y = first.narrow, .scale = w.input.quantise});
  }
  apply_linear(p, input_of(x, w), at.qkv, H, 3 * H, made.qkv);
  made.q = p.between(B, H);
  apply_linear(p, input_of(first, w), at.qkv, 0, H, made.q);
}

void project_all_tokens(const Pass& p, const AttentionParams& at, int64_t l, const Hidden& x, AttentionSaved& made) {
  const int64_t H = p.s.hidden;
  const Param& w = p.param(at.qkv.w);
  made.qkv = p.between(p.batch.T, 3 * H);
  if (p.trains_fp8(at.qkv.w)) {
    made.input = operand_of(p, x, at.qkv.w, {.columns = made.keep_input});
    multiply_fp8(p, made.input, at.qkv, made.qkv);
    return;
  }
  const Input input = input_of(x, w);
  if (!in_parts(p, l, false)) {
    apply_linear(p, input, at.qkv, made.qkv);
    return;
  }
  apply_linear(p, input, at.qkv, 0, H, made.qkv.slice_cols(0, H));
  apply_linear(p, input, at.qkv, H, 3 * H, made.qkv.slice_cols(H, 3 * H));
}

}  // namespace

TensorView gather_first_tokens(const Pass& p, const TensorView& x) {
  const TensorView first = p.activations(p.batch.B, p.s.hidden);
  ops::gather_rows(p.e.stream, {.x = x, .rows = p.batch.starts.slice_rows(0, p.batch.B), .y = first});
  return first;
}

Hidden attend(const Pass& p, const AttentionParams& at, int64_t l, const Hidden& x, const TensorView& residual,
              bool first_tokens, AttentionSaved* saved) {
  const int64_t H = p.s.hidden;
  AttentionSaved made;
  if (saved != nullptr) made.keep_input = saved->keep_input;
  if (first_tokens)
    project_first_tokens(p, at, x, made);
  else
    project_all_tokens(p, at, l, x, made);
  // Inference on a GPU applies rotary positions inside the attention kernel; the backward pass needs them applied.
  const bool turns_inside = saved == nullptr && !p.on_cpu() && at.theta > 0;
  if (!turns_inside) turn(p, at, made, false);
  const QkvParts parts = parts_of(made, H);
  const int64_t rows = parts.q.rows();
  const Fp8Scale& scale = p.param(at.out.w).input;  // empty in training
  made.context = scale.quantise ? p.narrow(rows, H) : p.between(rows, H);
  if (saved != nullptr) made.lse = p.f32({rows, p.s.heads});
  if (at.relative >= 0) {  // a few thousand numbers: recomputing per layer is cheaper than keeping them
    made.bias = p.f32({p.s.heads, ops::kRelativeWidth});
    ops::relative_bias(p.e.stream, {.table = p.param(at.relative).plain, .bias = made.bias});
  }
  const bool by_distance = at.distances.table >= 0;
  if (by_distance)
    made.distances.tables =
        distance_tables(p, at.distances, l, in_parts(p, l, first_tokens), saved != nullptr ? &made.distances : nullptr);
  ops::AttentionArgs args{.q = parts.q, .k = parts.k, .v = parts.v, .out = made.context, .batch = p.batch};
  args.out_scale = scale.quantise;
  args.first_query_only = first_tokens;
  args.heads = p.s.heads;
  args.window = at.window;
  if (turns_inside) args.rope_theta = at.theta;
  args.lse = made.lse;
  args.bias = made.bias;
  args.distance_queries = made.distances.tables.queries;
  args.distance_keys = made.distances.tables.keys;
  args.precision = p.e.precision;
  args.dropout = p.layer_dropout(l, DropoutSite::probabilities);
  args.scratch = p.e.memory.scratch(attention_scratch_bytes(p.e.stream, p.batch.T, p.batch.S, H, p.s.heads,
                                                            p.e.precision, p.e.threads, turns_inside, by_distance));
  attention(p.e.stream, args);
  const bool in_fp8 = p.trains_fp8(at.out.w);
  if (in_fp8) made.context_input = operand_of(p, {made.context}, at.out.w);
  if (saved != nullptr) *saved = made;
  const bool apart = residual.data != x.x.data;
  const TensorView sum_with = !first_tokens ? residual : apart ? gather_first_tokens(p, residual) : made.first;
  if (in_fp8) return add_product_fp8(p, made.context_input, at.out, sum_with);
  return add_product(p, {made.context, scale.dequantise}, at.out, sum_with, at.keeps_sum);
}

TensorView attend_backward(const Pass& p, const AttentionParams& at, int64_t l, const TensorView& x, bool first_tokens,
                           const AttentionSaved& saved, const NormGrad& d, bool normed) {
  const int64_t H = p.s.hidden, T = p.batch.T, B = p.batch.B;
  const TensorView d_context = p.activations(saved.context.rows(), H);
  const auto read = [](const Operand& copies, const TensorView& values) { return copies.columns ? copies : values; };
  linear_backward(p, read(saved.context_input, saved.context), {.w = at.out.w}, d.x, d_context);
  const QkvParts parts = parts_of(saved, H);
  AttentionSaved grad;
  grad.qkv = p.activations(T, first_tokens ? 2 * H : 3 * H);
  if (first_tokens) grad.q = p.activations(B, H);
  const QkvParts d_parts = parts_of(grad, H);
  ops::AttentionGradArgs args{.q = parts.q,
                              .k = parts.k,
                              .v = parts.v,
                              .out = saved.context,
                              .lse = saved.lse,
                              .d_out = d_context,
                              .d_q = d_parts.q,
                              .d_k = d_parts.k,
                              .d_v = d_parts.v,
                              .batch = p.batch};
  args.first_query_only = first_tokens;
  args.heads = p.s.heads;
  args.window = at.window;
  args.dropout = p.layer_dropout(l, DropoutSite::probabilities);
  const int64_t bias_width = saved.bias ? saved.bias.cols() : 0;
  if (saved.bias) {
    args.bias = saved.bias;
    args.d_bias = p.f32({p.s.heads, bias_width});
  }
  const DistanceTables& tables = saved.distances.tables;
  const bool by_distance = at.distances.table >= 0;
  const DistanceTables d_tables = by_distance ? allocate_gradients(p, tables) : DistanceTables();
  args.distance_queries = tables.queries;
  args.distance_keys = tables.keys;
  args.d_distance_queries = d_tables.queries;
  args.d_distance_keys = d_tables.keys;
  args.scratch = p.e.memory.scratch(
      ops::attention_grad_scratch_bytes(p.e.stream, T, p.batch.S, H, p.s.heads, p.e.threads, bias_width,
                                        by_distance ? std::max(tables.queries.rows(), tables.keys.rows()) : 0));
  attention_grad(p.e.stream, args);
  if (by_distance) distance_backward(p, at.distances, l, saved.distances, d_tables);
  if (saved.bias && p.param(at.relative).grad)
    ops::relative_bias_grad(p.e.stream, {.d_bias = args.d_bias, .d_table = p.param(at.relative).grad});
  turn(p, at, grad, true);
  const TensorView to = normed ? p.activations(d.residual.rows(), H) : d.residual;
  const GradWrite write = normed ? GradWrite::overwrite : GradWrite::accumulate;
  if (!first_tokens) {
    linear_backward(p, read(saved.input, x), at.qkv, grad.qkv, to, write);
    return to;
  }
  const TensorView d_x = p.activations(T, H);
  linear_backward(p, read(saved.input, x), at.qkv, H, 3 * H, grad.qkv, d_x, GradWrite::overwrite);
  linear_backward(p, read(saved.first_input, saved.first), at.qkv, 0, H, grad.q, to, write);
  ops::scatter_rows(p.e.stream, {.d_y = to, .rows = p.batch.starts.slice_rows(0, B), .d_x = d_x});
  return d_x;
}

}  // namespace brim::model
