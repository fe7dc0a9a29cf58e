// SPDX-License-Identifier: Apache-2.0
// A packed batch as seen by ops: T tokens of B sequences in one flat row, without padding.
#pragma once
#include <cstdint>

#include "tensor/tensor_view.h"

namespace brim::ops {

struct BatchView {
  int64_t T = 0;                 // packed tokens
  int64_t B = 0;                 // sequences
  int64_t S = 0;                 // longest sequence
  tensor::TensorView ids;        // [T] i32: word and token type (base/token.h)
  tensor::TensorView positions;  // [T] i32, rows of the position table (RoBERTa: from padding_idx + 1)
  tensor::TensorView starts;     // [B+1] i32: sequence b is rows starts[b] .. starts[b+1]
  tensor::TensorView order;      // [B] i32: sequences, longest first; the first n_long have more than kShortTokens
  int64_t n_long = 0;
};
// Sequences up to this length are processed by one warp, entirely in registers.
constexpr int64_t kShortTokens = 32;

}  // namespace brim::ops
