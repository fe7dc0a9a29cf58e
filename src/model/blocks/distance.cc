// SPDX-License-Identifier: Apache-2.0
#include "model/blocks/distance.h"

#include "ops/distance_rows.h"
#include "ops/rows.h"

namespace brim::model {

using tensor::TensorView;

namespace {

int64_t longest_of(const Pass& p) { return p.batch.S > 0 ? p.batch.S : p.batch.T; }

// Rows of the product's matrix that are in use, and columns of its result.
struct Range {
  int64_t begin, end;
};
Range rows_in_use(const Pass& p, const DistanceParams& at) {
  const int64_t H = p.s.hidden;
  if (at.own) return {0, (at.queries ? H : 0) + (at.keys ? H : 0)};
  return {at.queries ? 0 : H, at.keys ? 2 * H : H};
}

ops::Dropout table_dropout(const Pass& p, int64_t l) { return p.layer_dropout(l, DropoutSite::distances); }

// Cuts [rows, H or 2 H] into the parts.
DistanceTables parts_of(const Pass& p, const DistanceParams& at, const TensorView& both) {
  const int64_t H = p.s.hidden, keys_at = at.queries ? H : 0;
  return {.queries = at.queries ? both.slice_cols(0, H) : TensorView(),
          .keys = at.keys ? both.slice_cols(keys_at, keys_at + H) : TensorView()};
}

// Queries and keys of the rows of x; columns as the matrix's rows.
TensorView project(const Pass& p, const DistanceParams& at, const TensorView& x, bool in_parts, Operand& operand) {
  const Param& w = p.param(at.product.w);
  const Range used = rows_in_use(p, at);
  const int64_t H = p.s.hidden;
  operand = x;
  if (p.trains_fp8(at.product.w)) {
    const TensorView y = p.activations(x.rows(), used.end - used.begin);
    operand = operand_of(p, {x}, at.product.w);
    multiply_fp8(p, operand, at.product, y, used.begin, used.end);
    return y;
  }
  const TensorView y = p.activations(x.rows(), at.own ? used.end : 3 * H);
  Input input{x};
  if (w.input.quantise) {
    input = {p.narrow(x.rows(), H), w.input.dequantise};
    ops::convert(p.e.stream, {.x = x, .y = input.x, .scale = w.input.quantise});
  }
  // Packed matrices cannot be sliced, so values are computed too.
  if (at.own || !in_parts) {
    apply_linear(p, input, at.product, y);
  } else {
    apply_linear(p, input, at.product, 0, H, y.slice_cols(0, H));
    apply_linear(p, input, at.product, H, 3 * H, y.slice_cols(H, 3 * H));
  }
  return y.slice_cols(used.begin, used.end);
}

}  // namespace

DistanceTables distance_tables(const Pass& p, const DistanceParams& at, int64_t l, bool in_parts,
                               DistanceSaved* saved) {
  const int64_t longest = longest_of(p), H = p.s.hidden;
  DistanceSaved made;
  made.first = ops::distance_bucket(p.s.distances, 1 - longest);
  const int64_t end = ops::distance_bucket(p.s.distances, longest - 1) + 1;
  TensorView x = p.activations(end - made.first, H);
  ops::convert(p.e.stream, {.x = p.param(at.table).plain.slice_rows(made.first, end), .y = x});
  if (at.norm.gamma >= 0) x = norm(p, at.norm, {x}, {}, {}, saved != nullptr ? &made.norm : nullptr).x;
  if (const ops::Dropout drop = table_dropout(p, l); drop.on()) {
    const TensorView dropped = p.activations(x.rows(), H);
    ops::dropout_rows(p.e.stream, {.x = x, .y = dropped, .dropout = drop});
    x = dropped;
  }
  const TensorView rows = project(p, at, x, in_parts, made.input);
  const TensorView both = p.activations(2 * longest - 1, rows.cols());
  ops::distance_rows(p.e.stream, {.x = rows, .y = both, .buckets = p.s.distances, .first = made.first});
  made.tables = parts_of(p, at, both);
  if (saved != nullptr) *saved = made;
  return made.tables;
}

DistanceTables allocate_gradients(const Pass& p, const DistanceTables& tables) {
  const bool queries = static_cast<bool>(tables.queries), keys = static_cast<bool>(tables.keys);
  const int64_t H = p.s.hidden, rows = queries ? tables.queries.rows() : tables.keys.rows();
  const TensorView both = p.f32({rows, queries && keys ? 2 * H : H});
  return {.queries = queries ? both.slice_cols(0, H) : TensorView(),
          .keys = keys ? both.slice_cols(both.cols() - H, both.cols()) : TensorView()};
}

void distance_backward(const Pass& p, const DistanceParams& at, int64_t l, const DistanceSaved& saved,
                       const DistanceTables& grad) {
  const int64_t H = p.s.hidden, end = ops::distance_bucket(p.s.distances, longest_of(p) - 1) + 1;
  const Range used = rows_in_use(p, at);
  const TensorView d_rows = p.activations(end - saved.first, used.end - used.begin);
  const DistanceTables d_parts = parts_of(p, at, d_rows);
  const auto fold = [&](const TensorView& d_y, const TensorView& d_x) {
    if (d_y)
      ops::distance_rows_grad(p.e.stream, {.d_y = d_y, .d_x = d_x, .buckets = p.s.distances, .first = saved.first});
  };
  fold(grad.queries, d_parts.queries);
  fold(grad.keys, d_parts.keys);
  TensorView d_x = p.activations(d_rows.rows(), H);
  linear_backward(p, saved.input, at.product, used.begin, used.end, d_rows, d_x, ops::GradWrite::overwrite);
  const TensorView& d_table = p.param(at.table).grad;
  if (!d_table) return;  // a frozen table has a frozen norm
  if (const ops::Dropout drop = table_dropout(p, l); drop.on())
    ops::dropout_rows(p.e.stream, {.x = d_x, .y = d_x, .dropout = drop});
  if (at.norm.gamma >= 0) d_x = norm_backward(p, at.norm, saved.norm, {}, d_x).residual;
  ops::accumulate(p.e.stream, {.x = d_x, .y = d_table.slice_rows(saved.first, end)});
}

}  // namespace brim::model
