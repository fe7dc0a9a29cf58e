// SPDX-License-Identifier: Apache-2.0
#include "model/adapter_weights.h"

#include <algorithm>

#include "base/error.h"
#include "hub/adapter.h"
#include "hub/model_files.h"
#include "model/weight_layout.h"
#include "model/weights.h"

namespace brim::model {

using device::DeviceKind;
using ops::Precision;
using tensor::DType;
using tensor::TensorView;

namespace {

constexpr int64_t kRankStep = 8;  // keeps rows of the products aligned

// Products are computed in the type of the activations, or in bf16 if the matrices of a CPU are narrow.
Precision product_precision(Precision precision, DeviceKind target) {
  if (target != DeviceKind::cpu) return head_precision(precision, target);
  return precision == Precision::fp32 || precision == Precision::tf32 ? Precision::fp32 : Precision::bf16;
}

struct ProductCutter {
  Cutter& slab;
  Precision precision;
  DeviceKind target;
  device::Isa isa;

  LowRank cut(const ParamSpec& spec, int64_t rank, int64_t width) const {
    LowRank low;
    low.width = width;
    low.precision = precision;
    if (rank == 0) return low;
    low.down = slab.cut_matrix(rank, spec.cols, {precision}, target, isa);
    if (spec.whole_scored) low.up = slab.cut_matrix(spec.rows, rank, {precision}, target, isa);
    if (spec.split > 0) {
      low.first = slab.cut_matrix(spec.split, rank, {precision}, target, isa);
      low.rest = slab.cut_matrix(spec.rows - spec.split, rank, {precision}, target, isa);
    }
    return low;
  }
};

bool is_adaptable(const ParamSpec& spec) {
  return spec.kind == ParamKind::matrix && !spec.head && spec.rows > 0 && spec.inner == 0;
}

// Rows of a product, from row `first` of `values` [*,w.K].
void fill_product(const std::vector<float>& values, int64_t first, const ops::LinearWeight& w, DeviceKind target) {
  if (w.N == 0) return;
  const float* const from = values.data() + first * w.K;
  if (target == DeviceKind::cpu)
    linear_pack(TensorView(const_cast<float*>(from), DType::f32, {w.N, w.K}), {}, w.precision, w.isa, w.data.data,
                nullptr);
  else
    convert_elements(from, DType::f32, w.data.data, w.data.dtype, w.N * w.K);
}

// The matrices of all tensors of a parameter, stacked: A by rows, and B as blocks on a diagonal, with the scale.
void fill_products(const hub::Adapter& adapter, const hub::WeightSource& source, const ParamSpec& spec,
                   const LowRank& low, DeviceKind target) {
  const int64_t rank = low.down.N, part = spec.rows / static_cast<int64_t>(spec.names.size());
  std::vector<float> down(static_cast<size_t>(rank * spec.cols)), up(static_cast<size_t>(spec.rows * rank));
  int64_t row = 0, column = 0;
  for (const std::string& name : spec.names) {
    if (const std::optional<hub::Adapter::Product> product = adapter.product(stored_name(source, name))) {
      std::copy(product->a.begin(), product->a.end(), down.begin() + column * spec.cols);
      for (int64_t n = 0; n < part; ++n)
        for (int64_t r = 0; r < product->rank; ++r)
          up[static_cast<size_t>((row + n) * rank + column + r)] =
              product->scale * product->b[static_cast<size_t>(n * product->rank + r)];
      column += product->rank;
    }
    row += part;
  }
  fill_product(down, 0, low.down, target);
  fill_product(up, 0, low.up, target);
  fill_product(up, 0, low.first, target);
  fill_product(up, spec.split, low.rest, target);
}

void fill_head(const hub::WeightSource& source, const ParamSpec& spec, const Param& p, DeviceKind target) {
  const auto stored = StoredParam::find(source, spec);
  if (!stored)
    fail(ErrorCode::bad_model, "{}: no tensor {}: the classification head is missing", source.where(), spec.names[0]);
  MatrixBuffer buffer(4 * spec.elements());
  if (p.plain) stored->read_as(0, stored->elements(), p.plain.data, p.plain.dtype);
  if (p.matrix.N > 0) fill_matrix(*stored, 0, p.matrix, target, buffer);
}

}  // namespace

std::optional<AdapterRanks> adapter_ranks(const hub::WeightSource& adapted, const ModelShape& shape) {
  const hub::Adapter* adapter = adapted.adapter();
  if (adapter == nullptr) return AdapterRanks();
  const std::set<std::string> changed = adapter->changed();
  AdapterRanks ranks;
  for (const ParamSpec& spec : model_params(shape)) {
    int64_t& rank = ranks.emplace_back(0);
    if (spec.head) continue;
    for (const std::string& name : spec.names) {
      const std::string stored = stored_name(adapted, name);
      if (spec.rows == 0 || !changed.contains(stored)) continue;
      const std::optional<int64_t> own = adapter->rank_of(stored);
      if (!own || !is_adaptable(spec)) return std::nullopt;
      rank += *own;
    }
    rank = (rank + kRankStep - 1) / kRankStep * kRankStep;
  }
  return ranks;
}

int64_t adapter_width(const AdapterRanks& ranks) {
  return ranks.empty() ? 0 : *std::max_element(ranks.begin(), ranks.end());
}

AdapterLayout layout_adapter(const ModelShape& shape, Precision precision, DeviceKind target, device::Isa isa,
                             const AdapterRanks& ranks, void* base) {
  Cutter slab(base);
  const ProductCutter products{slab, product_precision(precision, target), target, isa};
  const DType activation = activation_type(precision, target);
  AdapterLayout layout;
  for (const ParamSpec& spec : model_params(shape)) {
    const size_t index = layout.params.size();
    Param& p = layout.params.emplace_back();
    if (spec.rows == 0) continue;
    if (is_adaptable(spec) && shape.adapter_width > 0)
      p.low_rank = products.cut(spec, ranks.empty() ? 0 : ranks[index], shape.adapter_width);
    if (!spec.head) continue;
    if (spec.kind == ParamKind::matrix)
      p.matrix = slab.cut_matrix(spec.rows, spec.cols, {head_precision(precision, target)}, target, isa);
    else
      p.plain = spec.cols > 0 ? slab.cut(activation, {spec.rows, spec.cols}) : slab.cut(activation, {spec.rows});
  }
  layout.bytes = slab.used();
  return layout;
}

void describe_adapter(const ModelShape& shape, Precision precision, DeviceKind target, device::Isa isa,
                      Params& params) {
  Cutter slab(nullptr);
  const ProductCutter products{slab, product_precision(precision, target), target, isa};
  const std::vector<ParamSpec> specs = model_params(shape);
  for (size_t i = 0; i < specs.size(); ++i)
    if (is_adaptable(specs[i])) params[i].low_rank = products.cut(specs[i], shape.adapter_width, shape.adapter_width);
}

std::unique_ptr<Model> Model::load_adapter(std::shared_ptr<const Model> encoder, const hub::ModelFiles& files,
                                           const ModelShape& shape, const AdapterRanks& ranks, device::Device& device,
                                           memory::PlannedMemory* planned) {
  auto model = std::unique_ptr<Model>(new Model);
  model->dir_ = files.dir;
  model->shape_ = shape;
  model->precision_ = encoder->precision_;
  model->device_kind_ = device.kind();
  hub::OpenModel source = hub::open_model(files);
  model->config_ = std::move(source.config);
  const auto layout_at = [&](void* base) {
    return layout_adapter(shape, encoder->precision_, device.kind(), device::best_isa(), ranks, base);
  };
  const int64_t bytes = layout_at(nullptr).bytes;
  model->slab_ = memory::Ledger::allocate(device, planned, memory::Tag::weights, "adapter", bytes);
  std::vector<std::byte> host(device.kind() == DeviceKind::cpu ? 0 : static_cast<size_t>(bytes));
  const AdapterLayout filled = layout_at(host.empty() ? model->slab_.data() : host.data());
  const std::vector<ParamSpec> specs = model_params(shape);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (filled.params[i].low_rank.down.N > 0)
      fill_products(*source.weights->adapter(), *source.weights, specs[i], filled.params[i].low_rank, device.kind());
    if (specs[i].head && specs[i].rows > 0) fill_head(*source.weights, specs[i], filled.params[i], device.kind());
  }
  source.weights->check_unchanged();
  if (!host.empty()) {
    const auto stream = device.make_stream();
    stream->copy(model->slab_.data(), host.data(), host.size());
    stream->synchronize();
  }
  AdapterLayout own = layout_at(model->slab_.data());
  model->layout_.bytes = bytes;
  model->layout_.params = encoder->layout_.params;
  BRIM_CHECK(own.params.size() == specs.size() && model->layout_.params.size() == specs.size(),
             "{} parameters, the encoder has {}", specs.size(), model->layout_.params.size());
  for (size_t i = 0; i < specs.size(); ++i) {
    Param& p = model->layout_.params[i];
    if (specs[i].head)
      p = own.params[i];
    else
      p.low_rank = own.params[i].low_rank;
  }
  model->encoder_ = std::move(encoder);
  return model;
}

}  // namespace brim::model
