// SPDX-License-Identifier: Apache-2.0
#include "model/params.h"

#include "model/architecture.h"
#include "model/fp8.h"
#include "model/weights.h"
#include "ops/int8.h"

namespace brim::model {

using ops::Precision;

std::vector<ParamSpec> model_params(const ModelShape& shape) { return make_architecture(shape)->params(); }

std::vector<size_t> params_of_layer(const std::vector<ParamSpec>& params, int64_t l) {
  std::vector<size_t> indices;
  for (size_t i = 0; i < params.size(); ++i)
    if (params[i].layer == l) indices.push_back(i);
  return indices;
}

namespace {

// On a GPU: matrices of layers that int8 files have too.
bool scores_in_int8(const ParamSpec& spec) {
  return spec.int8 && (spec.layer >= 0 || spec.group >= 0) && ops::int8_takes(spec.rows, spec.cols) &&
         spec.split % ops::kInt8Multiple == 0;
}

}  // namespace

Precision matrix_precision(const ParamSpec& spec, Precision precision, device::DeviceKind target) {
  if (spec.head) return head_precision(precision, target);
  if (precision == Precision::int8 && target != device::DeviceKind::cpu)
    return scores_in_int8(spec) ? precision : head_precision(precision, target);
  if (precision != Precision::fp8) return precision;
  return spec.input.kind != InputBound::Kind::none && fp8_takes(spec.rows, spec.cols) ? precision : Precision::bf16;
}

namespace {

// Up to this width, int8 products take little less time than bf16 ones on CPUs with bf16 matrix instructions: packing
// and activations dominate.
constexpr int64_t kNarrow = 512;

bool multiplies_bf16(device::Isa isa) { return isa == device::Isa::amx || isa == device::Isa::neon_mm; }

}  // namespace

MatrixFormat matrix_format(const ParamSpec& spec, const ModelShape& shape, Precision precision,
                           device::DeviceKind target, device::Isa isa) {
  const Precision own = matrix_precision(spec, precision, target);
  const bool gives_vectors = shape.sequence_classes == 0 && shape.token_classes == 0 && !shape.shares_weights;
  if (own != Precision::int8 || target != device::DeviceKind::cpu || !gives_vectors) return {own};
  const bool early = spec.layer >= 0 && 2 * spec.layer < shape.layers;  // their errors pass through more layers
  if (multiplies_bf16(isa) && shape.hidden <= kNarrow && (spec.cols <= kNarrow || early)) return {Precision::bf16};
  return {own, true};
}

bool trains_in_fp8(const ParamSpec& spec) {
  return spec.kind == ParamKind::matrix && !spec.head && spec.rows > 0 && fp8_takes(spec.rows, spec.cols) &&
         spec.split % 16 == 0;
}

Precision pass_precision(Precision precision, device::DeviceKind target) {
  if (precision != Precision::fp8) return precision;
  return target == device::DeviceKind::cpu ? Precision::fp32 : Precision::bf16;
}

int64_t param_count(const ModelShape& shape) {
  int64_t n = 0;
  for (const auto& p : model_params(shape)) n += p.elements();
  return n;
}

}  // namespace brim::model
