// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/linear.h"

namespace brim::model {

using tensor::TensorView;

void apply_linear(const Pass& p, const Input& x, const ops::LinearWeight& w, const TensorView& bias,
                  const TensorView& y, const LinearOptions& options) {
  ops::LinearArgs args{.x = x.x, .w = w, .bias = bias, .residual = options.residual, .y = y};
  args.x_scale = x.dequantise;
  args.y_scale = options.quantise;
  args.activation = options.activation;
  args.scratch = p.e.memory.scratch(linear_scratch_bytes(p.e.stream, x.x.rows(), w.N, w.K, w.precision, p.e.threads));
  linear(p.e.stream, args);
}

Hidden add_product(const Pass& p, const Input& x, LinearPlaces at, const TensorView& residual, bool keeps_sum) {
  const ops::LinearWeight& w = p.param(at.w).matrix;
  const bool in_product = p.training == nullptr && (p.on_cpu() || keeps_sum);
  const TensorView product = p.activations(x.x.rows(), w.N);
  apply_linear(p, x, w, p.param(at.b).plain, product, {.residual = in_product ? residual : TensorView()});
  return in_product ? Hidden{product} : Hidden{residual, product};
}

namespace {

void run_linear_grad(const Pass& p, ops::LinearGradArgs& args) {
  args.scratch = p.e.memory.scratch(linear_grad_scratch_bytes(p.e.stream, args.x.rows(), args.w_plain.rows(),
                                                              args.x.cols(), args.precision, p.e.threads));
  linear_grad(p.e.stream, args);
}

}  // namespace

void linear_backward(const Pass& p, const TensorView& x, LinearPlaces at, int64_t begin, int64_t end,
                     const TensorView& d_y, const TensorView& d_x, ops::GradWrite d_x_write) {
  const Param& w = p.param(at.w);
  ops::LinearGradArgs args;
  args.x = x;
  args.w_plain = w.plain.slice_rows(begin, end);
  args.d_y = d_y;
  args.d_x = d_x;
  args.d_w = w.grad.slice_rows(begin, end);
  if (at.b >= 0 && p.param(at.b).grad) args.d_bias = p.param(at.b).grad.slice_rows(begin, end);
  args.precision = w.matrix.precision;
  args.d_x_write = d_x_write;
  args.d_w_write = ops::GradWrite::accumulate;
  run_linear_grad(p, args);
}

void linear_backward(const Pass& p, const TensorView& x, LinearPlaces at, const TensorView& d_y, const TensorView& d_x,
                     ops::GradWrite d_x_write) {
  linear_backward(p, x, at, 0, p.param(at.w).plain.rows(), d_y, d_x, d_x_write);
}

void linear_backward_input(const Pass& p, LinearPlaces at, const TensorView& d_y, const TensorView& d_x) {
  const Param& w = p.param(at.w);
  ops::LinearGradArgs args{.x = d_x, .w_plain = w.plain, .d_y = d_y, .d_x = d_x};  // of x its shape alone counts
  args.precision = w.matrix.precision;
  run_linear_grad(p, args);
}

void linear_backward_weights(const Pass& p, const TensorView& x, LinearPlaces at, const TensorView& d_y) {
  linear_backward(p, x, at, d_y, {});
}

}  // namespace brim::model
