// SPDX-License-Identifier: Apache-2.0
// Epilogue of a tile: scales, bias, activation, residual, rounding. Kernels leave the sums of a tile in a small buffer
// that stays in L1; reading it back costs less than one percent of the products and keeps activations and edge cases
// out of the micro-kernels.
#pragma once
#include "ops/gemm/gemm.h"
#include "ops/gemm/vec.h"

namespace brim::ops::gemm {
namespace {

template <Act kAct>
BRIM_INLINE F activate(F x) {
  if constexpr (kAct == Act::gelu) return gelu(x);
  if constexpr (kAct == Act::gelu_fast) return gelu_fast(x);
  if constexpr (kAct == Act::relu) return max(set1(0.0f), x);
  if constexpr (kAct == Act::tanh) return tanh(x);
  if constexpr (kAct == Act::gelu_tanh) return gelu_tanh(x);
  if constexpr (kAct == Act::quick_gelu) return quick_gelu(x);
  if constexpr (kAct == Act::silu) return silu(x);
  return x;
}

// One vector of sums of row `row` at column `col`; `lanes` is empty or a Tail.
template <Act kAct, bool kInt, bool kBf16, class... Lanes>
BRIM_INLINE void finish_vector(const Block& b, const void* acc, int64_t row, int64_t col, F row_scale, Lanes... lanes) {
  F v;
  if constexpr (kInt) {
    const auto* sums = static_cast<const int32_t*>(acc);
    v = b.b_sums != nullptr ? load_int_sub(sums, b.b_sums + col) : load_int(sums);
    v = mul(v, mul(row_scale, load(b.b_scale + col, lanes...)));
    if (b.a_centre != nullptr) v = fma(set1(b.a_centre[row]), load(b.b_total + col, lanes...), v);
  } else {
    v = load(static_cast<const float*>(acc));
  }
  if (b.bias != nullptr) v = add(v, load(b.bias + col, lanes...));
  v = activate<kAct>(v);
  if (b.residual != nullptr) v = add(v, load(b.residual + row * b.ld_residual + col, lanes...));
  if constexpr (kBf16) {
    store_bf16(static_cast<uint16_t*>(b.y) + row * b.ld_y + col, v, lanes...);
  } else {
    store(static_cast<float*>(b.y) + row * b.ld_y + col, v, lanes...);
  }
}

template <Act kAct, bool kInt, bool kBf16>
void finish_tile_of(const Block& b, const void* acc, int ld, int64_t row, int64_t col, int rows, int cols) {
  const int whole = cols / kLanes * kLanes;
  for (int r = 0; r < rows; ++r) {
    const char* at = static_cast<const char*>(acc) + static_cast<size_t>(r) * ld * 4;
    const F scale = kInt ? set1(b.a_scale[row + r]) : set1(0.0f);
    for (int c = 0; c < whole; c += kLanes) finish_vector<kAct, kInt, kBf16>(b, at + c * 4, row + r, col + c, scale);
    if (whole < cols)
      finish_vector<kAct, kInt, kBf16>(b, at + whole * 4, row + r, col + whole, scale, tail(cols - whole));
  }
}

// Passes act and the type of y as compile-time constants: fn.template operator()<kAct, kBf16>().
template <class Fn>
BRIM_INLINE void with_finish(const Block& b, Fn&& fn) {
  const auto typed = [&]<Act kAct>() {
    b.y_bf16 ? fn.template operator()<kAct, true>() : fn.template operator()<kAct, false>();
  };
  switch (b.act) {
    case Act::none:
      return typed.template operator()<Act::none>();
    case Act::gelu:
      return typed.template operator()<Act::gelu>();
    case Act::gelu_fast:
      return typed.template operator()<Act::gelu_fast>();
    case Act::relu:
      return typed.template operator()<Act::relu>();
    case Act::tanh:
      return typed.template operator()<Act::tanh>();
    case Act::gelu_tanh:
      return typed.template operator()<Act::gelu_tanh>();
    case Act::quick_gelu:
      return typed.template operator()<Act::quick_gelu>();
    case Act::silu:
      return typed.template operator()<Act::silu>();
  }
}

// Converts sums acc[rows][ld] (float, or int32 if kInt) of the tile at (row, col) to y.
template <bool kInt>
void finish_tile(const Block& b, const void* acc, int ld, int64_t row, int64_t col, int rows, int cols) {
  with_finish(b, [&]<Act kAct, bool kBf16>() { finish_tile_of<kAct, kInt, kBf16>(b, acc, ld, row, col, rows, cols); });
}

}  // namespace
}  // namespace brim::ops::gemm
