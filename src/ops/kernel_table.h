// SPDX-License-Identifier: Apache-2.0
// One entry per op, one constant table per backend. A test checks both for empty entries.
#pragma once
#include "ops/adamw.h"
#include "ops/amax.h"
#include "ops/attention.h"
#include "ops/basis_fold.h"
#include "ops/distance_rows.h"
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
#include "ops/unfold.h"
#include "ops/window_gather.h"
#include "ops/word_scores.h"

namespace brim::ops {

// X(op, Args, zone): the list of all ops. The zone names the op on timelines, and its kind (base/timeline.h) selects
// the rate by which plans predict its time.
// clang-format off
#define BRIM_OPS(X) \
  X(linear, LinearArgs, linear) \
  X(attention, AttentionArgs, attention) \
  X(layer_norm, LayerNormArgs, layer_norm) \
  X(embedding, EmbeddingArgs, embedding) \
  X(gather_rows, GatherRowsArgs, gather_rows) \
  X(pool_mean, PoolMeanArgs, pool) \
  X(softmax, SoftmaxArgs, softmax) \
  X(convert, ConvertArgs, convert) \
  X(activate, ActivationArgs, gelu) \
  X(rope, RopeArgs, embedding) \
  X(glu, GluArgs, gelu) \
  X(linear_grad, LinearGradArgs, linear) \
  X(attention_grad, AttentionGradArgs, attention) \
  X(relative_bias, RelativeBiasArgs, attention) \
  X(relative_bias_grad, RelativeBiasGradArgs, attention) \
  X(distance_rows, DistanceRowsArgs, attention) \
  X(distance_rows_grad, DistanceRowsGradArgs, attention) \
  X(accumulate, AccumulateArgs, attention) \
  X(unfold, UnfoldArgs, embedding) \
  X(unfold_grad, UnfoldGradArgs, embedding) \
  X(layer_norm_grad, LayerNormGradArgs, layer_norm) \
  X(embedding_grad, EmbeddingGradArgs, embedding) \
  X(scatter_rows, ScatterRowsArgs, gather_rows) \
  X(pool_mean_grad, PoolMeanGradArgs, pool) \
  X(glu_grad, GluGradArgs, gelu) \
  X(activate_grad, ActivationGradArgs, gelu) \
  X(dropout_rows, DropoutArgs, dropout) \
  X(cross_entropy, CrossEntropyArgs, loss) \
  X(squared_error, SquaredErrorArgs, loss) \
  X(adamw, AdamWArgs, adamw) \
  X(set_step, SetStepArgs, adamw) \
  X(advance_step, AdvanceStepArgs, adamw) \
  X(grad_norm, GradNormArgs, grad_norm) \
  X(amax, AmaxArgs, convert) \
  X(fp8_scale, Fp8ScaleArgs, convert) \
  X(fp8_remember, Fp8RememberArgs, convert) \
  X(fp8_delayed_scale, Fp8DelayedScaleArgs, convert) \
  X(fp8_cast, Fp8CastArgs, convert) \
  X(fp8_cast_matrices, Fp8CastMatricesArgs, convert) \
  X(gather_tokens, GatherTokensArgs, gather_tokens) \
  X(window_gather, WindowGatherArgs, gather_rows) \
  X(lane_linear, LaneLinearArgs, linear) \
  X(lane_linear_grad, LaneLinearGradArgs, linear) \
  X(residual_step, ResidualStepArgs, convert) \
  X(residual_step_grad, ResidualStepGradArgs, convert) \
  X(basis_fold, BasisFoldArgs, convert) \
  X(basis_fold_grad, BasisFoldGradArgs, convert) \
  X(forecast_loss, ForecastLossArgs, loss) \
  X(pool_words, PoolWordsArgs, pool) \
  X(lstm_step, LstmStepArgs, gelu) \
  X(span_scores, SpanScoresArgs, softmax) \
  X(word_pairs, WordPairsArgs, gelu) \
  X(pair_scores, PairScoresArgs, softmax)
// clang-format on

template <class Args>
using Kernel = void (*)(device::Stream&, const Args&);

struct KernelTable {
#define BRIM_OP_ENTRY(op, Args, zone) Kernel<Args> op;
  BRIM_OPS(BRIM_OP_ENTRY)
#undef BRIM_OP_ENTRY
};

// Each backend defines op_cpu / op_cuda with these signatures. An op is known by the type of its arguments.
#define BRIM_OP_DECLARE(op, Args, zone)                              \
  void op##_cpu(device::Stream&, const Args&);                       \
  void op##_cuda(device::Stream&, const Args&);                      \
  template <>                                                        \
  struct OpOf<Args> {                                                \
    static constexpr Zone kZone = Zone::zone;                        \
    static_assert(is_op(kZone));                                     \
    static auto entry(const KernelTable& table) { return table.op; } \
  };
BRIM_OPS(BRIM_OP_DECLARE)
#undef BRIM_OP_DECLARE

const KernelTable& cpu_kernels();
const KernelTable* cuda_kernels();  // null if the build has no CUDA backend

}  // namespace brim::ops
