// SPDX-License-Identifier: Apache-2.0
// Gathers the ids and positions of a packed batch from the tokens of a whole data set on the device.
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

// ids[starts[b] + i] = tokens[begins[b] + i], positions[starts[b] + i] = position_offset + i. Padding ids are counted
// like other tokens: the caller copies the positions of a batch that contains any.
struct GatherTokensArgs {
  TensorView tokens;          // [N] i32: concatenated ids of all rows
  TensorView begins;          // [B] i64: start of each sequence in tokens
  TensorView starts;          // [B+1] i32: start of each sequence in the batch
  TensorView ids, positions;  // [T] i32, written
  int64_t position_offset = 0;
  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {tokens, begins, starts, ids, positions}) f(v);
  }
};
void gather_tokens(device::Stream& stream, const GatherTokensArgs& args);
Work gather_tokens_work(const GatherTokensArgs& args);

}  // namespace brim::ops
