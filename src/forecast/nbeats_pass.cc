// SPDX-License-Identifier: Apache-2.0
#include "forecast/nbeats_pass.h"

#include <algorithm>

#include "model/weights.h"
#include "ops/basis_fold.h"
#include "ops/forecast_loss.h"
#include "ops/lane_linear.h"
#include "ops/residual_step.h"
#include "ops/rows.h"

namespace brim::forecast {

using memory::Tag;
using model::Exec;
using ops::GradWrite;
using tensor::DType;

namespace {

// Views of the lanes' matrices [G,rows,cols] or biases [G,rows] within their slabs.
TensorView matrix_in(const TensorView& slab, const NbeatsParam& p) {
  TensorView v(static_cast<char*>(slab.data) + p.offset * dtype_bytes(slab.dtype), slab.dtype,
               {slab.dim[0], p.rows, p.cols});
  v.stride[0] = slab.stride[0];
  return v;
}
TensorView vector_in(const TensorView& slab, const NbeatsParam& p) {
  TensorView v(static_cast<char*>(slab.data) + p.offset * dtype_bytes(slab.dtype), slab.dtype, {slab.dim[0], p.rows});
  v.stride[0] = slab.stride[0];
  return v;
}
// View of a [G,rows] bias as a matrix with one column.
TensorView as_column(const TensorView& v) {
  TensorView c(v.data, v.dtype, {v.dim[0], v.dim[1], 1});
  c.stride[0] = v.stride[0];
  c.stride[1] = 1;
  return c;
}

// Forward and backward of one micro-batch.
class Pass {
 public:
  Pass(Exec& exec, const NbeatsShape& shape, const NbeatsLayout& layout, const NbeatsViews& views,
       const NbeatsWindows& windows)
      : exec_(exec),
        shape_(shape),
        layout_(layout),
        views_(views),
        windows_(windows),
        hidden_(ops::lane_value_type(exec.stream, exec.precision)),
        G_(windows.r.rows()),
        B_(windows.r.dim[1]) {
    int64_t block = 0;
    for (size_t s = 0; s < shape.stacks.size(); ++s)
      for (int64_t b = 0; b < shape.stacks[s].blocks; ++b, ++block) {
        const bool own = b == 0 || !shape.stacks[s].shared;
        blocks_.push_back({s, own, b + 1 == shape.stacks[s].blocks || !shape.stacks[s].shared, {}, {}, {}, {}});
      }
  }

  TensorView forward(bool keep, bool recompute, const AfterStack& after_stack) {
    fold_bases();
    const bool half = views_.copy.data != nullptr;
    f_ = make(DType::f32, shape_.forecast());
    TensorView r = windows_.r, x = half ? windows_.r_half : windows_.r;
    for (size_t b = 0; b < blocks_.size(); ++b) {
      Block& block = blocks_[b];
      const bool last = b + 1 == blocks_.size();
      block.input = x;
      hidden(b);
      if (is_exogenous(b)) {
        add_exogenous(b);
        if (after_stack && (last || blocks_[b + 1].stack != block.stack)) after_stack(f_);
        if (!keep || recompute) block.h.clear();
        continue;
      }
      const TensorView o = make(DType::f32, shape_.output());
      linear(block.h.back(), output_weight(b), output_bias(b), o, false);
      TensorView next, next_half;
      // Half types update the residual in place and keep its rounded copy; f32 keeps the residual itself.
      if (!last) {
        next = half ? r : make(DType::f32, shape_.window());
        if (half) next_half = make(exec_.activation, shape_.window());
      }
      ops::residual_step(exec_.stream, {.r = r,
                                        .o = o,
                                        .mask = windows_.mask,
                                        .r_next = next,
                                        .r_half = next_half,
                                        .f = f_,
                                        .f_write = b == 0 ? GradWrite::overwrite : GradWrite::accumulate});
      if (after_stack && (last || blocks_[b + 1].stack != block.stack)) after_stack(f_);
      if (!keep || recompute) block.h.clear();
      r = next;
      x = half ? next_half : next;
    }
    return f_;
  }

  // `d_f` is the gradient of the loss. With `add`, accumulates onto gradients of earlier micro-batches.
  void backward(const TensorView& d_f, bool add, bool recompute) {
    const TensorView d_r = make(DType::f32, shape_.window());
    TensorView d_v, d_v_bias;  // for the folded output of a basis stack
    for (size_t b = blocks_.size(); b-- > 0;) {
      Block& block = blocks_[b];
      if (recompute) hidden(b);
      const GradWrite write = add || !block.last_use ? GradWrite::accumulate : GradWrite::overwrite;
      const TensorView d_w = matrix_in(views_.grad, param(b, shape_.layers, true)),
                       d_bias = vector_in(views_.grad, param(b, shape_.layers, false));
      if (is_exogenous(b)) {
        layer_gradients(b, {exogenous_gradient(d_f), d_w, d_bias, write}, {}, write);
        continue;
      }
      const TensorView d_o = make(exec_.activation, shape_.output());
      ops::residual_step_grad(
          exec_.stream, {.d_r = d_r, .d_f = d_f, .mask = windows_.mask, .d_o = d_o, .last = b + 1 == blocks_.size()});
      const TensorView d_input = b > 0 && !is_exogenous(b - 1) ? d_r : TensorView();
      const TensorView& basis = views_.basis[block.stack];
      if (!basis) {
        layer_gradients(b, {d_o, d_w, d_bias, write}, d_input, write);
        continue;
      }
      if (block.last_use) {
        d_v = exec_.memory.allocate(Tag::activations, DType::f32,
                                    {G_, shape_.output(), param(b, shape_.layers, true).cols});
        d_v_bias = exec_.memory.allocate(Tag::activations, DType::f32, {G_, shape_.output()});
      }
      // Sum over all uses within this micro-batch, then unfold.
      const GradWrite sum = block.last_use ? GradWrite::overwrite : GradWrite::accumulate;
      layer_gradients(b, {d_o, d_v, d_v_bias, sum}, d_input, write);
      if (!block.first_use) continue;
      const GradWrite fold = add ? GradWrite::accumulate : GradWrite::overwrite;
      ops::basis_fold_grad(exec_.stream, {.basis = basis, .d_v = d_v, .d_theta = d_w, .d_theta_write = fold});
      ops::basis_fold_grad(
          exec_.stream,
          {.basis = basis, .d_v = as_column(d_v_bias), .d_theta = as_column(d_bias), .d_theta_write = fold});
    }
  }

 private:
  struct Block {
    size_t stack;
    bool first_use, last_use;   // use of its weights, from the bottom; shared blocks have one of each
    TensorView input;           // [G,B,window] in the matmul type
    std::vector<TensorView> h;  // layer outputs
    TensorView v, v_bias;       // folded output of a basis stack
  };

  // Gradient of a block's output, and the destinations of its weight's and bias's.
  struct OutputGradient {
    TensorView d_y, d_w, d_bias;
    GradWrite write;
  };

  // Backward through the output and the layers; `d_input` accumulates the gradient of the block's input, if wanted.
  void layer_gradients(size_t b, const OutputGradient& out, const TensorView& d_input, GradWrite write) {
    const Block& block = blocks_[b];
    ops::LaneLinearGradArgs g;
    g.x = below(block, shape_.layers);
    g.w = output_weight(b);
    g.d_y = out.d_y;
    g.d_w = out.d_w;
    g.d_bias = out.d_bias;
    g.write = out.write;
    TensorView d_h = layer_gradient(b, shape_.layers, g, write);
    for (int64_t i = shape_.layers - 1; i > 0; --i) {
      g = {};
      g.x = below(block, i);
      g.w = matrix_in(weights(), param(b, i, true));
      g.d_y = d_h;
      g.d_w = matrix_in(views_.grad, param(b, i, true));
      g.write = write;
      if (!has_relu(i)) g.d_bias = vector_in(views_.grad, param(b, i, false));
      d_h = layer_gradient(b, i, g, write);
    }
    const int64_t own = width(b), all = d_h.cols();
    g = {};
    g.x = block.input;
    g.w = matrix_in(weights(), param(b, 0, true));
    g.d_y = all > own ? d_h.slice_cols(0, own) : d_h;
    g.d_w = matrix_in(views_.grad, param(b, 0, true));
    g.write = write;
    const TensorView d_bias = has_relu(0) ? TensorView() : vector_in(views_.grad, param(b, 0, false));
    if (d_bias) g.d_bias = all > own ? d_bias.slice_cols(0, own) : d_bias;
    g.d_x = d_input;
    g.d_x_write = GradWrite::accumulate;
    linear_grad(g);
    if (all == own) return;
    g = {};
    g.x = covariates();
    g.w = matrix_in(weights(), covariate_weight(b));
    g.d_y = d_h.slice_cols(own, all);
    g.d_w = matrix_in(views_.grad, covariate_weight(b));
    g.write = write;
    if (d_bias) g.d_bias = d_bias.slice_cols(own, all);
    linear_grad(g);
  }

  // Gradient of the input of layer i, before the ReLU of the layer below.
  TensorView layer_gradient(size_t b, int64_t i, ops::LaneLinearGradArgs& g, GradWrite write) {
    g.x_is_relu = has_relu(i - 1);
    g.d_x = make(g.x_is_relu ? hidden_ : exec_.activation, g.x.cols());
    if (g.x_is_relu) g.d_x_sums = vector_in(views_.grad, param(b, i - 1, false));
    g.d_x_sums_write = write;
    linear_grad(g);
    return g.d_x;
  }

  void linear_grad(ops::LaneLinearGradArgs& g) {
    g.precision = exec_.precision;
    g.scratch = exec_.memory.scratch(ops::lane_linear_grad_scratch_bytes(exec_.stream, G_, B_, g.d_y.cols(), g.x.cols(),
                                                                         exec_.precision, exec_.threads));
    lane_linear_grad(exec_.stream, g);
  }

  const TensorView& below(const Block& block, int64_t layer) const { return block.h[static_cast<size_t>(layer - 1)]; }
  bool is_exogenous(size_t b) const { return shape_.stacks[blocks_[b].stack].kind == StackKind::exogenous; }
  const TensorView& covariates() const {
    return windows_.covariates_half ? windows_.covariates_half : windows_.covariates;
  }
  const NbeatsParam& covariate_weight(size_t b) const {
    return layout_.params[layout_.covariate_weight_of(static_cast<int64_t>(b), shape_.layers)];
  }

  // Calls fn(future covariates [n,H,C], forecasts or gradients [n,H,1] in `f`, coefficients [n,C,1] in `theta`) for
  // each quantile, with windows as lanes; a GPU allows 65,535 of them per call.
  template <class Fn>
  void for_exogenous(const TensorView& f, const TensorView& theta, Fn&& fn) {
    constexpr int64_t kMostWindows = 32'768;
    const int64_t C = shape_.covariates.future, H = shape_.horizon, E = windows_.covariates.cols();
    const auto column = [](const TensorView& of, int64_t first, int64_t window, int64_t windows, int64_t rows) {
      TensorView v(static_cast<char*>(of.data) + (window * of.cols() + first) * dtype_bytes(of.dtype), of.dtype,
                   {windows, rows, 1});
      v.stride = {of.cols(), 1, 1};
      return v;
    };
    for (int64_t first = 0; first < G_ * B_; first += kMostWindows) {
      const int64_t n = std::min(kMostWindows, G_ * B_ - first);
      TensorView x(windows_.covariates.as<float>() + first * E + shape_.covariates.history * C, DType::f32, {n, H, C});
      x.stride = {E, C, 1};
      for (int64_t q = 0; q < shape_.quantiles; ++q)
        fn(x, column(f, q * H, first, n, H), column(theta, q * C, first, n, C));
    }
  }

  // Forecasts of an exogenous block: the future covariates times coefficients computed from the window.
  void add_exogenous(size_t b) {
    const TensorView theta = make(DType::f32, shape_.exogenous_rows());
    linear(blocks_[b].h.back(), output_weight(b), output_bias(b), theta, false);
    if (b == 0) exec_.stream.fill_zero(f_.data, static_cast<size_t>(f_.bytes()));
    for_exogenous(f_, theta, [&](const TensorView& x, const TensorView& f, const TensorView& coefficients) {
      ops::basis_fold_grad(exec_.stream,
                           {.basis = x, .d_v = coefficients, .d_theta = f, .d_theta_write = GradWrite::accumulate});
    });
  }
  TensorView exogenous_gradient(const TensorView& d_f) {
    const TensorView d_theta = make(exec_.activation, shape_.exogenous_rows());
    if (shape_.exogenous_rows() > shape_.quantiles * shape_.covariates.future)
      exec_.stream.fill_zero(d_theta.data, static_cast<size_t>(d_theta.bytes()));
    for_exogenous(d_f, d_theta, [&](const TensorView& x, const TensorView& d, const TensorView& d_coefficients) {
      ops::basis_fold(exec_.stream, {.basis = x, .theta = d, .v = d_coefficients});
    });
    return d_theta;
  }

  TensorView make(DType type, int64_t columns) {
    return exec_.memory.allocate(Tag::activations, type, {G_, B_, columns});
  }
  const TensorView& weights() const { return views_.copy ? views_.copy : views_.master; }
  const NbeatsParam& param(size_t b, int64_t layer, bool weight) const {
    const auto block = static_cast<int64_t>(b);
    return layout_.params[weight ? layout_.weight_of(block, layer) : layout_.bias_of(block, layer)];
  }
  int64_t width(size_t b) const { return shape_.stacks[blocks_[b].stack].width; }
  bool has_relu(int64_t layer) const { return layer > 0 || shape_.first_relu; }
  TensorView output_weight(size_t b) const {
    return blocks_[b].v ? blocks_[b].v : matrix_in(weights(), param(b, shape_.layers, true));
  }
  TensorView output_bias(size_t b) const {
    return blocks_[b].v_bias ? blocks_[b].v_bias : vector_in(views_.master, param(b, shape_.layers, false));
  }

  void linear(const TensorView& x, const TensorView& w, const TensorView& bias, const TensorView& y, bool relu) {
    ops::lane_linear(exec_.stream, {.x = x,
                                    .w = w,
                                    .bias = bias,
                                    .y = y,
                                    .scratch = exec_.memory.scratch(ops::lane_linear_scratch_bytes(
                                        exec_.stream, G_, B_, y.cols(), x.cols(), exec_.precision, exec_.threads)),
                                    .precision = exec_.precision,
                                    .relu = relu});
  }
  void hidden(size_t b) {
    Block& block = blocks_[b];
    block.h.clear();
    const int64_t own = width(b), more = shape_.covariate_units(own);
    for (int64_t i = 0; i < shape_.layers; ++i) {
      const TensorView x = i == 0 ? block.input : block.h.back(), y = make(hidden_, i == 0 ? own + more : own),
                       w = matrix_in(weights(), param(b, i, true)), bias = vector_in(weights(), param(b, i, false));
      if (i > 0 || more == 0) {
        linear(x, w, bias, y, has_relu(i));
      } else {
        linear(x, w, bias.slice_cols(0, own), y.slice_cols(0, own), has_relu(0));
        linear(covariates(), matrix_in(weights(), covariate_weight(b)), bias.slice_cols(own, own + more),
               y.slice_cols(own, own + more), has_relu(0));
      }
      block.h.push_back(y);
    }
  }
  // Folds the bases into the output weights, so that trend and seasonality blocks compute like generic ones.
  void fold_bases() {
    for (size_t b = 0; b < blocks_.size(); ++b) {
      Block& block = blocks_[b];
      const TensorView& basis = views_.basis[block.stack];
      if (!basis) continue;
      if (!block.first_use) {
        block.v = blocks_[b - 1].v;
        block.v_bias = blocks_[b - 1].v_bias;
        continue;
      }
      block.v = exec_.memory.allocate(Tag::activations, exec_.activation,
                                      {G_, shape_.output(), param(b, shape_.layers, true).cols});
      block.v_bias = exec_.memory.allocate(Tag::activations, DType::f32, {G_, shape_.output()});
      ops::basis_fold(exec_.stream,
                      {.basis = basis, .theta = matrix_in(views_.master, param(b, shape_.layers, true)), .v = block.v});
      ops::basis_fold(exec_.stream, {.basis = basis,
                                     .theta = as_column(vector_in(views_.master, param(b, shape_.layers, false))),
                                     .v = as_column(block.v_bias)});
    }
  }

  Exec& exec_;
  const NbeatsShape& shape_;
  const NbeatsLayout& layout_;
  const NbeatsViews& views_;
  const NbeatsWindows& windows_;
  const DType hidden_;  // type of layer outputs and of their gradients after a ReLU
  int64_t G_, B_;
  std::vector<Block> blocks_;
  TensorView f_;
};

}  // namespace

namespace {

// Rows of the covariates of drawn windows. window_gather copies a row number as the bits of a float; with lanes of one
// point it computes nothing with them.
TensorView drawn_rows(Exec& exec, const NbeatsViews& views, const WindowSource& source, int64_t B, int64_t first_row) {
  const int64_t G = views.master.rows();
  const auto make = [&](DType type, std::initializer_list<int64_t> dims) {
    return exec.memory.allocate(Tag::activations, type, dims);
  };
  ops::WindowGatherArgs args{.values = source.row_bits,
                             .begin = source.begin,
                             .end = source.end,
                             .first = source.first,
                             .weights = source.weights,
                             .lanes = views.row_lanes,
                             .step = views.step};
  args.r = make(DType::f32, {G, B, 1});
  args.mask = make(DType::u8, {G, B, 1});
  args.y = make(DType::f32, {G, B, 1});
  args.level = make(DType::f32, {G, B});
  args.scale = make(DType::f32, {G, B});
  args.first_row = first_row;
  args.every_window = source.every_window;
  window_gather(exec.stream, args);
  return {args.y.data, DType::i32, {G * B}};
}

// The covariates of a window are one stretch of rows, from `history` points before its cut.
void gather_covariates(Exec& exec, const NbeatsShape& shape, const WindowSource& source, const TensorView& rows,
                       bool half, NbeatsWindows& w) {
  const int64_t G = w.r.rows(), B = w.r.dim[1], E = shape.covariate_inputs();
  const CovariateShape& c = shape.covariates;
  w.covariates = exec.memory.allocate(Tag::activations, DType::f32, {G, B, E});
  const TensorView all = w.covariates.reshape({G * B, E});
  int64_t at = 0;
  const auto gather = [&](const TensorView& table, int64_t each, int64_t points) {
    if (each == 0) return;
    TensorView stretches(table.data, DType::f32, {table.rows() - (c.history + shape.horizon) + 1, points * each});
    stretches.stride[0] = each;
    ops::gather_rows(exec.stream, {.x = stretches, .rows = rows, .y = all.slice_cols(at, at + points * each)});
    at += points * each;
  };
  gather(source.future, c.future, c.history + shape.horizon);
  gather(source.past, c.past, c.history);
  gather(source.fixed, c.fixed, 1);
  if (!half) return;
  w.covariates_half = exec.memory.allocate(Tag::activations, exec.activation, {G, B, E});
  ops::convert(exec.stream, {.x = w.covariates, .y = w.covariates_half});
}

}  // namespace

NbeatsWindows gather_windows(Exec& exec, const NbeatsShape& shape, const NbeatsViews& views, const WindowSource& source,
                             const NbeatsOptions& options, int64_t windows, int64_t first_row, bool targets) {
  const int64_t G = views.master.rows(), B = windows;
  const auto make = [&](DType type, std::initializer_list<int64_t> dims) {
    return exec.memory.allocate(Tag::activations, type, dims);
  };
  NbeatsWindows w;
  w.r = make(DType::f32, {G, B, shape.window()});
  if (views.copy) w.r_half = make(exec.activation, {G, B, shape.window()});
  w.mask = make(DType::u8, {G, B, shape.window()});
  if (targets) w.y = make(DType::f32, {G, B, shape.horizon});
  w.level = make(DType::f32, {G, B});
  w.scale = make(DType::f32, {G, B});
  if (targets && options.season_scale) w.season_scale = make(DType::f32, {G, B});
  ops::WindowGatherArgs args{.values = source.values,
                             .begin = source.begin,
                             .end = source.end,
                             .first = source.first,
                             .weights = source.weights,
                             .lanes = views.lanes,
                             .step = views.step,
                             .picks = source.picks,
                             .r = w.r,
                             .r_half = w.r_half,
                             .mask = w.mask,
                             .y = w.y,
                             .level = w.level,
                             .scale = w.scale,
                             .season_scale = w.season_scale};
  args.first_row = first_row;
  args.every_window = source.every_window;
  window_gather(exec.stream, args);
  if (shape.covariates.any()) {
    const TensorView rows = source.rows ? source.rows : drawn_rows(exec, views, source, B, first_row);
    gather_covariates(exec, shape, source, rows, views.copy.data != nullptr, w);
  }
  return w;
}

TensorView nbeats_forward(Exec& exec, const NbeatsShape& shape, const NbeatsLayout& layout, const NbeatsViews& views,
                          const NbeatsWindows& windows, const AfterStack& after_stack) {
  return Pass(exec, shape, layout, views, windows).forward(false, false, after_stack);
}

void nbeats_train_step(Exec& exec, const NbeatsShape& shape, const NbeatsLayout& layout, const NbeatsViews& views,
                       const WindowSource& source, const NbeatsOptions& options) {
  const int64_t G = views.master.rows(), B = options.windows / options.parts;
  BRIM_CHECK(B * options.parts == options.windows, "{} windows in {} parts", options.windows, options.parts);
  for (int64_t part = 0; part < options.parts; ++part) {
    const NbeatsWindows windows = gather_windows(exec, shape, views, source, options, B, part * B, true);
    Pass pass(exec, shape, layout, views, windows);
    const TensorView f = pass.forward(true, options.recompute, {});
    const TensorView d_f = exec.memory.allocate(Tag::activations, DType::f32, {G, B, shape.forecast()});
    ops::forecast_loss(exec.stream, {.f = f,
                                     .level = windows.level,
                                     .scale = windows.scale,
                                     .lanes = views.lanes,
                                     .y = windows.y,
                                     .season_scale = windows.season_scale,
                                     .quantiles = views.quantiles,
                                     .loss = views.losses,
                                     .step = views.step,
                                     .d_f = d_f,
                                     .scratch = exec.memory.scratch(ops::forecast_loss_scratch_bytes(G, B)),
                                     .horizon = shape.horizon,
                                     .windows = options.windows,
                                     .loss_write = part > 0 ? GradWrite::accumulate : GradWrite::overwrite,
                                     .mean_of_present = options.mean_of_present});
    pass.backward(d_f, part > 0, options.recompute);
  }
  ops::grad_norm(exec.stream, {.grad = views.grad,
                               .norm = views.norms,
                               .factor = views.factor,
                               .scratch = views.norm_scratch,
                               .step = views.step,
                               .max_norm = options.max_grad_norm});
  for (const bool decayed : {true, false}) {
    const int64_t begin = decayed ? 0 : layout.decayed, end = decayed ? layout.decayed : layout.elements;
    const auto range = [&](const TensorView& slab) { return slab ? slab.slice_cols(begin, end) : TensorView(); };
    ops::adamw(exec.stream, {.master = range(views.master),
                             .grad = range(views.grad),
                             .m = range(views.m),
                             .v = range(views.v),
                             .copy = range(views.copy),
                             .grad_factor = views.factor,
                             .table = {.rows = views.rows, .step = views.step},
                             .decayed = decayed});
  }
  ops::advance_step(exec.stream, {.step = views.step});
}

NbeatsForecast nbeats_predict(Exec& exec, const NbeatsShape& shape, const NbeatsLayout& layout,
                              const NbeatsViews& views, const WindowSource& source, int64_t windows, bool components) {
  const NbeatsWindows w = gather_windows(exec, shape, views, source, {}, windows, 0, false);
  const auto in_own_units = [&](const TensorView& f) {
    const TensorView y_hat = exec.memory.allocate(Tag::activations, DType::f32,
                                                  {views.master.rows(), windows, shape.quantiles * shape.horizon});
    exec.memory.keep(y_hat);
    ops::forecast_loss(exec.stream, {.f = f,
                                     .level = w.level,
                                     .scale = w.scale,
                                     .lanes = views.lanes,
                                     .quantiles = views.quantiles,
                                     .y_hat = y_hat,
                                     .horizon = shape.horizon});
    return y_hat;
  };
  NbeatsForecast forecast;
  AfterStack after_stack;
  if (components) after_stack = [&](const TensorView& f) { forecast.after_stack.push_back(in_own_units(f)); };
  forecast.y_hat = in_own_units(nbeats_forward(exec, shape, layout, views, w, after_stack));
  forecast.level = w.level;
  exec.memory.keep(w.level);
  return forecast;
}

NbeatsPlan plan_nbeats(const NbeatsShape& shape, int64_t lanes, NbeatsTask task, const NbeatsOptions& options,
                       ops::Precision precision, device::DeviceKind target, device::Isa isa, int threads) {
  memory::LifetimeRecorder recorder;
  device::NullStream stream(&recorder, target, isa);
  const DType type = model::activation_type(precision, target);
  Exec exec{stream, recorder, type, precision, threads};
  const NbeatsLayout layout = nbeats_layout(shape);
  const int64_t G = lanes, P = layout.elements;
  const auto fake = [](DType dtype, std::initializer_list<int64_t> dims) {
    return TensorView(reinterpret_cast<void*>(uintptr_t{1} << 12), dtype, dims);
  };
  NbeatsViews views;
  views.master = views.grad = views.m = views.v = fake(DType::f32, {G, P});
  if (type != DType::f32) views.copy = fake(type, {G, P});
  for (const StackSpec& stack : shape.stacks) {
    const int64_t rows = basis_rows(shape, stack.kind);
    views.basis.push_back(rows == 0 ? TensorView() : fake(DType::f32, {G, rows, shape.output()}));
  }
  views.lanes = fake(DType::u8, {G, static_cast<int64_t>(sizeof(ops::LaneSpec))});
  views.quantiles = fake(DType::f32, {shape.quantiles});
  views.step = fake(DType::i64, {1});
  views.rows = fake(DType::f32, {1, G, ops::kAdamWRowFloats});
  views.losses = fake(DType::f32, {1, G});
  views.norms = fake(DType::f32, {1, G});
  views.factor = fake(DType::f32, {G});
  views.norm_scratch = fake(DType::u8, {ops::grad_norm_scratch_bytes(P, G)});
  WindowSource source;
  source.values = fake(DType::f32, {1});
  source.begin = fake(DType::i64, {2});
  source.end = fake(DType::i32, {G, 1});
  source.weights = fake(DType::i64, {G, 2});
  if (task == NbeatsTask::predict) source.picks = fake(DType::i32, {G, options.windows, 2});
  if (const CovariateShape& c = shape.covariates; c.any()) {
    const int64_t rows = c.history + shape.horizon;
    source.future = fake(DType::f32, {rows, c.future});
    source.past = fake(DType::f32, {rows, c.past});
    source.fixed = fake(DType::f32, {rows, c.fixed});
    source.row_bits = source.values;
    if (task == NbeatsTask::predict) source.rows = fake(DType::i32, {G * options.windows});
    views.row_lanes = fake(DType::u8, {G, static_cast<int64_t>(sizeof(ops::LaneSpec))});
  }
  if (task == NbeatsTask::train)
    nbeats_train_step(exec, shape, layout, views, source, options);
  else
    nbeats_predict(exec, shape, layout, views, source, options.windows, options.components);
  NbeatsPlan plan;
  plan.placement = place(recorder.lifetimes());
  plan.flops = recorder.flops();
  plan.bytes = recorder.bytes();
  plan.ops = recorder.ops();
  return plan;
}

}  // namespace brim::forecast
