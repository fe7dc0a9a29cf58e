// SPDX-License-Identifier: Apache-2.0
// Row kernels, written once against vec.h and compiled per instruction set. A row of a model fits the first cache, so
// passes over it after the first cost little; memory is read once and written once.
#include "ops/cpu/row_kernels.h"

#include "ops/cpu/vec.h"
#include "ops/dropout.h"

namespace brim::BRIM_ISA {
namespace {

using cpu::DropRows;
using cpu::Elem;
using cpu::NormRows;
using cpu::TableRow;

// Calls fn(i, n) for each vector of a row; n is kLanes but for the last.
#define BRIM_FOR_VECTORS(i, count) for (int64_t i = 0; i < (count); i += kLanes)

BRIM_VEC int lanes_at(int64_t i, int64_t count) { return count - i < kLanes ? static_cast<int>(count - i) : kLanes; }
BRIM_VEC F load_at(const float* p, int64_t i, int n) { return n == kLanes ? load(p + i) : load(p + i, n); }
BRIM_VEC void store_at(float* p, int64_t i, F x, int n) {
  if (n == kLanes) store(p + i, x);
  else store(p + i, x, n);
}

// scale where the element is kept, else 0, for columns i .. i + kLanes of one row. i is a multiple of 4.
BRIM_VEC F drop_factors(const DropRows& d, uint64_t row, int64_t i) {
  uint16_t bits[kLanes];
  for (int quad = 0; quad < kLanes / 4; ++quad) {
    const uint64_t four = dropout_bits(d.seed, d.site, d.first_row + row, static_cast<uint32_t>(i / 4 + quad));
    __builtin_memcpy(bits + quad * 4, &four, sizeof four);
  }
  return select(less(load_u16(bits), set1(static_cast<float>(d.threshold))), zero(), set1(d.scale));
}

struct Moments { float mean, rstd; };

// Two passes: the mean, then squares about it. What rounding left in the mean shows up as the sum of the differences and
// is taken out again, so rows far from zero lose nothing.
BRIM_VEC Moments moments(const float* s, F total, int64_t H, float eps) {
  const float mean = reduce_add(total) / static_cast<float>(H);
  const F m = set1(mean);
  F d0 = zero(), d1 = zero(), q0 = zero(), q1 = zero();
  int64_t i = 0;
  for (; i + 2 * kLanes <= H; i += 2 * kLanes) {
    const F a = sub(load(s + i), m), b = sub(load(s + i + kLanes), m);
    d0 = add(d0, a), d1 = add(d1, b);
    q0 = fma(a, a, q0), q1 = fma(b, b, q1);
  }
  for (; i < H; i += kLanes) {
    const int n = lanes_at(i, H);
    const F a = select(lanes_below(n), sub(load_at(s, i, n), m), zero());  // lanes past the row count nothing
    d0 = add(d0, a);
    q0 = fma(a, a, q0);
  }
  const float left = reduce_add(add(d0, d1)) / static_cast<float>(H);
  const float variance = reduce_add(add(q0, q1)) / static_cast<float>(H) - left * left;
  return {mean + left, 1.0f / __builtin_sqrtf((variance > 0 ? variance : 0.0f) + eps)};
}

template <bool kDropIn, bool kDropOut>
BRIM_VEC void norm_rows(const NormRows& r) {
  for (int64_t t = 0; t < r.rows; ++t) {
    const float* x = r.x + t * r.ld_x;
    const float* residual = r.residual == nullptr ? nullptr : r.residual + t * r.ld_residual;
    float* y = r.y + t * r.ld_y;
    float* sum = r.sum == nullptr ? y : r.sum + t * r.ld_sum;
    F total0 = zero(), total1 = zero();
    if (!kDropIn && residual == nullptr && r.sum == nullptr) {  // nothing to add, nothing to keep: read x where it is
      sum = const_cast<float*>(x);
      BRIM_FOR_VECTORS(i, r.H) total0 = add(total0, load_at(x, i, lanes_at(i, r.H)));
    } else {
      int64_t i = 0;
      const auto combine = [&](int64_t at, int n) {
        F v = load_at(x, at, n);
        if constexpr (kDropIn) v = mul(v, drop_factors(r.drop_in, static_cast<uint64_t>(t), at));
        if (residual != nullptr) v = add(v, load_at(residual, at, n));
        store_at(sum, at, v, n);
        return v;
      };
      for (; i + 2 * kLanes <= r.H; i += 2 * kLanes) {
        total0 = add(total0, combine(i, kLanes));
        total1 = add(total1, combine(i + kLanes, kLanes));
      }
      for (; i < r.H; i += kLanes) total0 = add(total0, combine(i, lanes_at(i, r.H)));
    }
    const Moments m = moments(sum, add(total0, total1), r.H, r.eps);
    const F rstd = set1(m.rstd), mean = set1(m.mean);
    BRIM_FOR_VECTORS(i, r.H) {
      const int n = lanes_at(i, r.H);
      F v = mul(sub(load_at(sum, i, n), mean), rstd);
      v = fma(v, load_at(r.gamma, i, n), load_at(r.beta, i, n));
      if constexpr (kDropOut) v = mul(v, drop_factors(r.drop_out, static_cast<uint64_t>(t), i));
      store_at(y, i, v, n);
    }
    if (r.mean != nullptr) r.mean[t] = m.mean;
    if (r.rstd != nullptr) r.rstd[t] = m.rstd;
  }
}

void norm(const NormRows& r) {
  if (r.drop_in.threshold != 0) norm_rows<true, false>(r);
  else if (r.drop_out.threshold != 0) norm_rows<false, true>(r);
  else norm_rows<false, false>(r);
}

BRIM_VEC F load_elem(const void* p, Elem type, int64_t i, int n) {
  switch (type) {
    case Elem::f16: return n == kLanes ? load_f16(static_cast<const uint16_t*>(p) + i) : load_f16(static_cast<const uint16_t*>(p) + i, n);
    case Elem::bf16: return n == kLanes ? load_bf16(static_cast<const uint16_t*>(p) + i) : load_bf16(static_cast<const uint16_t*>(p) + i, n);
    default: return load_at(static_cast<const float*>(p), i, n);
  }
}

void add_table_rows(const TableRow* rows, int count, float* sum, int64_t size) {
  BRIM_FOR_VECTORS(i, size) {
    const int n = lanes_at(i, size);
    F v = load_elem(rows[0].values, rows[0].type, i, n);
    for (int k = 1; k < count; ++k) v = add(v, load_elem(rows[k].values, rows[k].type, i, n));
    store_at(sum, i, v, n);
  }
}

void add_to(float* y, const float* x, int64_t size) {
  BRIM_FOR_VECTORS(i, size) {
    const int n = lanes_at(i, size);
    store_at(y, i, add(load_at(y, i, n), load_at(x, i, n)), n);
  }
}

void scale_by(float* y, float factor, int64_t size) {
  BRIM_FOR_VECTORS(i, size) {
    const int n = lanes_at(i, size);
    store_at(y, i, mul(load_at(y, i, n), set1(factor)), n);
  }
}

void softmax(const float* x, float* y, int64_t size) {
  float top = x[0];
  for (int64_t i = 1; i < size % kLanes; ++i) top = top < x[i] ? x[i] : top;
  F top_lanes = set1(top);
  for (int64_t i = size % kLanes; i < size; i += kLanes) top_lanes = max(top_lanes, load(x + i));
  top = reduce_max(top_lanes);
  F total = zero();
  BRIM_FOR_VECTORS(i, size) {
    const int n = lanes_at(i, size);
    const F e = select(lanes_below(n), exp(sub(load_at(x, i, n), set1(top))), zero());
    store_at(y, i, e, n);
    total = add(total, e);
  }
  scale_by(y, 1.0f / reduce_add(total), size);
}

template <class Function>
BRIM_VEC void map(const float* x, float* y, int64_t size, Function function) {
  BRIM_FOR_VECTORS(i, size) {
    const int n = lanes_at(i, size);
    store_at(y, i, function(load_at(x, i, n)), n);
  }
}
void map_sigmoid(const float* x, float* y, int64_t n) { map(x, y, n, [](F v) { return sigmoid(v); }); }
void map_gelu(const float* x, float* y, int64_t n) { map(x, y, n, [](F v) { return gelu(v); }); }
void map_relu(const float* x, float* y, int64_t n) { map(x, y, n, [](F v) { return max(zero(), v); }); }
void map_tanh(const float* x, float* y, int64_t n) { map(x, y, n, [](F v) { return tanh(v); }); }
void map_exp(const float* x, float* y, int64_t n) { map(x, y, n, [](F v) { return exp(v); }); }

void widen(const void* x, Elem from, float* y, int64_t size) {
  BRIM_FOR_VECTORS(i, size) {
    const int n = lanes_at(i, size);
    store_at(y, i, load_elem(x, from, i, n), n);
  }
}

void narrow(const float* x, void* y, Elem to, int64_t size) {
  auto* out = static_cast<uint16_t*>(y);
  BRIM_FOR_VECTORS(i, size) {
    const int n = lanes_at(i, size);
    const F v = load_at(x, i, n);
    if (to == Elem::f16) n == kLanes ? store_f16(out + i, v) : store_f16(out + i, v, n);
    else n == kLanes ? store_bf16(out + i, v) : store_bf16(out + i, v, n);
  }
}

#define BRIM_TEXT_OF(x) #x
#define BRIM_TEXT(x) BRIM_TEXT_OF(x)

}  // namespace

extern const cpu::RowKernels kRowKernels = {
    .name = BRIM_TEXT(BRIM_ISA),
    .norm = norm,
    .add_table_rows = add_table_rows,
    .add = add_to,
    .scale = scale_by,
    .softmax = softmax,
    .sigmoid = map_sigmoid,
    .gelu = map_gelu,
    .relu = map_relu,
    .tanh = map_tanh,
    .exp = map_exp,
    .widen = widen,
    .narrow = narrow,
};

}  // namespace brim::BRIM_ISA
