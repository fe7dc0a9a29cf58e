// SPDX-License-Identifier: Apache-2.0
#include "model/state_layout.h"

#include <algorithm>

#include "memory/placement.h"
#include "model/weights.h"
#include "ops/amax.h"
#include "ops/fp8_cast.h"
#include "ops/rows.h"

namespace brim::model {

using device::DeviceKind;
using device::Isa;
using memory::Tag;
using ops::LinearWeight;
using ops::Precision;
using tensor::DType;
using tensor::TensorView;

namespace {

constexpr int64_t kSlabAlignElements = 64;  // 256 bytes of f32, 128 of bf16: keeps vector loads aligned in every slab

int64_t align_elements(int64_t n) { return (n + kSlabAlignElements - 1) / kSlabAlignElements * kSlabAlignElements; }

SlabLayout::Range range_of(const ParamSpec& p) {
  if (p.frozen) return SlabLayout::ranges;
  if (p.kind == ParamKind::embedding) return SlabLayout::embeddings;
  return p.kind == ParamKind::matrix ? SlabLayout::matrices : SlabLayout::undecayed;
}

bool is_half(DType t) { return t == DType::bf16 || t == DType::f16; }

// Compute weights on the CPU: every matrix packed for its instruction set.
int64_t pack_layout(const SlabLayout& slab, Precision precision, Isa isa, void* base, Params& params) {
  char* at = base != nullptr ? static_cast<char*>(base) : reinterpret_cast<char*>(uintptr_t{1} << 40);
  int64_t used = 0;
  auto cut = [&](LinearWeight& w, int64_t N, int64_t K) {
    w.N = N;
    w.K = K;
    w.isa = isa;
    const int64_t bytes = linear_packed_bytes(N, K, w.precision, isa);
    w.data = TensorView(at + used, DType::u8, {bytes});
    used += memory::align_up(bytes);
  };
  for (size_t i = 0; i < slab.params.size(); ++i) {
    const ParamSpec& spec = slab.params[i];
    if (spec.kind != ParamKind::matrix || spec.rows == 0) continue;
    Param& p = params[i];
    p.matrix.precision = p.first.precision = p.rest.precision = matrix_precision(spec, precision, DeviceKind::cpu);
    if (spec.split > 0) {
      cut(p.first, spec.split, spec.cols);
      cut(p.rest, spec.rows - spec.split, spec.cols);
    }
    if (spec.whole_trained) cut(p.matrix, spec.rows, spec.cols);
  }
  return used;
}

TensorView param_view(const ParamSpec& p, char* base, int64_t offset, DType dtype) {
  void* at = base + offset * dtype_bytes(dtype);
  if (p.rows == 0) return {};
  return p.cols > 0 ? TensorView(at, dtype, {p.rows, p.cols}) : TensorView(at, dtype, {p.rows});
}

// Both orientations of every matrix in e4m3, one after another; sets the params' views into `codes` and the table.
int64_t fp8_layout(const SlabLayout& layout, const std::vector<size_t>& indices, char* codes, const Fp8Table& table,
                   Params& params) {
  int64_t used = 0;
  const auto cut = [&](int64_t rows, int64_t cols) {
    const TensorView v(codes + used, DType::f8e4m3, {rows, cols});
    used += memory::align_up(v.bytes());
    return v;
  };
  const auto matrices = static_cast<int64_t>(indices.size());
  for (int64_t i = 0; i < matrices; ++i) {
    const ParamSpec& spec = layout.params[indices[static_cast<size_t>(i)]];
    Fp8Matrix& m = params[indices[static_cast<size_t>(i)]].fp8;
    m.rows = cut(spec.rows, spec.cols);
    m.columns = cut(spec.cols, spec.rows);
    const auto one = [](const TensorView& all, int64_t at) {
      return TensorView(all.slice_rows(at, at + 1).data, DType::f32, {1});
    };
    const auto site = [&](int64_t at) {
      return Fp8Site{one(table.scale, at), one(table.inverse, at), one(table.amax, at)};
    };
    m.w = {one(table.w_scale, i), one(table.w_inverse, i), one(table.w_amax, i)};
    m.x = site(i);
    m.d_y = site(matrices + i);
  }
  return used;
}

}  // namespace

std::vector<size_t> fp8_params_of(const SlabLayout& layout, Precision precision) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < layout.params.size() && precision == Precision::fp8; ++i)
    if (trains_in_fp8(layout.params[i])) indices.push_back(i);
  return indices;
}

Fp8Table fp8_table(int64_t matrices, char* base) {
  Fp8Table t;
  const auto cut = [&](TensorView& v, std::initializer_list<int64_t> dims) {
    v = TensorView(base + t.bytes, DType::f32, dims);
    t.bytes += memory::align_up(v.bytes());
  };
  if (matrices == 0) return t;
  constexpr int64_t kApart = ops::kFp8ScaleBytes / int64_t{sizeof(float)};
  for (TensorView* v : {&t.w_amax, &t.w_scale}) cut(*v, {matrices});
  for (TensorView* v : {&t.amax, &t.scale}) cut(*v, {2 * matrices});
  cut(t.w_inverse, {matrices, kApart});
  cut(t.inverse, {2 * matrices, kApart});
  for (TensorView* v : {&t.w_inverse, &t.inverse}) *v = v->slice_cols(0, 1);
  cut(t.history, {2 * matrices, ops::kFp8History});
  t.places = TensorView(base + t.bytes, DType::u8, {matrices * static_cast<int64_t>(sizeof(ops::Fp8MatrixPlace))});
  t.bytes += memory::align_up(t.places.bytes());
  return t;
}

Params make_params(const SlabLayout& layout, Precision asked, DeviceKind target, Isa isa, const StateBases& at) {
  const Precision precision = pass_precision(asked, target);
  const std::vector<size_t> in_fp8 = fp8_params_of(layout, asked);
  char *master = at.master, *grad = at.grad, *copy = at.copy, *packed = at.packed;
  Params params(layout.params.size());
  fp8_layout(layout, in_fp8, at.codes, fp8_table(static_cast<int64_t>(in_fp8.size()), at.table), params);
  const DType compute = activation_type(precision, target);
  char* plain = is_half(compute) ? copy : master;
  for (size_t i = 0; i < params.size(); ++i) {
    params[i].plain = param_view(layout.params[i], plain, layout.offset[i], compute);
    params[i].lora = layout.params[i].lora;
    if (!layout.params[i].frozen) params[i].grad = param_view(layout.params[i], grad, layout.offset[i], DType::f32);
  }
  if (target == DeviceKind::cpu) {
    pack_layout(layout, precision, isa, packed, params);
    return params;
  }
  for (size_t i = 0; i < params.size(); ++i) {
    const ParamSpec& spec = layout.params[i];
    Param& p = params[i];
    if (spec.kind != ParamKind::matrix || spec.rows == 0) continue;
    const auto rows = [&](int64_t begin, int64_t end) {
      LinearWeight w;
      w.N = end - begin;
      w.K = spec.cols;
      w.precision = matrix_precision(spec, precision, target);
      w.data = p.plain.slice_rows(begin, end);
      return w;
    };
    p.matrix = rows(0, spec.rows);
    if (spec.split == 0) continue;
    p.first = rows(0, spec.split);
    p.rest = rows(spec.split, spec.rows);
  }
  return params;
}

int64_t moment_blocks(const SlabLayout& layout) {
  return (layout.begin[SlabLayout::matrices + 1] - layout.begin[SlabLayout::matrices] + ops::kAdamBlock - 1) /
         ops::kAdamBlock;
}

int64_t moment_bytes(const SlabLayout& layout, Optimizer optimizer) {
  const int64_t matrices = layout.begin[1] - layout.begin[0], rest = layout.trained() - matrices;
  return optimizer == Optimizer::adamw_8bit ? memory::align_up(matrices) + rest * 4 : layout.trained() * 4;
}

int64_t window_elements(const SlabLayout& layout) {
  return std::min<int64_t>(int64_t{4} << 20, align_elements(layout.trained()));
}

SmallLayout small_layout(const ModelShape& shape, const SlabLayout& slab) {
  SmallLayout s{};
  s.constants = memory::kArenaAlignment / 4;
  s.factor = memory::kArenaAlignment / 2;
  s.class_weights = memory::kArenaAlignment;
  s.norm_scratch = s.class_weights + memory::align_up(std::max<int64_t>(1, shape.sequence_classes) * 4);
  s.bytes = s.norm_scratch + memory::align_up(ops::grad_norm_scratch_bytes(slab.trained()));
  return s;
}

StateLayout state_layout(const ModelShape& shape, const SlabLayout& slab, Precision asked, Optimizer optimizer,
                         Moments moments, DeviceKind target, Isa isa) {
  const Precision precision = pass_precision(asked, target);
  StateLayout layout;
  const auto cut = [&](StateLayout::Piece& piece, Tag tag, int64_t bytes) {
    piece = {layout.bytes.total(), bytes};
    layout.bytes[tag] += memory::align_up(bytes);
  };
  const DType compute = activation_type(precision, target);
  cut(layout.master, Tag::master, slab.trained() * 4);
  // Directly behind the master weights, so that offsets apply to both.
  if (!is_half(compute)) cut(layout.frozen, Tag::weights, (slab.elements() - slab.trained()) * 4);
  cut(layout.grad, Tag::gradients, slab.trained() * 4);
  if (target == DeviceKind::cpu) {
    Params nowhere(slab.params.size());
    cut(layout.packed, Tag::weights, pack_layout(slab, precision, isa, nullptr, nowhere));
  } else if (is_half(compute)) {
    cut(layout.copy, Tag::weights, slab.elements() * dtype_bytes(compute));
  }
  const std::vector<size_t> in_fp8 = fp8_params_of(slab, asked);
  {
    Params nowhere(slab.params.size());
    auto* anywhere = reinterpret_cast<char*>(uintptr_t{1} << 40);
    const Fp8Table table = fp8_table(static_cast<int64_t>(in_fp8.size()), anywhere);
    cut(layout.codes, Tag::weights, fp8_layout(slab, in_fp8, anywhere, table, nowhere));
    cut(layout.table, Tag::workspace, table.bytes);
  }
  if (moments == Moments::device) {
    cut(layout.m, Tag::optimizer, moment_bytes(slab, optimizer));
    cut(layout.v, Tag::optimizer, moment_bytes(slab, optimizer));
    if (optimizer == Optimizer::adamw_8bit) cut(layout.moment_scales, Tag::optimizer, 2 * moment_blocks(slab) * 4);
  } else {
    cut(layout.windows, Tag::optimizer, kWindows * 2 * window_elements(slab) * 4);
  }
  cut(layout.small, Tag::workspace, small_layout(shape, slab).bytes);
  return layout;
}

const char* optimizer_name(Optimizer optimizer) { return optimizer == Optimizer::adamw ? "adamw" : "adamw_8bit"; }

SlabLayout slab_layout(const ModelShape& shape) {
  SlabLayout layout;
  layout.params = model_params(shape);
  layout.offset.assign(layout.params.size(), 0);
  int64_t at = 0;
  for (int range = 0; range <= SlabLayout::ranges; ++range) {
    layout.begin[static_cast<size_t>(range)] = at;
    for (size_t i = 0; i < layout.params.size(); ++i)
      if (range_of(layout.params[i]) == range) {
        layout.offset[i] = at;
        at += align_elements(layout.params[i].elements());
      }
  }
  layout.all = at;
  return layout;
}

memory::TagBytes train_state_bytes(const ModelShape& shape, Precision precision, Optimizer optimizer, Moments moments,
                                   DeviceKind target, Isa isa) {
  return state_layout(shape, slab_layout(shape), precision, optimizer, moments, target, isa).bytes;
}

Params describe_train_params(const ModelShape& shape, Precision precision, DeviceKind target, Isa isa) {
  const SlabLayout layout = slab_layout(shape);
  auto fake = [](int region) { return reinterpret_cast<char*>(static_cast<uintptr_t>(region) << 38); };
  return make_params(layout, precision, target, isa, {fake(1), fake(2), fake(3), fake(4), fake(5), fake(6)});
}

}  // namespace brim::model
