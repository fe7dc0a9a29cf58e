// SPDX-License-Identifier: Apache-2.0
// One entry per op, one constant table per backend. A test checks both for empty entries.
#pragma once
#include "ops/adamw.h"
#include "ops/amax.h"
#include "ops/attention.h"
#include "ops/basis_fold.h"
#include "ops/embedding.h"
#include "ops/forecast_loss.h"
#include "ops/fp8_cast.h"
#include "ops/gather_tokens.h"
#include "ops/glu.h"
#include "ops/lane_linear.h"
#include "ops/layer_norm.h"
#include "ops/linear.h"
#include "ops/loss.h"
#include "ops/relative_bias.h"
#include "ops/residual_step.h"
#include "ops/rope.h"
#include "ops/rows.h"
#include "ops/window_gather.h"

namespace brim::ops {

// X(op, Args): the list of all ops.
// clang-format off
#define BRIM_OPS(X) \
  X(linear, LinearArgs) \
  X(attention, AttentionArgs) \
  X(layer_norm, LayerNormArgs) \
  X(embedding, EmbeddingArgs) \
  X(gather_rows, GatherRowsArgs) \
  X(pool_mean, PoolMeanArgs) \
  X(softmax, SoftmaxArgs) \
  X(convert, ConvertArgs) \
  X(activate, ActivationArgs) \
  X(rope, RopeArgs) \
  X(glu, GluArgs) \
  X(linear_grad, LinearGradArgs) \
  X(attention_grad, AttentionGradArgs) \
  X(relative_bias, RelativeBiasArgs) \
  X(relative_bias_grad, RelativeBiasGradArgs) \
  X(layer_norm_grad, LayerNormGradArgs) \
  X(embedding_grad, EmbeddingGradArgs) \
  X(scatter_rows, ScatterRowsArgs) \
  X(pool_mean_grad, PoolMeanGradArgs) \
  X(glu_grad, GluGradArgs) \
  X(activate_grad, ActivationGradArgs) \
  X(dropout_rows, DropoutArgs) \
  X(cross_entropy, CrossEntropyArgs) \
  X(squared_error, SquaredErrorArgs) \
  X(adamw, AdamWArgs) \
  X(set_step, SetStepArgs) \
  X(advance_step, AdvanceStepArgs) \
  X(grad_norm, GradNormArgs) \
  X(amax, AmaxArgs) \
  X(fp8_scale, Fp8ScaleArgs) \
  X(fp8_remember, Fp8RememberArgs) \
  X(fp8_delayed_scale, Fp8DelayedScaleArgs) \
  X(fp8_cast, Fp8CastArgs) \
  X(fp8_cast_matrices, Fp8CastMatricesArgs) \
  X(gather_tokens, GatherTokensArgs) \
  X(window_gather, WindowGatherArgs) \
  X(lane_linear, LaneLinearArgs) \
  X(lane_linear_grad, LaneLinearGradArgs) \
  X(residual_step, ResidualStepArgs) \
  X(residual_step_grad, ResidualStepGradArgs) \
  X(basis_fold, BasisFoldArgs) \
  X(basis_fold_grad, BasisFoldGradArgs) \
  X(forecast_loss, ForecastLossArgs)
// clang-format on

struct KernelTable {
#define BRIM_OP_ENTRY(op, Args) void (*op)(device::Stream&, const Args&);
  BRIM_OPS(BRIM_OP_ENTRY)
#undef BRIM_OP_ENTRY
};

// Each backend defines op_cpu / op_cuda with these signatures.
#define BRIM_OP_DECLARE(op, Args)              \
  void op##_cpu(device::Stream&, const Args&); \
  void op##_cuda(device::Stream&, const Args&);
BRIM_OPS(BRIM_OP_DECLARE)
#undef BRIM_OP_DECLARE

const KernelTable& cpu_kernels();
const KernelTable* cuda_kernels();  // null if the build has no CUDA backend

}  // namespace brim::ops
