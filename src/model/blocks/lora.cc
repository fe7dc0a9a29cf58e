// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/lora.h"

#include <algorithm>

#include "model/blocks/linear.h"
#include "ops/rows.h"

namespace brim::model {

using ops::Dropout;
using ops::GradWrite;
using tensor::TensorView;

namespace {

// All modules of a stacked matrix (q, k and v) share a mask, and so do layers with shared parameters.
Dropout lora_dropout(const Pass& p, int64_t w) {
  return p.dropout(static_cast<float>(p.s.lora.dropout), kLoraSite + static_cast<uint32_t>(w));
}

TensorView lora_input(const Pass& p, const TensorView& x, const Dropout& drop) {
  if (!drop.on()) return x;
  const TensorView y = p.activations(x.rows(), x.cols());
  ops::dropout_rows(p.e.stream, {.x = x, .y = y, .dropout = drop});
  return y;
}

void multiply_by(const Pass& p, const TensorView& x, float factor) {
  if (factor != 1) ops::dropout_rows(p.e.stream, {.x = x, .y = x, .factor = factor});
}

// scale · x Aᵀ for all modules of the matrix. x has had its dropout.
TensorView lora_down(const Pass& p, const LoraParams& at, const TensorView& x) {
  const Param& a = p.param(at.a);
  const TensorView u = p.activations(x.rows(), a.matrix.N);
  apply_linear(p, {x}, a.matrix, {}, u);
  multiply_by(p, u, at.scale);
  return u;
}

// A module whose rows overlap [begin,end), and its columns of x Aᵀ.
struct Overlap {
  const LoraParams::Part& part;
  int64_t begin, end, column;
};
std::vector<Overlap> lora_overlaps(const LoraParams& at, int64_t begin, int64_t end) {
  std::vector<Overlap> found;
  for (size_t k = 0; k < at.parts.size(); ++k) {
    const LoraParams::Part& part = at.parts[k];
    const int64_t from = std::max(begin, part.begin), to = std::min(end, part.end);
    if (from < to) found.push_back({part, from, to, static_cast<int64_t>(k) * at.rank});
  }
  return found;
}

void run_lora_grad(const Pass& p, ops::LinearGradArgs& args, ops::Precision precision) {
  args.precision = precision;
  args.scratch = p.e.memory.scratch(
      linear_grad_scratch_bytes(p.e.stream, args.x.rows(), args.w_plain.rows(), args.x.cols(), precision, p.e.threads));
  linear_grad(p.e.stream, args);
}

// Gradient of scale · x Aᵀ, and of B if `u` is given. The views of x only give the shape otherwise.
void lora_up_backward(const Pass& p, const LoraParams& at, const Overlap& o, int64_t begin, const TensorView& u,
                      const TensorView& d_y, const TensorView& d_u) {
  const Param& b = p.param(o.part.b);
  const int64_t first = o.begin - o.part.begin, last = o.end - o.part.begin;
  ops::LinearGradArgs args{.x = u ? u.slice_cols(o.column, o.column + at.rank) : d_u,
                           .w_plain = b.plain.slice_rows(first, last),
                           .d_y = d_y.slice_cols(o.begin - begin, o.end - begin),
                           .d_x = d_u};
  if (u) args.d_w = b.grad.slice_rows(first, last);
  run_lora_grad(p, args, b.matrix.precision);
}

// Rows [begin,end) of a matrix on a GPU. Passes that only evaluate have no plain copy.
TensorView matrix_rows(const Param& p, int64_t begin, int64_t end) {
  return p.plain ? p.plain.slice_rows(begin, end) : p.rows(begin, end).data;
}

// sum += scale · B A for rows [o.begin,o.end) of a matrix.
void add_low_rank_matrix(const Pass& p, const LoraParams& at, const Overlap& o, const TensorView& sum) {
  const Param& b = p.param(o.part.b);
  TensorView up = matrix_rows(b, o.begin - o.part.begin, o.end - o.part.begin);
  if (at.scale != 1) {
    const TensorView scaled = p.activations(up.rows(), up.cols());
    ops::dropout_rows(p.e.stream, {.x = up, .y = scaled, .factor = at.scale});
    up = scaled;
  }
  const Param& a = p.param(at.a);
  const TensorView down = matrix_rows(a, 0, a.matrix.N);
  ops::LinearGradArgs args{.x = sum,  // only its shape is used
                           .w_plain = down.slice_rows(o.column, o.column + at.rank),
                           .d_y = up,
                           .d_x = sum,
                           .d_x_write = GradWrite::accumulate};
  run_lora_grad(p, args, b.matrix.precision);
}

}  // namespace

TensorView merge_lora(const Pass& p, int64_t w, int64_t begin, int64_t end) {
  const LoraParams& at = p.param(w).lora;
  if (at.a < 0 || p.on_cpu() || lora_dropout(p, w).on()) return {};
  const std::vector<Overlap> parts = lora_overlaps(at, begin, end);
  if (parts.empty()) return {};
  const TensorView plain = matrix_rows(p.param(w), begin, end), sum = p.activations(end - begin, plain.cols());
  ops::dropout_rows(p.e.stream, {.x = plain, .y = sum});
  for (const Overlap& o : parts) add_low_rank_matrix(p, at, o, sum.slice_rows(o.begin - begin, o.end - begin));
  return sum;
}

void add_lora(const Pass& p, const TensorView& x, int64_t w, int64_t begin, int64_t end, const TensorView& y) {
  const LoraParams& at = p.param(w).lora;
  if (at.a < 0) return;
  const std::vector<Overlap> parts = lora_overlaps(at, begin, end);
  if (parts.empty()) return;
  const TensorView u = lora_down(p, at, lora_input(p, x, lora_dropout(p, w)));
  for (const Overlap& o : parts) {
    const TensorView to = y.slice_cols(o.begin - begin, o.end - begin);
    apply_linear(p, {u.slice_cols(o.column, o.column + at.rank)},
                 p.param(o.part.b).rows(o.begin - o.part.begin, o.end - o.part.begin), {}, to, {.residual = to});
  }
}

void lora_backward(const Pass& p, const TensorView& x, int64_t w, int64_t begin, int64_t end, const TensorView& d_y,
                   const TensorView& d_x) {
  const LoraParams& at = p.param(w).lora;
  if (at.a < 0) return;
  const std::vector<Overlap> parts = lora_overlaps(at, begin, end);
  if (parts.empty()) return;
  const Param& a = p.param(at.a);
  const Dropout drop = lora_dropout(p, w);
  const TensorView input = x ? lora_input(p, x, drop) : TensorView();
  const TensorView u = x ? lora_down(p, at, input) : TensorView();
  const int64_t rows = d_y.rows(), first = parts.front().column, last = parts.back().column + at.rank;
  const TensorView d_u = p.activations(rows, last - first);
  for (const Overlap& o : parts)
    lora_up_backward(p, at, o, begin, u, d_y, d_u.slice_cols(o.column - first, o.column - first + at.rank));
  multiply_by(p, d_u, at.scale);
  ops::LinearGradArgs args{.w_plain = a.plain.slice_rows(first, last), .d_y = d_u};
  if (x) args.d_w = a.grad.slice_rows(first, last);
  if (d_x) {
    args.d_x = drop.on() ? p.activations(rows, d_x.cols()) : d_x;
    args.d_x_write = drop.on() ? GradWrite::overwrite : GradWrite::accumulate;
  }
  args.x = x ? input : args.d_x;
  run_lora_grad(p, args, a.matrix.precision);
  if (d_x && drop.on())
    ops::dropout_rows(p.e.stream, {.x = args.d_x, .y = d_x, .dropout = drop, .write = GradWrite::accumulate});
}

}  // namespace brim::model
