// SPDX-License-Identifier: Apache-2.0
// Formats of matrices in int8 models on a CPU: which of them are int8, centred or bf16. The arithmetic is tested in
// src/ops.
#include <gtest/gtest.h>

#include "model/golden_models.h"
#include "model/weights.h"

namespace brim::model {

using device::DeviceKind;
using device::Isa;
using ops::Precision;

namespace {

ModelShape shape_of_width(int64_t hidden, int64_t classes) {
  ModelShape s;
  s.layers = 4;
  s.hidden = hidden;
  s.heads = 2;
  s.ffn = 4 * hidden;
  s.vocab = s.positions = 64;
  s.sequence_classes = classes;
  return s;
}

struct Count {
  int bf16 = 0, centred = 0, symmetric = 0;
  bool operator==(const Count&) const = default;
};
Count count_formats(const ModelShape& s, Isa isa) {
  Count count;
  const auto specs = model_params(s);
  const Params params = describe_weights(s, Precision::int8, DeviceKind::cpu, isa);
  for (size_t i = 0; i < specs.size(); ++i) {
    if (specs[i].layer < 0 || specs[i].kind != ParamKind::matrix) continue;
    for (const ops::LinearWeight* m : {&params[i].matrix, &params[i].first, &params[i].rest}) {
      if (m->N == 0) continue;
      EXPECT_TRUE(m->precision == Precision::int8 || !m->total);
      EXPECT_EQ(static_cast<bool>(m->scale), m->precision == Precision::int8);
      ++(m->precision == Precision::bf16 ? count.bf16 : m->total ? count.centred : count.symmetric);
    }
  }
  return count;
}

TEST(Int8, ClassifiersUseSymmetricProductsOnly) {
  for (const int64_t hidden : {384, 768})
    for (const Isa isa : device::supported_isas())
      EXPECT_EQ(count_formats(shape_of_width(hidden, 3), isa), (Count{0, 0, 4 * 4 + 1})) << hidden;
}

// Four layers with four matrices; the last qkv is also stored in two parts. In narrow models, only the last matrix of
// the last two layers stays in int8 if the CPU has bf16 matrix instructions.
TEST(Int8, ModelsOfVectorsUseMorePreciseProducts) {
  for (const Isa isa : device::supported_isas()) {
    SCOPED_TRACE(isa_name(isa));
    const bool multiplies_bf16 = isa == Isa::amx || isa == Isa::neon_mm;
    EXPECT_EQ(count_formats(shape_of_width(768, 0), isa), (Count{0, 17, 0}));
    EXPECT_EQ(count_formats(shape_of_width(384, 0), isa), (multiplies_bf16 ? Count{15, 2, 0} : Count{0, 17, 0}));
  }
}

// Adapters with heads use the weights of a base model without one.
TEST(Int8, SharedWeightsDoNotDependOnTheHead) {
  ModelShape base = shape_of_width(384, 0), adapter = shape_of_width(384, 3);
  base.shares_weights = adapter.shares_weights = true;
  for (const Isa isa : device::supported_isas())
    EXPECT_EQ(count_formats(base, isa), count_formats(adapter, isa)) << isa_name(isa);
}

TEST(Int8, OtherPrecisionsAndDevicesAreUnchanged) {
  const ModelShape s = shape_of_width(384, 0);
  for (const ParamSpec& spec : model_params(s)) {
    if (spec.kind != ParamKind::matrix || spec.rows == 0) continue;
    for (const Precision precision : {Precision::fp32, Precision::bf16}) {
      const MatrixFormat format = matrix_format(spec, s, precision, DeviceKind::cpu, Isa::generic);
      EXPECT_EQ(format.precision, matrix_precision(spec, precision, DeviceKind::cpu));
      EXPECT_FALSE(format.centred);
    }
    EXPECT_FALSE(matrix_format(spec, s, Precision::int8, DeviceKind::cuda, Isa::generic).centred);
  }
}

// On a GPU, products of layers are int8 if their dimensions are supported; everything else is fp16.
TEST(Int8, GpusMultiplyLayersInInt8) {
  for (const auto& [hidden, precision] : {std::pair{int64_t{384}, Precision::int8}, {200, Precision::fp16}}) {
    const ModelShape s = shape_of_width(hidden, 3);
    const std::vector<ParamSpec> specs = model_params(s);
    const Params params = describe_weights(s, Precision::int8, DeviceKind::cuda, Isa::generic);
    for (size_t i = 0; i < specs.size(); ++i) {
      if (specs[i].kind != ParamKind::matrix || specs[i].rows == 0) continue;
      const ops::LinearWeight& w = params[i].first.N > 0 ? params[i].rest : params[i].matrix;
      const bool layer = specs[i].layer >= 0;
      EXPECT_EQ(w.precision, layer ? precision : Precision::fp16) << specs[i].names[0];
      EXPECT_EQ(w.data.dtype, layer && hidden == 384 ? tensor::DType::i8 : tensor::DType::f16) << specs[i].names[0];
      EXPECT_EQ(w.scale ? w.scale.elements() : 0, layer && hidden == 384 ? w.N : 0) << specs[i].names[0];
    }
  }
}

}  // namespace
}  // namespace brim::model
