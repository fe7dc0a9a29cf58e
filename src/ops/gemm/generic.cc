// SPDX-License-Identifier: Apache-2.0
// Portable C++ kernels: tiles of 4 rows by 8 columns in arrays small enough for the compiler to keep in registers. bf16
// and int8 operands are rounded exactly as in the other kernels.
#include <cmath>

#include "ops/gemm/gemm.h"
#include "tensor/dtype.h"

namespace brim::ops::gemm {
namespace {

constexpr int kRows = 4, kPanel = 8;

float element(const Rows& rows, int64_t r, int64_t k) {
  const int64_t i = r * rows.ld + k;
  return rows.bf16 ? to_float(static_cast<const tensor::bf16_t*>(rows.x)[i]) : static_cast<const float*>(rows.x)[i];
}

void pack_rows_bf16(const Rows& rows, void* out, float*) {
  auto* a = static_cast<tensor::bf16_t*>(out) + rows.begin * rows.K;
  for (int64_t r = rows.begin; r < rows.end; ++r)
    for (int64_t k = 0; k < rows.K; ++k) *a++ = tensor::to_bf16(element(rows, r, k));
}

// Range of a row around its centre, as in rows.h.
void centred(const Rows& rows, int64_t r, float& centre, float& scale, float& inverse) {
  float high = 0, low = 0;
  for (int64_t k = 0; k < rows.K; ++k) {
    const float x = element(rows, r, k);
    if (x > high || x != x) high = x;
    if (x < low) low = x;
  }
  const bool finite = std::isfinite(high) && std::isfinite(low);
  const float half = 0.5f * high - 0.5f * low;
  centre = finite ? 0.5f * high + 0.5f * low : 0;
  scale = half / 127;
  inverse = finite && half > kLeastRange ? 127 / half : 0;
}

void pack_rows_int8(const Rows& rows, void* out, float* scale) {
  auto* a = static_cast<int8_t*>(out) + rows.begin * rows.K;
  for (int64_t r = rows.begin; r < rows.end; ++r) {
    float centre = 0, inverse = 0;
    if (rows.centre != nullptr) {
      centred(rows, r, centre, scale[r], inverse);
      rows.centre[r] = centre;
    } else {
      float most = 0;
      for (int64_t k = 0; k < rows.K; ++k) {
        const float x = std::fabs(element(rows, r, k));
        if (x > most || x != x) most = x;  // propagates NaN
      }
      scale[r] = most / 127;
      inverse = most > 0 && std::isfinite(most) ? 127 / most : 0;
    }
    for (int64_t k = 0; k < rows.K; ++k)
      *a++ = inverse == 0 ? 0 : static_cast<int8_t>(std::nearbyint((element(rows, r, k) - centre) * inverse));
  }
}

float times_sigmoid(float x, float z) {
  const float e = std::exp(-std::fabs(z));
  return x * (z < 0 ? e : 1.0f) / (1.0f + e);
}

float activate(Act act, float x) {
  switch (act) {
    case Act::none:
      return x;
    case Act::gelu:
    case Act::gelu_fast:
      return 0.5f * x * std::erfc(-x * 0.70710678f);
    case Act::relu:
      return x < 0 ? 0 : x;
    case Act::tanh:
      return std::tanh(x);
    case Act::gelu_tanh:
      return times_sigmoid(x, x * (1.5957691216f + 0.0713548163f * x * x));
    case Act::quick_gelu:
      return times_sigmoid(x, 1.702f * x);
    case Act::silu:
      return times_sigmoid(x, x);
  }
  return x;
}

float widen(float x) { return x; }
float widen(tensor::bf16_t x) { return to_float(x); }
int32_t widen(int8_t x) { return x; }

template <class Elem, class Sum>
void run(const Block& block) {
  const int64_t K = block.K, lda = block.lda == 0 ? K : block.lda;
  for (int64_t n = block.n_begin; n < block.n_end; n += kPanel) {
    const Elem* b = static_cast<const Elem*>(block.b) + n * K;
    const int cols = static_cast<int>(block.n_end - n < kPanel ? block.n_end - n : kPanel);
    for (int64_t m = 0; m < block.m; m += kRows) {
      const int rows = static_cast<int>(block.m - m < kRows ? block.m - m : kRows);
      Sum acc[kRows][kPanel] = {};
      const Elem* a[kRows];
      for (int r = 0; r < kRows; ++r) a[r] = static_cast<const Elem*>(block.a) + (m + (r < rows ? r : 0)) * lda;
      for (int64_t k = 0; k < K; ++k)
        for (int r = 0; r < kRows; ++r) {
          const Sum x = widen(a[r][k]);
          for (int c = 0; c < kPanel; ++c) acc[r][c] += x * widen(b[k * kPanel + c]);
        }
      for (int r = 0; r < rows; ++r)
        for (int c = 0; c < cols; ++c) {
          float v = static_cast<float>(acc[r][c]);
          if (block.b_scale != nullptr) v *= block.a_scale[m + r] * block.b_scale[n + c];
          if (block.a_centre != nullptr) v += block.a_centre[m + r] * block.b_total[n + c];
          if (block.bias != nullptr) v += block.bias[n + c];
          v = activate(block.act, v);
          if (block.residual != nullptr) v += block.residual[(m + r) * block.ld_residual + n + c];
          const int64_t i = (m + r) * block.ld_y + n + c;
          if (block.y_bf16)
            static_cast<tensor::bf16_t*>(block.y)[i] = tensor::to_bf16(v);
          else
            static_cast<float*>(block.y)[i] = v;
        }
    }
  }
}

}  // namespace

const Kernel kGenericFp32 = {
    .name = "generic_fp32", .mr = kRows, .nr = kPanel, .element_bytes = 4, .run = run<float, float>};
const Kernel kGenericBf16 = {.name = "generic_bf16",
                             .mr = kRows,
                             .nr = kPanel,
                             .element_bytes = 2,
                             .a_element_bytes = 2,
                             .pack_rows = pack_rows_bf16,
                             .run = run<tensor::bf16_t, float>};
const Kernel kGenericInt8 = {.name = "generic_int8",
                             .mr = kRows,
                             .nr = kPanel,
                             .element_bytes = 1,
                             .a_element_bytes = 1,
                             .pack_rows = pack_rows_int8,
                             .run = run<int8_t, int32_t>};

}  // namespace brim::ops::gemm
