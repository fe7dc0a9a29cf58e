// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/linear.h"

#include "base/error.h"
#include "model/blocks/lora.h"
#include "ops/fp8_cast.h"
#include "ops/rows.h"

namespace brim::model {

using tensor::TensorView;

namespace {

Input quantised(const Pass& p, const TensorView& x) {
  const Input codes{p.codes(x.rows(), x.cols()), p.f32({x.rows()})};
  ops::convert(p.e.stream, {.x = x, .y = codes.x, .scale = codes.dequantise});
  return codes;
}

}  // namespace

void apply_linear(const Pass& p, const Input& input, const ops::LinearWeight& w, const TensorView& bias,
                  const TensorView& y, const LinearOptions& options) {
  const bool quantises = w.precision == ops::Precision::int8 && !p.on_cpu() && input.x.dtype != tensor::DType::i8;
  const Input x = quantises ? quantised(p, input.x) : input;
  ops::LinearArgs args{.x = x.x, .w = w, .bias = bias, .residual = options.residual, .y = y};
  args.x_scale = x.dequantise;
  args.y_scale = options.quantise;
  args.activation = options.activation;
  args.scratch = p.e.memory.scratch(linear_scratch_bytes(p.e.stream, x.x.rows(), w.N, w.K, w.precision, p.e.threads));
  linear(p.e.stream, args);
}

namespace {

// y += (x downᵀ) upᵀ with columns [begin,end) of matrix `index`. Allocates the same for every adapter of the model's
// width, and at most that for a batch of several adapters.
void add_low_rank(const Pass& p, const TensorView& x, int64_t index, int64_t begin, int64_t end, const TensorView& y) {
  const int64_t width = p.param(index).low_rank.width;
  const TensorView inner = p.activations(x.rows(), width);
  p.for_each_adapter(x, [&](const Params& params, int64_t row, int64_t end_row) {
    const LowRank& low = params[static_cast<size_t>(index)].low_rank;
    const auto multiply = [&](const TensorView& from, const ops::LinearWeight& w, int64_t columns, const TensorView& to,
                              const TensorView& residual) {
      const TensorView scratch = p.e.memory.scratch(
          linear_scratch_bytes(p.e.stream, end_row - row, to.cols(), columns, low.precision, p.e.threads));
      if (w.N > 0) ops::linear(p.e.stream, {.x = from, .w = w, .residual = residual, .y = to, .scratch = scratch});
    };
    const TensorView used = inner.slice_rows(row, end_row).slice_cols(0, low.down.N > 0 ? low.down.N : width);
    const TensorView to = y.slice_rows(row, end_row);
    multiply(x.slice_rows(row, end_row), low.down, x.cols(), used, {});
    multiply(used, low.up_for(begin, end), width, to, to);
  });
}

}  // namespace

void apply_linear(const Pass& p, const Input& x, LinearParams at, int64_t begin, int64_t end, const TensorView& y,
                  const LinearOptions& options) {
  const Param& w = p.param(at.w);
  const TensorView& bias = p.param(at.b).plain;
  const TensorView rows_of_bias = bias ? bias.slice_rows(begin, end) : TensorView();
  if (const TensorView merged = merge_lora(p, at.w, begin, end)) {
    const ops::LinearWeight sum{
        .N = end - begin, .K = merged.cols(), .precision = w.rows(begin, end).precision, .data = merged};
    return apply_linear(p, x, sum, rows_of_bias, y, options);
  }
  const bool scored = w.low_rank.width > 0, adapted = scored || w.lora.a >= 0;
  BRIM_CHECK(!adapted || (!options.quantise && !x.dequantise &&
                          !(options.residual && options.activation != ops::Activation::none)),
             "matrix {} with an adapter: unsupported product", at.w);
  LinearOptions product = options;
  if (adapted) product.activation = ops::Activation::none;
  apply_linear(p, x, w.rows(begin, end), rows_of_bias, y, product);
  if (!adapted) return;
  if (scored)
    add_low_rank(p, x.x, at.w, begin, end, y);
  else
    add_lora(p, x.x, at.w, begin, end, y);
  if (options.activation != ops::Activation::none)
    ops::activate(p.e.stream, {.x = y, .y = y, .activation = options.activation});
}

Hidden add_product(const Pass& p, const Input& x, LinearParams at, const TensorView& residual, bool keeps_sum) {
  const bool in_product = p.training == nullptr && (p.on_cpu() || keeps_sum);
  const TensorView product = p.activations(x.x.rows(), p.param(at.w).matrix.N);
  apply_linear(p, x, at, product, {.residual = in_product ? residual : TensorView()});
  return in_product ? Hidden{product} : Hidden{residual, product};
}

ops::Fp8Copy room_for_copies(const Pass& p, const Fp8Site& site, int64_t T, int64_t C, Wanted wanted) {
  ops::Fp8Copy copy{.scale = site.scale, .amax = site.amax};
  if (wanted.rows) copy.rows = p.narrow(T, C);
  if (wanted.columns) copy.columns = p.narrow(C, ops::fp8_columns(T));
  return copy;
}

namespace {

Operand run_cast(const Pass& p, ops::Fp8CastArgs args, const Fp8Site& site, Wanted wanted) {
  const ops::Fp8Copy copy = room_for_copies(p, site, args.x.rows(), args.x.cols(), wanted);
  args.rows = copy.rows;
  args.columns = copy.columns;
  args.scale = copy.scale;
  args.amax = copy.amax;
  if (args.d_bias)
    args.scratch = p.e.memory.scratch(ops::fp8_cast_scratch_bytes(p.e.stream, args.x.rows(), args.x.cols()));
  ops::fp8_cast(p.e.stream, args);
  Operand made;
  made.rows = copy.rows;
  made.columns = copy.columns;
  return made;
}

// Rows [begin,end) of a bias's gradient; empty if there is no bias.
TensorView bias_grad(const Pass& p, LinearParams at, int64_t begin, int64_t end) {
  if (at.b < 0 || !p.param(at.b).grad) return {};
  return p.param(at.b).grad.slice_rows(begin, end);
}

Operand cast_gradient(const Pass& p, LinearParams at, int64_t begin, int64_t end, const TensorView& d_y,
                      Wanted wanted) {
  ops::Fp8CastArgs args{.x = d_y};
  args.d_bias = bias_grad(p, at, begin, end);
  return run_cast(p, args, p.param(at.w).fp8.d_y, wanted);
}

struct Fp8Product {
  TensorView x, x_inverse, w, w_inverse, y;
  TensorView bias = {}, residual = {};
  ops::LinearRole role = ops::LinearRole::forward;
};
void run_product(const Pass& p, const Fp8Product& a) {
  ops::LinearArgs args{.x = a.x};
  args.w = {.N = a.w.rows(), .K = a.w.cols(), .precision = ops::Precision::fp8, .data = a.w, .scale = a.w_inverse};
  args.bias = a.bias;
  args.residual = a.residual;
  args.y = a.y;
  args.x_scale = a.x_inverse;
  args.role = a.role;
  args.scratch = p.e.memory.scratch(
      linear_scratch_bytes(p.e.stream, a.x.rows(), args.w.N, args.w.K, ops::Precision::fp8, p.e.threads));
  linear(p.e.stream, args);
}

void input_product(const Pass& p, LinearParams at, int64_t begin, int64_t end, const TensorView& d_y,
                   const TensorView& d_x, ops::GradWrite write) {
  const Fp8Matrix& w = p.param(at.w).fp8;
  run_product(p, {.x = d_y,
                  .x_inverse = w.d_y.inverse,
                  .w = w.columns.slice_cols(begin, end),
                  .w_inverse = w.w.inverse,
                  .y = d_x,
                  .residual = write == ops::GradWrite::accumulate ? d_x : TensorView(),
                  .role = ops::LinearRole::input_gradient});
}

void weights_product(const Pass& p, LinearParams at, int64_t begin, int64_t end, const TensorView& d_y,
                     const TensorView& x) {
  const Param& w = p.param(at.w);
  if (!w.grad) return;
  const TensorView d_w = w.grad.slice_rows(begin, end);
  run_product(p, {.x = d_y,
                  .x_inverse = w.fp8.d_y.inverse,
                  .w = x,
                  .w_inverse = w.fp8.x.inverse,
                  .y = d_w,
                  .residual = d_w,
                  .role = ops::LinearRole::weight_gradient});
}

}  // namespace

Operand cast_operand(const Pass& p, const Fp8Site& site, const TensorView& x, Wanted wanted,
                     ops::Activation activation) {
  ops::Fp8CastArgs args{.x = x};
  args.activation = activation;
  return run_cast(p, args, site, wanted);
}

Operand operand_of(const Pass& p, const Hidden& x, int64_t w, Wanted wanted) {
  Operand made;
  made.rows = x.narrow;
  made.columns = x.columns;
  const Wanted missing{wanted.rows && !made.rows, wanted.columns && !made.columns};
  if (!missing.rows && !missing.columns) return made;
  const Operand cast = cast_operand(p, p.param(w).fp8.x, x.x, missing);
  if (missing.rows) made.rows = cast.rows;
  if (missing.columns) made.columns = cast.columns;
  return made;
}

Operand gradient_operand(const Pass& p, LinearParams& at, const TensorView& d_y) {
  if (!p.trains_fp8(at.w)) return d_y;
  const Operand made = cast_gradient(p, at, 0, p.param(at.w).plain.rows(), d_y, {});
  at.b = -1;
  return made;
}

Operand cast_slope(const Pass& p, LinearParams at, const TensorView& d_y, const TensorView& before,
                   ops::Activation activation) {
  ops::Fp8CastArgs args{.x = d_y, .gate = before};
  args.activation = activation;
  args.d_bias = bias_grad(p, at, 0, d_y.cols());
  return run_cast(p, args, p.param(at.w).fp8.d_y, {});
}

void multiply_fp8(const Pass& p, const Operand& x, LinearParams at, const TensorView& y, int64_t begin, int64_t end,
                  const TensorView& residual) {
  const Fp8Matrix& w = p.param(at.w).fp8;
  if (end < 0) end = w.rows.rows();
  const TensorView bias = at.b >= 0 ? p.param(at.b).plain : TensorView();
  run_product(p, {.x = x.rows,
                  .x_inverse = w.x.inverse,
                  .w = w.rows.slice_rows(begin, end),
                  .w_inverse = w.w.inverse,
                  .y = y,
                  .bias = bias ? bias.slice_rows(begin, end) : TensorView(),
                  .residual = residual});
}

Hidden add_product_fp8(const Pass& p, const Operand& x, LinearParams at, const TensorView& residual) {
  const TensorView product = p.activations(x.rows.rows(), p.param(at.w).fp8.rows.rows());
  multiply_fp8(p, x, at, product);
  return {residual, product};
}

namespace {

void run_linear_grad(const Pass& p, ops::LinearGradArgs& args) {
  args.scratch = p.e.memory.scratch(linear_grad_scratch_bytes(p.e.stream, args.x.rows(), args.w_plain.rows(),
                                                              args.x.cols(), args.precision, p.e.threads));
  linear_grad(p.e.stream, args);
}

}  // namespace

void linear_backward(const Pass& p, const Operand& x, LinearParams at, int64_t begin, int64_t end, const Operand& d_y,
                     const TensorView& d_x, ops::GradWrite d_x_write) {
  const Param& w = p.param(at.w);
  if (p.trains_fp8(at.w)) {
    const Operand d = d_y.columns ? d_y : cast_gradient(p, at, begin, end, d_y.x, {.rows = static_cast<bool>(d_x)});
    const Operand multiplied = x.columns ? x : cast_operand(p, w.fp8.x, x.x, {.rows = false});
    weights_product(p, at, begin, end, d.columns, multiplied.columns);
    if (d_x) input_product(p, at, begin, end, d.rows, d_x, d_x_write);
    return;
  }
  const TensorView merged = d_x ? merge_lora(p, at.w, begin, end) : TensorView();
  ops::LinearGradArgs args;
  args.x = x.x;
  args.w_plain = merged ? merged : w.plain.slice_rows(begin, end);
  args.d_y = d_y.x;
  args.d_x = d_x;
  if (w.grad) args.d_w = w.grad.slice_rows(begin, end);
  args.d_bias = bias_grad(p, at, begin, end);
  args.precision = w.matrix.precision;
  args.d_x_write = d_x_write;
  args.d_w_write = ops::GradWrite::accumulate;
  if (args.d_x || args.d_w || args.d_bias) run_linear_grad(p, args);
  lora_backward(p, x.x, at.w, begin, end, d_y.x, merged ? TensorView() : d_x);
}

void linear_backward(const Pass& p, const Operand& x, LinearParams at, const Operand& d_y, const TensorView& d_x,
                     ops::GradWrite d_x_write) {
  linear_backward(p, x, at, 0, p.param(at.w).plain.rows(), d_y, d_x, d_x_write);
}

void linear_backward_input(const Pass& p, LinearParams at, const Operand& d_y, const TensorView& d_x) {
  const Param& w = p.param(at.w);
  if (p.trains_fp8(at.w)) {
    input_product(p, at, 0, w.plain.rows(), d_y.rows, d_x, ops::GradWrite::overwrite);
    return;
  }
  const TensorView merged = merge_lora(p, at.w, 0, w.plain.rows());
  ops::LinearGradArgs args{.x = d_x,  // only its shape is used
                           .w_plain = merged ? merged : w.plain,
                           .d_y = d_y.x,
                           .d_x = d_x};
  args.precision = w.matrix.precision;
  run_linear_grad(p, args);
  if (!merged) lora_backward(p, {}, at.w, 0, w.plain.rows(), d_y.x, d_x);
}

void linear_backward_weights(const Pass& p, const Operand& x, LinearParams at, const Operand& d_y) {
  linear_backward(p, x, at, d_y, {});
}

}  // namespace brim::model
