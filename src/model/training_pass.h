// SPDX-License-Identifier: Apache-2.0
// Forward and backward pass of a packed micro-batch, on any backend. The recompute level determines how many tensors
// the forward pass keeps for the backward pass. On a null stream the same code records the required memory.
#pragma once
#include <optional>
#include <string_view>

#include "model/pass.h"

namespace brim::model {

class Architecture;

// Tensors that are recomputed in the backward pass instead of kept.
enum class Recompute : uint8_t {
  none,       // keep everything
  half,       // selective, for every second layer
  selective,  // feed-forward activations (and norm results if pre-norm): cheap to recompute, a third of the memory
  full,       // keep only each layer's input
};
inline constexpr Recompute kRecomputeLevels[] = {Recompute::none, Recompute::half, Recompute::selective,
                                                 Recompute::full};
const char* recompute_name(Recompute level);
std::optional<Recompute> recompute_from_name(std::string_view name);

// Targets of a micro-batch: one of the two, or both with two heads.
struct TrainTargets {
  tensor::TensorView sequence;  // [B] i32 class, -100 ignored, -101 unlabelled; or [B,K] f32: multi-label or regression
  tensor::TensorView token;     // [T] i32 class, -100 ignored
  tensor::TensorView teacher_sequence;  // [B,K] f32 mixed logits of the teachers, distillation only
  tensor::TensorView class_weights;     // [K] f32 or empty
};

struct LossSettings {
  float label_smoothing = 0;
  float temperature = 1, hard_weight = 1, soft_weight = 0;  // distillation
  float sequence_weight = 1, token_weight = 1;              // two heads
  // Gradients are those of loss * scale / samples: real samples (and tokens) of the global batch, and the loss scale.
  float sequence_scale = 1, token_scale = 1;
};

struct TrainPass {
  const Architecture& architecture;
  const Params& params;
  Recompute recompute = Recompute::none;
  LossSettings loss;
  Training training;
};

struct TrainResult {
  tensor::TensorView loss;             // [2] f32: sum (not mean) of the sequence and token losses
  tensor::TensorView sequence_logits;  // [B,K] f32
  tensor::TensorView token_logits;     // [T,K] f32
};

// Runs one micro-batch forward and backward; accumulates gradients in params.grad.
TrainResult forward_backward(Exec& exec, const TrainPass& pass, const ops::BatchView& batch,
                             const TrainTargets& targets);

}  // namespace brim::model
