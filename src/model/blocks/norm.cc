// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/norm.h"

#include "ops/layer_norm.h"

namespace brim::model {

using tensor::TensorView;

Hidden norm(const Pass& p, NormParams at, const Hidden& x, const NormResult& result, const ops::Dropout& dropout,
            NormSaved* saved) {
  const int64_t rows = x.x.rows(), cols = x.x.cols();
  ops::LayerNormArgs args{.x = x.pending ? x.pending : x.x, .gamma = p.param(at.gamma).plain};
  args.beta = p.param(at.beta).plain;
  if (x.pending) args.residual = x.x;
  const bool keeps_sum = result.keep_sum || (saved != nullptr && !result.undone);
  if (x.pending && keeps_sum) args.sum = args.x;
  if (saved != nullptr && keeps_sum) {
    saved->sum = args.x;
    args.mean = saved->mean = p.f32({rows});
  }
  if (saved != nullptr) args.rstd = saved->rstd = p.f32({rows});
  Hidden y = result.to;
  if (!y.x) y.x = p.activations(rows, cols);
  if (saved != nullptr && !keeps_sum) saved->y = y.x;
  const Fp8Scale scored = result.reader >= 0 && p.training == nullptr ? p.param(result.reader).input : Fp8Scale();
  if (scored.quantise) {
    if (!y.narrow) y.narrow = p.narrow(rows, cols);
    args.y_fp8 = y.narrow;
    args.fp8_scale = scored.quantise;
  } else if (p.reads_codes(result.reader)) {
    if (!y.narrow) y.narrow = p.codes(rows, cols);
    if (!y.scales) y.scales = p.f32({rows});
    args.y_fp8 = y.narrow;
    args.fp8_scale = y.scales;
  } else {
    y.narrow = y.scales = {};
  }
  if (p.trains_fp8(result.reader)) {
    args.train_fp8 = room_for_copies(p, p.param(result.reader).fp8.x, rows, cols, {.columns = result.keeps_columns});
    y.narrow = args.train_fp8.rows;
    y.columns = args.train_fp8.columns;
  }
  args.y = y.x;
  args.eps = p.s.eps;
  args.dropout = dropout;
  layer_norm(p.e.stream, args);
  return y;
}

TensorView norm_again(const Pass& p, NormParams at, const NormSaved& saved) {
  const TensorView y = p.activations(saved.sum.rows(), saved.sum.cols());
  ops::LayerNormArgs args{.x = saved.sum, .gamma = p.param(at.gamma).plain, .beta = p.param(at.beta).plain, .y = y};
  args.eps = p.s.eps;
  layer_norm(p.e.stream, args);
  return y;
}

NormGrad norm_backward(const Pass& p, NormParams at, const NormSaved& saved, const ops::Dropout& dropout,
                       const TensorView& d_y, const TensorView& into, LinearParams product) {
  const int64_t rows = d_y.rows(), cols = d_y.cols();
  ops::LayerNormGradArgs args{.sum = saved.sum,
                              .mean = saved.mean,
                              .y = saved.y,
                              .rstd = saved.rstd,
                              .gamma = p.param(at.gamma).plain,
                              .d_y = d_y};
  if (saved.y) args.beta = p.param(at.beta).plain;
  args.d_sum = into ? into : p.activations(rows, cols);
  if (into) args.d_sum_write = ops::GradWrite::accumulate;
  const bool in_fp8 = p.trains_fp8(product.w);
  if (dropout.on() && (!in_fp8 || ops::layer_norm_grad_stores_d_x(p.e.stream, d_y.dtype, cols)))
    args.d_x = p.activations(rows, cols);
  args.d_gamma = p.param(at.gamma).grad;
  if (!args.d_gamma) args.d_gamma = p.f32({cols});  // a frozen norm: discarded
  args.d_beta = p.param(at.beta).grad;
  if (product.b >= 0) args.d_bias = p.param(product.b).grad;
  if (in_fp8) args.train_fp8 = room_for_copies(p, p.param(product.w).fp8.d_y, rows, cols);
  args.dropout = dropout;
  args.scratch = p.e.memory.scratch(ops::layer_norm_grad_scratch_bytes(p.e.stream, rows, cols, p.e.threads));
  layer_norm_grad(p.e.stream, args);
  Operand of_x = dropout.on() ? args.d_x : args.d_sum;
  of_x.rows = args.train_fp8.rows;
  of_x.columns = args.train_fp8.columns;
  return {args.d_sum, of_x};
}

}  // namespace brim::model
