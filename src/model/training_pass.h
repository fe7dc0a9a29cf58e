// SPDX-License-Identifier: Apache-2.0
// Forward and backward pass of a micro-batch, packed, on any backend. The forward keeps what the backward needs; how
// much it keeps is the recompute level. On a null stream the same code records the memory.
#pragma once
#include <optional>
#include <string_view>

#include "model/pass.h"

namespace brim::model {

class Architecture;

// What is not kept from the forward pass but computed again before it is needed.
enum class Recompute : uint8_t {
  none,       // everything is kept
  half,       // of every second layer what selective makes again of each
  selective,  // feed-forward activations (and, pre-norm, norms' results): cheap to redo, a third of the bytes
  full,       // only each layer's input
};
inline constexpr Recompute kRecomputeLevels[] = {Recompute::none, Recompute::half, Recompute::selective,
                                                 Recompute::full};
const char* recompute_name(Recompute level);
std::optional<Recompute> recompute_from_name(std::string_view name);

// Sequences' targets; one of the two, or both with two heads.
struct TrainTargets {
  tensor::TensorView sequence;  // [B] i32 class, -100 ignored, -101 no label; or [B,K] f32: several labels, numbers
  tensor::TensorView token;     // [T] i32 class, -100 ignored
  tensor::TensorView teacher_sequence;  // [n*B,K] f32 logits of n teachers, distillation only
  tensor::TensorView class_weights;     // [K] f32 or empty
};

struct LossSettings {
  float label_smoothing = 0;
  float temperature = 1, hard_weight = 1, soft_weight = 0;  // distillation
  float sequence_weight = 1, token_weight = 1;              // two heads
  // Gradients are of loss * scale / samples: the global batch's real samples (and tokens), and the loss scale.
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
  tensor::TensorView loss;             // [2] f32: summed (not averaged) sequence and token loss of this micro-batch
  tensor::TensorView sequence_logits;  // [B,K] f32
  tensor::TensorView token_logits;     // [T,K] f32
};

// One micro-batch forward and backward; gradients are added to params.grad.
TrainResult forward_backward(Exec& exec, const TrainPass& pass, const ops::BatchView& batch,
                             const TrainTargets& targets);

}  // namespace brim::model
