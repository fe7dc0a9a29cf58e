// SPDX-License-Identifier: Apache-2.0
// fp8 training on the CPU: casts, scales, selected products, kept tensors, and bitwise reproducible steps. GPU kernels
// are compared with the same ops individually (ops/cuda) and as a whole in train_cuda_test.
#include <gtest/gtest.h>

#include <fstream>

#include "base/test_files.h"
#include "model/fp8.h"
#include "model/golden_fp8.h"
#include "ops/fp8_code.h"

namespace brim::model {

using ops::Precision;
using tensor::DType;

namespace {

TEST(Fp8Training, GradientsMatchFp32UpToRounding) {
  const auto device = device::open_cpu_device(1);
  double worst = 0;
  for (const std::string& name : golden_names("gradients.json")) {
    SCOPED_TRACE(name);
    if (fp8_matrices(read_shape(golden_models() / name)) > 0)
      worst = std::max(worst, expect_fp8_gradients(*device, name, 0));
    else
      EXPECT_EQ(run_in(Precision::fp32, name, Recompute::none).grads,
                run_in(Precision::fp8, name, Recompute::none).grads)
          << "no product is in fp8";
  }
  RecordProperty("worst_share_of_the_bound", std::to_string(worst));
  EXPECT_GT(worst, 0.3) << "the bound is too loose to detect errors";
}

// Recomputed values have the same codes and the same dropout mask.
TEST(Fp8Training, RecomputeDoesNotChangeABit) {
  for (const char* name : {"bert_sequence", "bert_token", "albert_groups", "electra_sequence", "mpnet_head64",
                           "modernbert_sequence", "modernbert_mean", "modernbert_token"})
    for (const float dropout : {0.0f, 0.3f}) {
      if (dropout == 0 && std::string(name) != "bert_sequence") continue;  // differs in only one op
      SCOPED_TRACE(name);
      const Fp8Run kept = run_in(Precision::fp8, name, Recompute::none, 1, dropout);
      for (const Recompute level : {Recompute::half, Recompute::selective, Recompute::full}) {
        const Fp8Run made = run_in(Precision::fp8, name, level, 1, dropout);
        EXPECT_EQ(kept.loss, made.loss) << recompute_name(level);
        EXPECT_EQ(kept.grads, made.grads) << recompute_name(level);
      }
    }
}

// All micro-batches of a step use the same scales, so a row's codes do not depend on its micro-batch.
TEST(Fp8Training, MicroBatchesGiveTheSameGradients) {
  for (const char* name : {"bert_sequence", "modernbert_token"}) {
    const Fp8Run whole = run_in(Precision::fp8, name, Recompute::none),
                 parts = run_in(Precision::fp8, name, Recompute::none, 3);
    for (size_t p = 0; p < whole.grads.size(); ++p) {
      EXPECT_LE(norm_of(difference(parts.grads[p], whole.grads[p])), 1e-5 * norm_of(whole.grads[p]) + 1e-6)
          << name << ", parameter " << p;
    }
  }
}

// Only encoder matrices whose dimensions are multiples of 16 use fp8; the others are unchanged.
TEST(Fp8Training, UnsupportedWidthsStayWide) {
  struct Case {
    const char* name;
    int64_t matrices;
  };
  for (const auto& [name, matrices] : {Case{"bert_sequence", 8},
                                       {"distilbert_odd", 0},
                                       {"mpnet_head64", 4},
                                       {"modernbert_token", 12},
                                       {"albert_sequence", 5}})
    EXPECT_EQ(fp8_matrices(read_shape(golden_models() / name)), matrices) << name;
  const ModelShape shape = read_shape(golden_models() / "mpnet_head64");
  const auto specs = model_params(shape);
  const Params params = describe_train_params(shape, Precision::fp8, device::DeviceKind::cuda, device::Isa::generic);
  for (size_t i = 0; i < specs.size(); ++i) {
    EXPECT_EQ(static_cast<bool>(params[i].fp8), trains_in_fp8(specs[i]));
    if (specs[i].kind != ParamKind::matrix || specs[i].rows == 0) continue;
    EXPECT_EQ(params[i].matrix.precision, Precision::bf16) << "used by evaluations";
    if (!params[i].fp8) continue;
    EXPECT_EQ(params[i].fp8.rows.shape_text(),
              tensor::TensorView(params[i].fp8.rows.data, DType::f8e4m3, {specs[i].rows, specs[i].cols}).shape_text());
    EXPECT_EQ(
        params[i].fp8.columns.shape_text(),
        tensor::TensorView(params[i].fp8.columns.data, DType::f8e4m3, {specs[i].cols, specs[i].rows}).shape_text());
  }
}

// The state includes copies and scales; a pass keeps less than in bf16, because its backward reads bytes.
TEST(Fp8Training, CountsMemoryAndKeepsLess) {
  ModelShape shape = read_shape(golden_models() / "roberta_sequence");
  shape.layers = 12;
  shape.hidden = 768;
  shape.ffn = 3072;
  shape.heads = 12;
  const auto bytes = [&](Precision precision) {
    return train_state_bytes(shape, precision, Optimizer::adamw, Moments::device, device::DeviceKind::cuda,
                             device::Isa::generic);
  };
  const memory::TagBytes wide = bytes(Precision::bf16), narrow = bytes(Precision::fp8);
  int64_t elements = 0, matrices = 0;
  for (const ParamSpec& spec : model_params(shape))
    if (trains_in_fp8(spec)) {
      elements += spec.elements();
      ++matrices;
    }
  EXPECT_EQ(matrices, 48);
  EXPECT_EQ(narrow[memory::Tag::weights] - wide[memory::Tag::weights], 2 * elements);
  const int64_t scales = narrow[memory::Tag::workspace] - wide[memory::Tag::workspace];
  // Largest value and scale of a matrix and its two sites, inverses four times as wide, sixteen steps of two sites.
  const int64_t needed = matrices * 4 * (2 + 4 + 4 + 8 + 2 * 16);
  EXPECT_GE(scales, needed);
  EXPECT_LE(scales, needed + 8 * 512);
  for (const memory::Tag same : {memory::Tag::master, memory::Tag::gradients, memory::Tag::optimizer})
    EXPECT_EQ(narrow[same], wide[same]);
  int64_t before = INT64_MAX;
  for (const Recompute level : kRecomputeLevels) {
    const auto arena = [&](Precision precision) {
      return plan_train_pass(shape, precision, level, device::DeviceKind::cuda, device::Isa::generic, 1,
                             {16384, 512, 128})
          .arena_bytes();
    };
    // 27 H per token and layer instead of 28 H without recomputation, 22 instead of 20 with selective recomputation.
    const double share = static_cast<double>(arena(Precision::fp8)) / static_cast<double>(arena(Precision::bf16));
    EXPECT_LT(share, level == Recompute::none ? 1.00 : 1.10) << recompute_name(level);
    EXPECT_LT(arena(Precision::fp8), before);
    before = arena(Precision::fp8);
  }
}

// Parameters, moments and the maxima of earlier steps are the complete state: a run restored from them continues bit
// for bit. Scales depend only on those maxima.
TEST(Fp8Training, RestoredStateContinuesBitForBit) {
  const std::string name = "bert_sequence";
  auto device = device::open_cpu_device(1);
  const auto step = [](GoldenTraining& training, int64_t number) {
    std::vector<size_t> rows;  // different rows and a different number each time
    for (size_t i = 0; i < 2 + static_cast<size_t>(number % 3); ++i)
      rows.push_back((static_cast<size_t>(number) * 3 + i) % training.sequences());
    const double scale = 1 / static_cast<double>(rows.size());
    training.begin_step(rows, scale);
    const double loss = training.pass(rows, Recompute::none, scale);
    StepSettings settings;
    settings.lr = 1e-3f;
    settings.step = number + 1;
    training.state().step(training.stream(), settings, 1);
    return loss;
  };
  GoldenTraining whole(*device, name, Precision::fp8);
  for (int64_t i = 0; i < 3; ++i) step(whole, i);
  const TempDir dir;
  const auto file = dir / "moments";
  std::vector<std::byte> copy;
  {
    std::ofstream out(file, std::ios::binary);
    for (const auto part : whole.state().moments_on_host(whole.stream(), copy))
      out.write(reinterpret_cast<const char*>(part.data()), static_cast<std::streamsize>(part.size()));
  }
  GoldenTraining rest(*device, name, Precision::fp8);
  EXPECT_TRUE(rest.state().needs_calibration());
  rest.state().upload(rest.stream(), whole.state().download(whole.stream()));
  rest.state().upload_moments(rest.stream(), MappedFile(file));
  EXPECT_FALSE(rest.state().needs_calibration());
  for (int64_t i = 3; i < 6; ++i) EXPECT_EQ(step(whole, i), step(rest, i)) << i;
  EXPECT_EQ(whole.state().download(whole.stream()), rest.state().download(rest.stream()));
}

// Weights are cast after every step, in both orientations, with a scale that fills e4m3's range.
TEST(Fp8Training, WeightsFollowTheMaster) {
  auto device = device::open_cpu_device(1);
  GoldenTraining training(*device, "bert_sequence", Precision::fp8);
  for (int64_t number = 0; number < 2; ++number) {
    for (const Param& p : training.state().params()) {
      if (!p.fp8) continue;
      const int64_t N = p.plain.rows(), K = p.plain.cols();
      float most = 0;
      for (int64_t i = 0; i < N * K; ++i) most = std::max(most, std::fabs(p.plain.as<float>()[i]));
      const float scale = *p.fp8.w.scale.as<float>();
      EXPECT_EQ(scale, ops::kFp8Largest / most);
      EXPECT_EQ(*p.fp8.w.inverse.as<float>(), 1 / scale);
      for (int64_t n = 0; n < N; ++n)
        for (int64_t k = 0; k < K; ++k) {
          const uint8_t code = ops::to_e4m3(p.plain.as<float>()[n * K + k] * scale);
          ASSERT_EQ(static_cast<const uint8_t*>(p.fp8.rows.data)[n * K + k], code);
          ASSERT_EQ(static_cast<const uint8_t*>(p.fp8.columns.data)[k * N + n], code);
        }
    }
    const auto rows = all_rows(training);
    training.begin_step(rows, 1);
    training.pass(rows, Recompute::none, 1);
    StepSettings settings;
    settings.lr = 0.05f;
    training.state().step(training.stream(), settings, 1);
  }
}

}  // namespace
}  // namespace brim::model
