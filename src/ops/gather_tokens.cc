// SPDX-License-Identifier: Apache-2.0
#include "ops/gather_tokens.h"

#include "ops/check.h"
#include "ops/kernel_table.h"

namespace brim::ops {

using tensor::DType;

Work gather_tokens_work(const GatherTokensArgs& a) {
  // Only the tokens of the batch are read from the set.
  return {0, static_cast<double>(2 * a.ids.bytes() + a.positions.bytes() + a.begins.bytes() + a.starts.bytes())};
}

void gather_tokens(device::Stream& stream, const GatherTokensArgs& a) {
  const int64_t T = a.ids.rows(), B = a.begins.rows();
  check_view("gather_tokens", "tokens", a.tokens, DType::i32, {a.tokens.rows()});
  check_view("gather_tokens", "begins", a.begins, DType::i64, {B});
  check_view("gather_tokens", "starts", a.starts, DType::i32, {B + 1});
  check_view("gather_tokens", "ids", a.ids, DType::i32, {T});
  check_view("gather_tokens", "positions", a.positions, DType::i32, {T});
  if (B == 0 || T == 0) return;
  dispatch(stream, a, gather_tokens_work(a));
}

}  // namespace brim::ops
