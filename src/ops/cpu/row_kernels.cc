// SPDX-License-Identifier: Apache-2.0
// Row kernels, written once against vec.h and compiled per instruction set. A row of a model fits the first cache, so
// passes over it after the first cost little; memory is read once and written once.
#include "ops/cpu/row_kernels.h"

#include "ops/adam8_code.h"
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

// d_sum = rstd (g - mean(g) - x̂ mean(g x̂)) with g = d_y gamma, x̂ the normalised row.
void norm_grad(const cpu::NormGradRows& r) {
  for (int64_t t = 0; t < r.rows; ++t) {
    const float* sum = r.sum + t * r.ld_sum;
    const float* d_y = r.d_y + t * r.ld_d_y;
    float* d_sum = r.d_sum + t * r.ld_d_sum;
    const F mean = set1(r.mean[t]), rstd = set1(r.rstd[t]);
    F total = zero(), total_x = zero();
    BRIM_FOR_VECTORS(i, r.H) {
      const int n = lanes_at(i, r.H);
      const F normal = mul(sub(load_at(sum, i, n), mean), rstd), dy = load_at(d_y, i, n), g = mul(dy, load_at(r.gamma, i, n));
      total = add(total, g);  // lanes past the row have g = 0
      total_x = fma(g, normal, total_x);
      store_at(r.d_gamma, i, fma(dy, normal, load_at(r.d_gamma, i, n)), n);
      store_at(r.d_beta, i, add(dy, load_at(r.d_beta, i, n)), n);
    }
    const F mean_g = set1(reduce_add(total) / static_cast<float>(r.H)), mean_gx = set1(reduce_add(total_x) / static_cast<float>(r.H));
    BRIM_FOR_VECTORS(i, r.H) {
      const int n = lanes_at(i, r.H);
      const F normal = mul(sub(load_at(sum, i, n), mean), rstd), g = mul(load_at(d_y, i, n), load_at(r.gamma, i, n));
      F d = mul(rstd, fnma(normal, mean_gx, sub(g, mean_g)));
      if (r.accumulate) d = add(d, load_at(d_sum, i, n));
      store_at(d_sum, i, d, n);
      if (r.d_x != nullptr) {
        if (r.drop.threshold != 0) d = mul(d, drop_factors(r.drop, static_cast<uint64_t>(t), i));
        store_at(r.d_x + t * r.ld_d_x, i, d, n);
      }
    }
  }
}

template <class Slope>
BRIM_VEC void map_grad(const float* x, const float* d_y, float* d_x, int64_t size, Slope slope) {
  BRIM_FOR_VECTORS(i, size) {
    const int n = lanes_at(i, size);
    store_at(d_x, i, mul(load_at(d_y, i, n), slope(load_at(x, i, n))), n);
  }
}
void gelu_grad(const float* x, const float* d_y, float* d_x, int64_t n) { map_grad(x, d_y, d_x, n, [](F v) { return gelu_slope(v); }); }
void relu_grad(const float* y, const float* d_y, float* d_x, int64_t n) {
  map_grad(y, d_y, d_x, n, [](F v) { return select(less(zero(), v), set1(1.0f), zero()); });
}
void tanh_grad(const float* y, const float* d_y, float* d_x, int64_t n) {
  map_grad(y, d_y, d_x, n, [](F v) { return mul(sub(set1(1.0f), v), add(set1(1.0f), v)); });
}

void drop(const float* x, float* y, int64_t size, const DropRows& d) {
  BRIM_FOR_VECTORS(i, size) {
    const int n = lanes_at(i, size);
    store_at(y, i, mul(load_at(x, i, n), drop_factors(d, 0, i)), n);
  }
}

struct Adam {
  F factor, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, correction, eps, keep;
  explicit BRIM_VEC Adam(const cpu::AdamWRange& r)
      : factor(set1(r.grad_factor)), beta1(set1(r.beta1)), one_minus_beta1(set1(1.0f - r.beta1)), beta2(set1(r.beta2)),
        one_minus_beta2(set1(1.0f - r.beta2)), step_size(set1(r.step_size)), correction(set1(r.inv_sqrt_correction2)), eps(set1(r.eps)),
        keep(set1(r.keep)) {}
  // Moments and the weight after one more gradient.
  BRIM_VEC F update(F weight, F gradient, F& m, F& v) const {
    const F g = mul(gradient, factor);
    m = fma(m, beta1, mul(one_minus_beta1, g));
    v = fma(v, beta2, mul(one_minus_beta2, mul(g, g)));
    const F denominator = fma(sqrt(v), correction, eps);
    return fnma(step_size, div(m, denominator), mul(weight, keep));
  }
};

BRIM_VEC void store_copy(const cpu::AdamWRange& r, int64_t i, F weight, int n) {
  if (r.copy == nullptr) return;
  if (r.copy_type == Elem::f16) n == kLanes ? store_f16(r.copy + i, weight) : store_f16(r.copy + i, weight, n);
  else n == kLanes ? store_bf16(r.copy + i, weight) : store_bf16(r.copy + i, weight, n);
}

void adamw(const cpu::AdamWRange& r) {
  const Adam adam(r);
  BRIM_FOR_VECTORS(i, r.n) {
    const int n = lanes_at(i, r.n);
    F m = load_at(r.m, i, n), v = load_at(r.v, i, n);
    const F weight = adam.update(load_at(r.master, i, n), load_at(r.grad, i, n), m, v);
    store_at(r.m, i, m, n), store_at(r.v, i, v, n), store_at(r.master, i, weight, n);
    store_copy(r, i, weight, n);
  }
}

void adamw8(const cpu::AdamWRange& r) {
  const Adam adam(r);
  for (int64_t begin = 0; begin < r.n; begin += kAdam8Block) {
    const int64_t size = r.n - begin < kAdam8Block ? r.n - begin : kAdam8Block, block = begin / kAdam8Block;
    float m[kAdam8Block], root[kAdam8Block];
    const float m_scale = r.m_scale[block], v_scale = r.v_scale[block];
    for (int64_t i = 0; i < size; ++i) {
      m[i] = adam8_decode_m(r.m8[begin + i]) * m_scale;
      root[i] = adam8_decode_root(r.v8[begin + i]) * v_scale;
    }
    F m_top = zero(), root_top = zero();
    BRIM_FOR_VECTORS(i, size) {
      const int n = lanes_at(i, size);
      F moment = load_at(m, i, n), v = load_at(root, i, n);
      v = mul(v, v);
      const F weight = adam.update(load_at(r.master, begin + i, n), load_at(r.grad, begin + i, n), moment, v);
      const F new_root = sqrt(v);
      store_at(m, i, moment, n), store_at(root, i, new_root, n), store_at(r.master, begin + i, weight, n);
      store_copy(r, begin + i, weight, n);
      m_top = max(m_top, select(lanes_below(n), abs(moment), zero()));
      root_top = max(root_top, select(lanes_below(n), new_root, zero()));
    }
    const float new_m_scale = adam8_m_scale(reduce_max(m_top)), new_v_scale = adam8_root_scale(reduce_max(root_top));
    const float m_inverse = new_m_scale > 0 ? 1.0f / new_m_scale : 0.0f, v_inverse = new_v_scale > 0 ? 1.0f / new_v_scale : 0.0f;
    for (int64_t i = 0; i < size; ++i) {
      r.m8[begin + i] = adam8_encode_m(m[i] * m_inverse);
      r.v8[begin + i] = adam8_encode_root(root[i] * v_inverse);
    }
    r.m_scale[block] = new_m_scale;
    r.v_scale[block] = new_v_scale;
  }
}

// Lanes add up a few thousand squares at most before a double takes over.
double sum_squares(const float* x, int64_t size) {
  double total = 0;
  for (int64_t begin = 0; begin < size; begin += 4096) {
    const int64_t count = size - begin < 4096 ? size - begin : 4096;
    F q0 = zero(), q1 = zero();
    int64_t i = 0;
    for (; i + 2 * kLanes <= count; i += 2 * kLanes) {
      const F a = load(x + begin + i), b = load(x + begin + i + kLanes);
      q0 = fma(a, a, q0), q1 = fma(b, b, q1);
    }
    for (; i < count; i += kLanes) {
      const F a = load_at(x + begin, i, lanes_at(i, count));
      q0 = fma(a, a, q0);
    }
    total += static_cast<double>(reduce_add(add(q0, q1)));
  }
  return total;
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
    .norm_grad = norm_grad,
    .gelu_grad = gelu_grad,
    .relu_grad = relu_grad,
    .tanh_grad = tanh_grad,
    .drop = drop,
    .adamw = adamw,
    .adamw8 = adamw8,
    .sum_squares = sum_squares,
};

}  // namespace brim::BRIM_ISA
