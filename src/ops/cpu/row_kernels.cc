// SPDX-License-Identifier: Apache-2.0
// Row kernels, written once against vec.h and compiled per instruction set. A row of a model fits in L1, so repeated
// passes over it are cheap; memory is read once and written once.
#include "ops/cpu/row_kernels.h"

#include "ops/adam8_code.h"
#include "ops/cpu/drop.h"
#include "ops/cpu/vec.h"

namespace brim::ops::BRIM_ISA {
namespace {

using cpu::DropRows;
using cpu::Elem;
using cpu::NormRows;
using cpu::TableRow;

#define BRIM_BODY [&](int64_t i, auto lanes, [[maybe_unused]] int k) __attribute__((always_inline))

struct Moments {
  float mean, rstd;
};

// Two passes: the mean, then squared differences. The rounding error of the mean equals the sum of the differences and
// is subtracted, so rows far from zero lose no accuracy.
BRIM_VEC Moments moments(const float* s, float total, int64_t H, float eps) {
  const float mean = total / static_cast<float>(H);
  const F m = set1(mean);
  Sums differences, squares;
  for_vectors(
      H, BRIM_BODY {
        const F d = inside(sub(load_at(s, i, lanes), m), lanes);
        differences.s[k] = add(differences.s[k], d);
        squares.s[k] = fma(d, d, squares.s[k]);
      });
  const float left = differences.total() / static_cast<float>(H);
  const float variance = squares.total() / static_cast<float>(H) - left * left;
  return {mean + left, 1.0f / __builtin_sqrtf((variance > 0 ? variance : 0.0f) + eps)};
}

template <bool kDropIn, bool kDropOut>
BRIM_VEC void norm_rows(const NormRows& r) {
  for (int64_t t = 0; t < r.rows; ++t) {
    const float* x = r.x + t * r.ld_x;
    float* y = r.y + t * r.ld_y;
    const float* sum = x;
    Sums totals;
    if (!kDropIn && r.residual == nullptr && r.sum == nullptr) {  // nothing to add or keep: x is the sum
      for_vectors(
          r.H, BRIM_BODY { totals.s[k] = add(totals.s[k], load_at(x, i, lanes)); });
    } else {
      float* kept = r.sum == nullptr ? y : r.sum + t * r.ld_sum;
      const auto combine = [&](auto value) __attribute__((always_inline)) {
        for_vectors(
            r.H, BRIM_BODY {
              const F v = value(i, lanes);
              store_at(kept, i, v, lanes);
              totals.s[k] = add(totals.s[k], v);
            });
      };
      const auto dropped = [&](int64_t i, auto lanes) __attribute__((always_inline)) {
        const F v = load_at(x, i, lanes);
        if constexpr (kDropIn) return mul(v, drop_factors(r.drop_in, static_cast<uint64_t>(t), i));
        return v;
      };
      if (r.residual == nullptr) {
        combine(dropped);
      } else {
        const float* residual = r.residual + t * r.ld_residual;
        combine([&](int64_t i, auto lanes)
                    __attribute__((always_inline)) { return add(dropped(i, lanes), load_at(residual, i, lanes)); });
      }
      sum = kept;
    }
    const Moments m = moments(sum, totals.total(), r.H, r.eps);
    const F rstd = set1(m.rstd), mean = set1(m.mean);
    for_vectors(
        r.H, BRIM_BODY {
          F v = mul(sub(load_at(sum, i, lanes), mean), rstd);
          v = fma(v, load_at(r.gamma, i, lanes), r.beta == nullptr ? zero() : load_at(r.beta, i, lanes));
          if constexpr (kDropOut) v = mul(v, drop_factors(r.drop_out, static_cast<uint64_t>(t), i));
          store_at(y, i, v, lanes);
        });
    if (r.mean != nullptr) r.mean[t] = m.mean;
    if (r.rstd != nullptr) r.rstd[t] = m.rstd;
  }
}

void norm(const NormRows& r) {
  if (r.drop_in.threshold != 0)
    norm_rows<true, false>(r);
  else if (r.drop_out.threshold != 0)
    norm_rows<false, true>(r);
  else
    norm_rows<false, false>(r);
}

template <class Lanes>
BRIM_VEC F load_elem(const void* p, Elem type, int64_t i, Lanes lanes) {
  switch (type) {
    case Elem::f16:
      return load_f16_at(static_cast<const uint16_t*>(p), i, lanes);
    case Elem::bf16:
      return load_bf16_at(static_cast<const uint16_t*>(p), i, lanes);
    default:
      return load_at(static_cast<const float*>(p), i, lanes);
  }
}

void add_table_rows(const TableRow* rows, int count, float* sum, int64_t size) {
  for_vectors(
      size, BRIM_BODY {
        F v = load_elem(rows[0].values, rows[0].type, i, lanes);
        for (int n = 1; n < count; ++n) v = add(v, load_elem(rows[n].values, rows[n].type, i, lanes));
        store_at(sum, i, v, lanes);
      });
}

void add_to(float* y, const float* x, int64_t size) {
  for_vectors(
      size, BRIM_BODY { store_at(y, i, add(load_at(y, i, lanes), load_at(x, i, lanes)), lanes); });
}

void scale_by(float* y, float factor, int64_t size) {
  for_vectors(
      size, BRIM_BODY { store_at(y, i, mul(load_at(y, i, lanes), set1(factor)), lanes); });
}

void softmax(const float* x, float* y, int64_t size) {
  F tops[4] = {set1(x[0]), set1(x[0]), set1(x[0]), set1(x[0])};
  for_vectors(
      size, BRIM_BODY { tops[k] = max(tops[k], inside_or(load_at(x, i, lanes), lanes, tops[k])); });
  const F top = set1(reduce_max(max(max(tops[0], tops[1]), max(tops[2], tops[3]))));
  Sums totals;
  for_vectors(
      size, BRIM_BODY {
        const F v = load_at(x, i, lanes),
                e = inside(add(exp(sub(v, top)), sub(v, v)), lanes);  // v - v: see SoftmaxArgs
        store_at(y, i, e, lanes);
        totals.s[k] = add(totals.s[k], e);
      });
  scale_by(y, 1.0f / totals.total(), size);
}

template <class Function>
BRIM_VEC void map(const float* x, float* y, int64_t size, Function function) {
  for_vectors(
      size, BRIM_BODY { store_at(y, i, function(load_at(x, i, lanes)), lanes); });
}
void map_sigmoid(const float* x, float* y, int64_t n) {
  map(x, y, n, [](F v) { return add(sigmoid(v), sub(v, v)); });  // v - v: see SoftmaxArgs
}
void map_gelu(const float* x, float* y, int64_t n) {
  map(x, y, n, [](F v) { return gelu(v); });
}
void map_relu(const float* x, float* y, int64_t n) {
  map(x, y, n, [](F v) { return max(zero(), v); });
}
void map_tanh(const float* x, float* y, int64_t n) {
  map(x, y, n, [](F v) { return tanh(v); });
}
template <class Gate>
void map_gated(const float* x, float* y, int64_t n) {
  map(x, y, n, [](F v) { return gated<Gate>(v); });
}
void map_exp(const float* x, float* y, int64_t n) {
  map(x, y, n, [](F v) { return exp(v); });
}

void widen(const void* x, Elem from, float* y, int64_t size) {
  for_vectors(
      size, BRIM_BODY { store_at(y, i, load_elem(x, from, i, lanes), lanes); });
}

void narrow(const float* x, void* y, Elem to, int64_t size) {
  auto* out = static_cast<uint16_t*>(y);
  if (to == Elem::f16)
    for_vectors(
        size, BRIM_BODY { store_f16_at(out, i, load_at(x, i, lanes), lanes); });
  else
    for_vectors(
        size, BRIM_BODY { store_bf16_at(out, i, load_at(x, i, lanes), lanes); });
}

// d_sum = rstd (g - mean(g) - x̂ mean(g x̂)) with g = d_y gamma and x̂ the normalised row, from the sum or recovered
// from y.
template <bool kFromY>
BRIM_VEC void norm_grad_rows(const cpu::NormGradRows& r) {
  for (int64_t t = 0; t < r.rows; ++t) {
    const float* x = r.x + t * r.ld_x;
    const float* d_y = r.d_y + t * r.ld_d_y;
    float* d_sum = r.d_sum + t * r.ld_d_sum;
    const F mean = kFromY ? zero() : set1(r.mean[t]), rstd = set1(r.rstd[t]);
    struct Normal {
      F x, times_gamma;
    };
    const auto normal_at = [&](int64_t i, F gamma, auto lanes) __attribute__((always_inline)) {
      const F v = load_at(x, i, lanes);
      if constexpr (kFromY) {
        const F centre = r.beta == nullptr ? v : sub(v, load_at(r.beta, i, lanes));
        return Normal{mul(centre, load_at(r.inverse_gain, i, lanes)), centre};
      }
      const F normal = mul(sub(v, mean), rstd);
      return Normal{normal, mul(normal, gamma)};
    };
    Sums total, total_x;
    for_vectors(
        r.H, BRIM_BODY {
          const F gamma = load_at(r.gamma, i, lanes), dy = load_at(d_y, i, lanes);
          const Normal normal = normal_at(i, gamma, lanes);
          total.s[k] = fma(dy, gamma, total.s[k]);  // lanes past the row have d_y = 0
          total_x.s[k] = fma(dy, normal.times_gamma, total_x.s[k]);
          store_at(r.d_gamma, i, fma(dy, normal.x, load_at(r.d_gamma, i, lanes)), lanes);
          store_at(r.d_beta, i, add(dy, load_at(r.d_beta, i, lanes)), lanes);
        });
    const F mean_g = set1(total.total() / static_cast<float>(r.H)),
            mean_gx = set1(total_x.total() / static_cast<float>(r.H));
    for_vectors(
        r.H, BRIM_BODY {
          const F gamma = load_at(r.gamma, i, lanes), g = mul(load_at(d_y, i, lanes), gamma);
          F d = mul(rstd, fnma(normal_at(i, gamma, lanes).x, mean_gx, sub(g, mean_g)));
          if (r.accumulate) d = add(d, load_at(d_sum, i, lanes));
          store_at(d_sum, i, d, lanes);
          if (r.d_x != nullptr) {
            if (r.drop.threshold != 0) d = mul(d, drop_factors(r.drop, static_cast<uint64_t>(t), i));
            store_at(r.d_x + t * r.ld_d_x, i, d, lanes);
          }
        });
  }
}

void norm_grad(const cpu::NormGradRows& r) {
  if (r.inverse_gain != nullptr)
    norm_grad_rows<true>(r);
  else
    norm_grad_rows<false>(r);
}

template <class Slope>
BRIM_VEC void map_grad(const float* x, const float* d_y, float* d_x, int64_t size, Slope slope) {
  for_vectors(
      size, BRIM_BODY { store_at(d_x, i, mul(load_at(d_y, i, lanes), slope(load_at(x, i, lanes))), lanes); });
}
void gelu_grad(const float* x, const float* d_y, float* d_x, int64_t n) {
  map_grad(x, d_y, d_x, n, [](F v) { return gelu_slope(v); });
}
void relu_grad(const float* y, const float* d_y, float* d_x, int64_t n) {
  map_grad(y, d_y, d_x, n, [](F v) { return select(less(zero(), v), set1(1.0f), zero()); });
}
void relu_grad_bf16(const uint16_t* y, float* d, uint16_t* d_x, int64_t n) {
  for_vectors(
      n, BRIM_BODY {
        const F passes = select(less(zero(), load_bf16_at(y, i, lanes)), set1(1.0f), zero());
        const F gated = mul(load_at(d, i, lanes), passes);
        store_at(d, i, gated, lanes);
        store_bf16_at(d_x, i, gated, lanes);
      });
}
void tanh_grad(const float* y, const float* d_y, float* d_x, int64_t n) {
  map_grad(y, d_y, d_x, n, [](F v) { return mul(sub(set1(1.0f), v), add(set1(1.0f), v)); });
}

template <class Gate>
void gated_grad(const float* x, const float* d_y, float* d_x, int64_t n) {
  map_grad(x, d_y, d_x, n, [](F v) { return gated_slope<Gate>(v); });
}

void drop(const float* x, float* y, int64_t size, const DropRows& d) {
  for_vectors(
      size, BRIM_BODY { store_at(y, i, mul(load_at(x, i, lanes), drop_factors(d, 0, i)), lanes); });
}

struct Adam {
  F factor, beta1, one_minus_beta1, beta2, one_minus_beta2, step_size, correction, eps, keep;
  explicit BRIM_VEC Adam(const cpu::AdamWRange& r)
      : factor(set1(r.grad_factor)),
        beta1(set1(r.beta1)),
        one_minus_beta1(set1(1.0f - r.beta1)),
        beta2(set1(r.beta2)),
        one_minus_beta2(set1(1.0f - r.beta2)),
        step_size(set1(r.step_size)),
        correction(set1(r.inv_sqrt_correction2)),
        eps(set1(r.eps)),
        keep(set1(r.keep)) {}
  // Updates the moments and the weight with one gradient.
  BRIM_VEC F update(F weight, F gradient, F& m, F& v) const {
    const F g = mul(gradient, factor);
    m = fma(m, beta1, mul(one_minus_beta1, g));
    v = fma(v, beta2, mul(one_minus_beta2, mul(g, g)));
    const F denominator = fma(sqrt(v), correction, eps);
    return fnma(step_size, div(m, denominator), mul(weight, keep));
  }
};

template <class Lanes>
BRIM_VEC void store_copy(const cpu::AdamWRange& r, int64_t i, F weight, Lanes lanes) {
  if (r.copy == nullptr) return;
  if (r.copy_type == Elem::f16)
    store_f16_at(r.copy, i, weight, lanes);
  else
    store_bf16_at(r.copy, i, weight, lanes);
}

void adamw(const cpu::AdamWRange& r) {
  const Adam adam(r);
  for_vectors(
      r.n, BRIM_BODY {
        F m = load_at(r.m, i, lanes), v = load_at(r.v, i, lanes);
        const F weight = adam.update(load_at(r.master, i, lanes), load_at(r.grad, i, lanes), m, v);
        store_at(r.m, i, m, lanes);
        store_at(r.v, i, v, lanes);
        store_at(r.master, i, weight, lanes);
        store_copy(r, i, weight, lanes);
      });
}

// One block of 8-bit moments: decoded, updated as above, encoded with their new maximum.
void adamw8(const cpu::AdamWRange& r) {
  const Adam adam(r);
  for (int64_t begin = 0; begin < r.n; begin += kAdam8Block) {
    const int64_t size = r.n - begin < kAdam8Block ? r.n - begin : kAdam8Block, block = begin / kAdam8Block;
    alignas(64) float m[kAdam8Block], root[kAdam8Block];
    uint8_t *m8 = r.m8 + begin, *v8 = r.v8 + begin;
    const float m_scale = r.m_scale[block], v_scale = r.v_scale[block];
    for (int64_t i = 0; i < size; ++i) m[i] = adam8_decode_m(m8[i]) * m_scale;
    for (int64_t i = 0; i < size; ++i) root[i] = adam8_decode_root(v8[i]) * v_scale;
    F m_top = zero(), root_top = zero();
    for_vectors(
        size, BRIM_BODY {
          F moment = load_at(m, i, lanes), v = load_at(root, i, lanes);
          v = mul(v, v);
          const F weight =
              adam.update(load_at(r.master + begin, i, lanes), load_at(r.grad + begin, i, lanes), moment, v);
          const F new_root = sqrt(v);
          store_at(m, i, moment, lanes);
          store_at(root, i, new_root, lanes);
          store_at(r.master + begin, i, weight, lanes);
          store_copy(r, begin + i, weight, lanes);
          m_top = max(m_top, inside(abs(moment), lanes));
          root_top = max(root_top, inside(new_root, lanes));
        });
    const float new_m_scale = adam8_m_scale(reduce_max(m_top)), new_v_scale = adam8_root_scale(reduce_max(root_top));
    const float m_inverse = new_m_scale > 0 ? 1.0f / new_m_scale : 0.0f,
                v_inverse = new_v_scale > 0 ? 1.0f / new_v_scale : 0.0f;
    for (int64_t i = 0; i < size; ++i) m8[i] = adam8_encode_m(m[i] * m_inverse);
    for (int64_t i = 0; i < size; ++i) v8[i] = adam8_encode_root(root[i] * v_inverse);
    r.m_scale[block] = new_m_scale;
    r.v_scale[block] = new_v_scale;
  }
}

// Each lane sums at most a few thousand squares before adding to a double.
double sum_squares(const float* x, int64_t size) {
  double total = 0;
  for (int64_t begin = 0; begin < size; begin += 4096) {
    Sums squares;
    for_vectors(
        size - begin < 4096 ? size - begin : 4096, BRIM_BODY {
          const F a = load_at(x + begin, i, lanes);
          squares.s[k] = fma(a, a, squares.s[k]);
        });
    total += static_cast<double>(squares.total());
  }
  return total;
}

void add_wide(double* __restrict sums, const float* __restrict x, int64_t size) {
  for (int64_t i = 0; i < size; ++i) sums[i] += static_cast<double>(x[i]);
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
    .gelu_tanh = map_gated<GeluTanh>,
    .quick_gelu = map_gated<QuickGelu>,
    .silu = map_gated<Silu>,
    .exp = map_exp,
    .widen = widen,
    .narrow = narrow,
    .norm_grad = norm_grad,
    .gelu_grad = gelu_grad,
    .relu_grad = relu_grad,
    .relu_grad_bf16 = relu_grad_bf16,
    .tanh_grad = tanh_grad,
    .gelu_tanh_grad = gated_grad<GeluTanh>,
    .quick_gelu_grad = gated_grad<QuickGelu>,
    .silu_grad = gated_grad<Silu>,
    .drop = drop,
    .adamw = adamw,
    .adamw8 = adamw8,
    .sum_squares = sum_squares,
    .add_wide = add_wide,
};

}  // namespace brim::ops::BRIM_ISA
