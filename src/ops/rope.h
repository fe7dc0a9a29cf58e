// SPDX-License-Identifier: Apache-2.0
// rope: rotary position embeddings. Dims j and D/2 + j of every head of a row are rotated in place by the angle
// position * theta^(-2j/D). Angles are products of two fp32 numbers, as in transformers: at position 8,000 a different
// rounding would give a different angle.
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

constexpr int64_t kRopeMaxHeadSize = 128;

struct RopeArgs {
  TensorView x;          // [T, heads * D], strided rows (queries and keys of a qkv). CPU: f32 or bf16
  TensorView positions;  // [T] i32
  int64_t head_size = 0;
  float theta = 10000;
  bool back = false;  // rotates backwards, for the gradient

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, positions}) f(v);
  }
};
void rope(device::Stream& stream, const RopeArgs& args);

// Radians per position of each pair of dims.
struct RopeFrequencies {
  float of[kRopeMaxHeadSize / 2];
};
RopeFrequencies rope_frequencies(float theta, int64_t head_size);
// Size of a table of cosines and sines for all positions of sequences of up to S tokens.
constexpr int64_t rope_turns_bytes(int64_t S, int64_t head_size) {
  return S * head_size * static_cast<int64_t>(sizeof(float));
}

}  // namespace brim::ops
