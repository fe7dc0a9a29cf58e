// SPDX-License-Identifier: Apache-2.0
// Attention of one head in fp32, written once against vec.h and compiled per instruction set. The keys are transposed
// once per head, so that scores are computed one vector of keys at a time; queries are processed in blocks whose scores
// stay in cache; a whole row of scores is available, so the softmax is exact and needs no rescaling. The arithmetic of
// a query does not depend on the others in its block, so splitting a sequence among threads does not change the bits.
#include "ops/cpu/attention_kernels.h"

#include "ops/cpu/drop.h"
#include "ops/cpu/vec.h"

namespace brim::ops::BRIM_ISA {
namespace {

using cpu::fetch_next;
using cpu::HeadArgs;
using cpu::HeadGradArgs;
using cpu::kQueryBlock;
using cpu::round_up;

constexpr float kLog2e = 1.44269504f;

// ---- Small matrix products: C[M,N] (+)= A[M,K] B[K,N], A read by element (any strides), B by vectors ----

struct Product {
  int64_t M, N, K;
  const float* a;
  ptrdiff_t a_row, a_k;
  const float* b;  // rows are readable up to a whole number of vectors
  ptrdiff_t ld_b;
  float* c;
  ptrdiff_t ld_c;
  const float* row_factor;  // [M] factors for the rows of the product, or null
  bool accumulate;
};

template <int kRows, int kVectors>
void tile(const Product& p, int64_t row, int64_t col) {
  F acc[kRows][kVectors];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i)
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) acc[i][j] = zero();
  const float* a[kRows];
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) a[i] = p.a + (row + i) * p.a_row;
  const float* b = p.b + col;
  const ptrdiff_t a_k = p.a_k, ld_b = p.ld_b;
  for (int64_t k = p.K; k > 0; --k) {
    F bv[kVectors];
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) bv[j] = load(b + j * kLanes);
    b += ld_b;
#pragma GCC unroll 8
    for (int i = 0; i < kRows; ++i) {
      const F av = set1(*a[i]);
      a[i] += a_k;
#pragma GCC unroll 4
      for (int j = 0; j < kVectors; ++j) acc[i][j] = fma(av, bv[j], acc[i][j]);
    }
  }
  const int64_t left = p.N - col - (kVectors - 1) * kLanes;
  const int last = left < kLanes ? static_cast<int>(left) : kLanes;
#pragma GCC unroll 8
  for (int i = 0; i < kRows; ++i) {
    float* c = p.c + (row + i) * p.ld_c + col;
#pragma GCC unroll 4
    for (int j = 0; j < kVectors; ++j) {
      F v = acc[i][j];
      if (p.row_factor != nullptr) v = mul(v, set1(p.row_factor[row + i]));
      const bool whole = j + 1 < kVectors || last == kLanes;
      if (p.accumulate) v = add(v, whole ? load(c + j * kLanes) : load(c + j * kLanes, last));
      if (whole)
        store(c + j * kLanes, v);
      else
        store(c + j * kLanes, v, last);
    }
  }
}

// Rows of a tile for its width in vectors: as many accumulators as fit in registers.
constexpr int rows_of_tile(int vectors) {
  return kRegisters == 32 ? (vectors == 4 ? 6 : 8) : kLanes == 8 ? (vectors == 2 ? 6 : 8) : 4;
}
constexpr int kTileVectors = kRegisters == 32 ? 4 : 2;

template <int kVectors, int kRows>
BRIM_VEC void tile_rows(const Product& p, int64_t rows, int64_t row, int64_t col) {
  if constexpr (kRows == 1)
    tile<1, kVectors>(p, row, col);
  else if (rows == kRows)
    tile<kRows, kVectors>(p, row, col);
  else
    tile_rows<kVectors, kRows - 1>(p, rows, row, col);
}

// One panel of columns: rows are distributed evenly over the fewest tiles.
template <int kVectors>
void panel(const Product& p, int64_t col) {
  constexpr int kRows = rows_of_tile(kVectors);
  const int64_t tiles = (p.M + kRows - 1) / kRows;
  for (int64_t t = 0, row = 0; t < tiles; ++t) {
    const int64_t rows = (p.M - row + tiles - t - 1) / (tiles - t);
    tile_rows<kVectors, kRows>(p, rows, row, col);
    row += rows;
  }
}

void multiply(const Product& p) {
  if (p.M <= 0) return;
  for (int64_t col = 0; col < p.N;) {
    const int64_t vectors = (p.N - col + kLanes - 1) / kLanes;
    if constexpr (kTileVectors == 4) {
      // Split five vectors into three and two rather than four and one.
      if (vectors >= 4 && vectors != 5)
        panel<4>(p, col), col += 4 * kLanes;
      else if (vectors >= 3)
        panel<3>(p, col), col += 3 * kLanes;
      else if (vectors == 2)
        panel<2>(p, col), col += 2 * kLanes;
      else
        panel<1>(p, col), col += kLanes;
    } else {
      if (vectors >= 2)
        panel<2>(p, col), col += 2 * kLanes;
      else
        panel<1>(p, col), col += kLanes;
    }
  }
}

// dst[d][j] = x[j][d] for j < rows, zero up to the next whole vector; `zeros` holds D zeros.
void transpose_rows(const float* x, int64_t ld, int64_t rows, int64_t D, float* dst, int64_t ld_dst,
                    const float* zeros) {
  for (int64_t j = 0; j < rows; j += kLanes) {
    const float* row[kLanes];
    for (int i = 0; i < kLanes; ++i) row[i] = j + i < rows ? x + (j + i) * ld : zeros;
    int64_t d = 0;
    for (; d + kLanes <= D; d += kLanes) {
      transpose(row, dst + d * ld_dst + j, ld_dst);
      for (int i = 0; i < kLanes; ++i) row[i] += kLanes;
    }
    for (; d < D; ++d)
      for (int i = 0; i < kLanes; ++i) dst[d * ld_dst + j + i] = *row[i]++;
  }
}

struct Rows {
  const float* x;
  int64_t ld;
};
// Rows readable up to a whole number of vectors: in place if D is a multiple, otherwise a zero-padded copy.
Rows padded_rows(const float* x, int64_t ld, int64_t rows, int64_t D, float* copy) {
  if (D % kLanes == 0) return {x, ld};
  const int64_t width = round_up(D, kLanes);
  for (int64_t j = 0; j < rows; ++j)
    for (int64_t d = 0; d < width; d += kLanes)
      store(copy + j * width + d,
            D - d >= kLanes ? load(x + j * ld + d) : load(x + j * ld + d, static_cast<int>(D - d)));
  return {copy, width};
}

// s becomes e^(scale (s - max)), with dropout if enabled; returns the sum before dropout and the largest score.
struct SoftmaxRow {
  float total, top;
};
BRIM_VEC SoftmaxRow softmax_row(float* s, int64_t keys, float scale) {
  const int64_t whole = keys / kLanes * kLanes;
  const int left = static_cast<int>(keys - whole);
  F top0 = set1(-__builtin_inff()), top1 = top0;
  int64_t j = 0;
  for (; j + 2 * kLanes <= whole; j += 2 * kLanes) {
    top0 = max(top0, load(s + j));
    top1 = max(top1, load(s + j + kLanes));
  }
  for (; j < whole; j += kLanes) top0 = max(top0, load(s + j));
  if (left > 0) top1 = max(top1, select(lanes_below(left), load(s + whole), top1));
  const float top = reduce_max(max(top0, top1)), c = scale * kLog2e;
  const F factor = set1(c), shift = set1(-top * c);
  F total0 = zero(), total1 = zero();
  for (j = 0; j + 2 * kLanes <= whole; j += 2 * kLanes) {
    const F a = exp2_nonpositive(fma(load(s + j), factor, shift)),
            b = exp2_nonpositive(fma(load(s + j + kLanes), factor, shift));
    store(s + j, a);
    store(s + j + kLanes, b);
    total0 = add(total0, a);
    total1 = add(total1, b);
  }
  for (; j < whole; j += kLanes) {
    const F a = exp2_nonpositive(fma(load(s + j), factor, shift));
    store(s + j, a);
    total0 = add(total0, a);
  }
  if (left > 0) {
    // Lanes past the keys are uninitialised: replace them by the largest score.
    const F given = select(lanes_below(left), load(s + whole), set1(top));
    const F a = select(lanes_below(left), exp2_nonpositive(fma(given, factor, shift)), zero());
    store(s + whole, a);
    total1 = add(total1, a);
  }
  return {reduce_add(add(total0, total1)), top};
}

BRIM_VEC void drop_row(float* s, int64_t keys, const cpu::DropRows& drop, uint64_t row, int64_t first_key) {
  for (int64_t j = 0; j < keys; j += kLanes) store(s + j, mul(load(s + j), drop_factors(drop, row, first_key + j)));
}

// Score of keys outside the window of the query at `place`.
constexpr float kOutside = -1e30f;
void mask_row(float* s, int64_t keys, int64_t place, int64_t window) {
  const int64_t first = place - window, end = place + window + 1;
  for (int64_t j = 0; j < first && j < keys; ++j) s[j] = kOutside;
  for (int64_t j = end < 0 ? 0 : end; j < keys; ++j) s[j] = kOutside;
}

// One query: keys are read in place, one dot product at a time.
void scores_in_place(const float* q, const float* k, int64_t ld_k, int64_t keys, int64_t D, float* s) {
  for (int64_t j = 0; j < keys; ++j, k += ld_k) {
    F sum0 = zero(), sum1 = zero();
    int64_t d = 0;
    for (; d + 2 * kLanes <= D; d += 2 * kLanes) {
      sum0 = fma(load(q + d), load(k + d), sum0);
      sum1 = fma(load(q + d + kLanes), load(k + d + kLanes), sum1);
    }
    for (; d + kLanes <= D; d += kLanes) sum0 = fma(load(q + d), load(k + d), sum0);
    if (d < D) sum1 = fma(load(q + d, static_cast<int>(D - d)), load(k + d, static_cast<int>(D - d)), sum1);
    s[j] = reduce_add(add(sum0, sum1));
  }
}

BRIM_VEC float dot(const float* a, const float* b, int64_t n) {
  F sum = zero();
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) sum = fma(load(a + i), load(b + i), sum);
  if (i < n) sum = fma(load(a + i, static_cast<int>(n - i)), load(b + i, static_cast<int>(n - i)), sum);
  return reduce_add(sum);
}

// Products with the tables of distances for calls whose first query has position `first_query` among `keys` keys. The
// transposed tables begin with the distance of the last query to the first key, so query r and key j of a block use
// column j + rows - 1 - r relative to the block's first column.
class Distances {
 public:
  Distances() = default;
  Distances(const cpu::HeadDistances& at, int64_t first_query, int64_t queries, int64_t keys, int64_t D)
      : at_(at), queries_(queries), keys_(keys), D_(D), ld_(round_up(queries + keys - 1, 16) + 16) {
    const int64_t rows = queries + keys - 1, width = round_up(D, kLanes);
    first_row_ = at.reach - first_query - queries + 1;
    float* scratch = at.scratch;
    const auto cut = [&](int64_t floats) {
      float* piece = scratch;
      scratch += round_up(floats, 16);
      return piece;
    };
    by_query_ = cut(kQueryBlock * query_ld());
    by_key_ = cut(kQueryBlock * kKeyLd);
    float* zeros = cut(width);
    for (int64_t d = 0; d < D; ++d) zeros[d] = 0;
    const auto transposed = [&](const float* table, int64_t ld) -> const float* {
      if (table == nullptr || queries == 1) return nullptr;
      float* to = cut(D * ld_);
      transpose_rows(table + first_row_ * ld, ld, rows, D, to, ld_, zeros);
      return to;
    };
    keys_t_ = transposed(at.keys, at.ld_keys);
    queries_t_ = transposed(at.queries, at.ld_queries);
    rest_ = scratch;
  }

  // scores[r][j] of queries first .. first + rows - 1 of the call, all keys.
  void add_to(const float* q, int64_t ld_q, const float* k, int64_t ld_k, int64_t first, int64_t rows, float* scores,
              int64_t ld) const {
    if (queries_ == 1) return add_to_one(q, k, ld_k, scores);
    if (keys_t_ != nullptr) {
      multiply({rows, round_up(keys_ + rows - 1, kLanes), D_, q, ld_q, 1, keys_t_ + column(first, rows), ld_, by_query_,
                query_ld(), nullptr, false});
      for (int64_t r = 0; r < rows; ++r) {
        const float* from = by_query_ + r * query_ld() + rows - 1 - r;
        for (int64_t j = 0; j < keys_; ++j) scores[r * ld + j] += from[j];
      }
    }
    for (int64_t j0 = 0; queries_t_ != nullptr && j0 < keys_; j0 += kQueryBlock) {
      const int64_t count = keys_ - j0 < kQueryBlock ? keys_ - j0 : kQueryBlock;
      multiply({count, round_up(count + rows - 1, kLanes), D_, k + j0 * ld_k, ld_k, 1,
                queries_t_ + column(first, rows) + j0, ld_, by_key_, kKeyLd, nullptr, false});
      for (int64_t r = 0; r < rows; ++r)
        for (int64_t j = 0; j < count; ++j) scores[r * ld + j0 + j] += by_key_[j * kKeyLd + j + rows - 1 - r];
    }
  }

  // Row of the tables of the first column of a block of queries.
  int64_t table_row(int64_t first, int64_t rows) const { return first_row_ + column(first, rows); }
  float* by_query() const { return by_query_; }
  float* by_key() const { return by_key_; }
  float* rest() const { return rest_; }
  int64_t query_ld() const { return round_up(keys_ + kQueryBlock, 16); }
  static constexpr int64_t kKeyLd = 2 * kQueryBlock + 16;

 private:
  int64_t column(int64_t first, int64_t rows) const { return queries_ - first - rows; }
  void add_to_one(const float* q, const float* k, int64_t ld_k, float* scores) const {
    for (int64_t j = 0; j < keys_; ++j) {
      if (at_.keys != nullptr) scores[j] += dot(q, at_.keys + (first_row_ + j) * at_.ld_keys, D_);
      if (at_.queries != nullptr) scores[j] += dot(k + j * ld_k, at_.queries + (first_row_ + j) * at_.ld_queries, D_);
    }
  }

  cpu::HeadDistances at_;
  int64_t queries_ = 0, keys_ = 0, D_ = 0, ld_ = 0, first_row_ = 0;
  float *by_query_ = nullptr, *by_key_ = nullptr, *rest_ = nullptr;
  const float *keys_t_ = nullptr, *queries_t_ = nullptr;  // [D][ld]
};

void attend_fp32(const HeadArgs& a) {
  const auto *a_q = static_cast<const float*>(a.q), *a_k = static_cast<const float*>(a.k),
             *a_v = static_cast<const float*>(a.v);
  auto* a_out = static_cast<float*>(a.out);
  const int64_t L = round_up(a.keys, kLanes);
  float* keys = a.scratch;                        // [D][L]
  float* scores = keys + a.D * L;                 // [kQueryBlock][L]
  float* factors = scores + kQueryBlock * L;      // [kQueryBlock]
  float* zeros = factors + kQueryBlock;           // [D]
  float* values = zeros + round_up(a.D, kLanes);  // [keys][D padded]
  const bool in_place = a.queries == 1;
  if (!in_place) {
    for (int64_t d = 0; d < a.D; ++d) zeros[d] = 0;
    transpose_rows(a_k, a.ld_k, a.keys, a.D, keys, L, zeros);
  }
  const Rows v = padded_rows(a_v, a.ld_v, a.keys, a.D, values);
  const bool by_distance = a.distances.any();
  const Distances distances = by_distance ? Distances(a.distances, a.first_query, a.queries, a.keys, a.D) : Distances();
  for (int64_t first = 0; first < a.queries; first += kQueryBlock) {
    const int64_t rows = a.queries - first < kQueryBlock ? a.queries - first : kQueryBlock;
    const float* q = a_q + first * a.ld_q;
    const cpu::KeySpan seen = cpu::seen_keys(a.window, a.first_query + first, rows, a.keys, 16);
    const int64_t count = seen.end - seen.first;
    if (in_place)
      scores_in_place(q, a_k + seen.first * a.ld_k, a.ld_k, count, a.D, scores);
    else
      multiply({rows, round_up(count, kLanes), a.D, q, a.ld_q, 1, keys + seen.first, L, scores, L, nullptr, false});
    if (by_distance) distances.add_to(q, a.ld_q, a_k, a.ld_k, first, rows, scores, L);
    for (int64_t i = 0; i < rows; ++i) {
      fetch_next(a, first + i);
      if (a.bias.at != nullptr) cpu::add_bias(a.bias, a.first_query + first + i, count, a.scale, scores + i * L);
      if (a.window > 0) mask_row(scores + i * L, count, a.first_query + first + i - seen.first, a.window);
      const SoftmaxRow row = softmax_row(scores + i * L, count, a.scale);
      factors[i] = 1.0f / row.total;
      if (a.lse != nullptr) a.lse[(first + i) * a.ld_lse] = row.top * a.scale + __builtin_logf(row.total);
      if (a.drop.threshold != 0)
        drop_row(scores + i * L, count, a.drop, static_cast<uint64_t>((first + i) * a.drop_step),
                 a.first_key + seen.first);
    }
    multiply({rows, a.D, count, scores, L, 1, v.x + seen.first * v.ld, v.ld, a_out + first * a.ld_out, a.ld_out,
              factors, false});
  }
}

// bf16 views without useful bf16 arithmetic: widened once per head.
void attend(const HeadArgs& a) {
  if (!a.bf16_in && !a.bf16_out) return attend_fp32(a);
  HeadArgs wide = a;
  wide.bf16_in = wide.bf16_out = false;
  float* at = a.scratch + round_up(cpu::head_scratch_floats(a.keys, a.D), 16);
  const auto widen = [&](const void* x, int64_t ld, int64_t rows) {
    float* out = at;
    for (int64_t r = 0; r < rows; ++r, at += a.D)
      for (int64_t d = 0; d < a.D; d += kLanes) {
        const auto* from = static_cast<const uint16_t*>(x) + r * ld + d;
        if (a.D - d >= kLanes)
          store(at + d, load_bf16(from));
        else
          store(at + d, load_bf16(from, static_cast<int>(a.D - d)), static_cast<int>(a.D - d));
      }
    return out;
  };
  if (a.bf16_in) {
    wide.q = widen(a.q, a.ld_q, a.queries);
    wide.k = widen(a.k, a.ld_k, a.keys);
    wide.v = widen(a.v, a.ld_v, a.keys);
    wide.ld_q = wide.ld_k = wide.ld_v = a.D;
  }
  if (a.bf16_out) {
    wide.out = at;
    wide.ld_out = a.D;
  }
  attend_fp32(wide);
  if (!a.bf16_out) return;
  for (int64_t r = 0; r < a.queries; ++r)
    for (int64_t d = 0; d < a.D; d += kLanes) {
      auto* to = static_cast<uint16_t*>(a.out) + r * a.ld_out + d;
      if (a.D - d >= kLanes)
        store_bf16(to, load(at + r * a.D + d));
      else
        store_bf16(to, load(at + r * a.D + d, static_cast<int>(a.D - d)), static_cast<int>(a.D - d));
    }
}

// p and d_p of one query become the dropped probabilities and the gradient of the scores.
BRIM_VEC void grad_row(float* p, float* d_p, int64_t keys, float scale, float lse, float delta,
                       const cpu::DropRows& drop, uint64_t row, int64_t first_key) {
  const F factor = set1(scale * kLog2e), shift = set1(-lse * kLog2e), mean = set1(delta);
  for (int64_t j = 0; j < keys; j += kLanes) {
    const F probability = exp2_nonpositive(min(zero(), fma(load(p + j), factor, shift)));
    F gradient = load(d_p + j), kept = probability;
    if (drop.threshold != 0) {
      const F f = drop_factors(drop, row, first_key + j);
      gradient = mul(gradient, f);
      kept = mul(probability, f);
    }
    store(p + j, kept);
    store(d_p + j, mul(mul(probability, set1(scale)), sub(gradient, mean)));
  }
}

// With d_scores [rows][ld] of a block of queries: gradients of the tables, and the tables' part of d_q and d_k.
// `q` and `k` are rows readable up to whole vectors.
void distance_gradients(const HeadGradArgs& a, const Distances& distances, const Rows& q, const Rows& k,
                        const Rows& table_keys, const Rows& table_queries, int64_t first, int64_t rows,
                        const float* d_scores, int64_t ld) {
  const int64_t row = distances.table_row(first, rows), width = a.keys + rows - 1;
  if (a.distances.keys != nullptr) {
    const int64_t ld_c = distances.query_ld();
    float* d_c = distances.by_query();  // d_scores by distance
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t c = 0; c < width; ++c) d_c[r * ld_c + c] = 0;
      for (int64_t j = 0; j < a.keys; ++j) d_c[r * ld_c + j + rows - 1 - r] = d_scores[r * ld + j];
    }
    const int64_t own = row - distances.table_row(0, a.queries);
    multiply({rows, a.D, width, d_c, ld_c, 1, table_keys.x + own * table_keys.ld, table_keys.ld,
              a.d_q + first * a.ld_d_q, a.ld_d_q, nullptr, true});
    multiply({width, a.D, rows, d_c, 1, ld_c, q.x + first * q.ld, q.ld, a.d_distance_keys + row * a.ld_d_distances,
              a.ld_d_distances, nullptr, true});
  }
  for (int64_t j0 = 0; a.distances.queries != nullptr && j0 < a.keys; j0 += kQueryBlock) {
    const int64_t count = a.keys - j0 < kQueryBlock ? a.keys - j0 : kQueryBlock, columns = count + rows - 1;
    constexpr int64_t ld_c = Distances::kKeyLd;
    float* d_c = distances.by_key();
    for (int64_t j = 0; j < count; ++j) {
      for (int64_t c = 0; c < columns; ++c) d_c[j * ld_c + c] = 0;
      for (int64_t r = 0; r < rows; ++r) d_c[j * ld_c + j + rows - 1 - r] = d_scores[r * ld + j0 + j];
    }
    const int64_t own = row + j0 - distances.table_row(0, a.queries);
    multiply({count, a.D, columns, d_c, ld_c, 1, table_queries.x + own * table_queries.ld, table_queries.ld,
              a.d_k + j0 * a.ld_d_k, a.ld_d_k, nullptr, true});
    multiply({columns, a.D, count, d_c, 1, ld_c, k.x + j0 * k.ld, k.ld,
              a.d_distance_queries + (row + j0) * a.ld_d_distances, a.ld_d_distances, nullptr, true});
  }
}

void attend_grad(const HeadGradArgs& a) {
  const int64_t L = round_up(a.keys, kLanes), width = round_up(a.D, kLanes);
  float* keys = a.scratch;               // [D][L]
  float* values = keys + a.D * L;        // [D][L]
  float* p = values + a.D * L;           // [kQueryBlock][L]
  float* d_p = p + kQueryBlock * L;      // [kQueryBlock][L]
  float* zeros = d_p + kQueryBlock * L;  // [D]
  float* copies = zeros + width;         // up to three times [keys][D padded]
  for (int64_t d = 0; d < a.D; ++d) zeros[d] = 0;
  transpose_rows(a.k, a.ld_k, a.keys, a.D, keys, L, zeros);
  transpose_rows(a.v, a.ld_v, a.keys, a.D, values, L, zeros);
  const Rows k = padded_rows(a.k, a.ld_k, a.keys, a.D, copies);
  const Rows q = padded_rows(a.q, a.ld_q, a.queries, a.D, copies + a.keys * width);
  const Rows d_out = padded_rows(a.d_out, a.ld_d_out, a.queries, a.D, copies + 2 * a.keys * width);
  const bool by_distance = a.distances.any();
  const Distances distances = by_distance ? Distances(a.distances, 0, a.queries, a.keys, a.D) : Distances();
  Rows table_keys{}, table_queries{};
  if (by_distance) {
    const int64_t rows = a.queries + a.keys - 1, row = distances.table_row(0, a.queries);
    const cpu::HeadDistances& at = a.distances;
    if (at.keys != nullptr)
      table_keys = padded_rows(at.keys + row * at.ld_keys, at.ld_keys, rows, a.D, distances.rest());
    if (at.queries != nullptr)
      table_queries =
          padded_rows(at.queries + row * at.ld_queries, at.ld_queries, rows, a.D, distances.rest() + rows * width);
  }
  if (a.window > 0)  // blocks of queries see different keys, so all gradients are accumulated
    for (int64_t j = 0; j < a.keys; ++j)
      for (int64_t d = 0; d < a.D; ++d) a.d_k[j * a.ld_d_k + d] = a.d_v[j * a.ld_d_v + d] = 0;
  for (int64_t first = 0; first < a.queries; first += kQueryBlock) {
    const int64_t rows = a.queries - first < kQueryBlock ? a.queries - first : kQueryBlock;
    const bool more = first > 0 || a.window > 0;
    const cpu::KeySpan seen = cpu::seen_keys(a.window, first, rows, a.keys, 16);
    const int64_t from = seen.first, count = seen.end - from, padded = round_up(count, kLanes);
    multiply({rows, padded, a.D, a.q + first * a.ld_q, a.ld_q, 1, keys + from, L, p, L, nullptr, false});
    multiply(
        {rows, padded, a.D, a.d_out + first * a.ld_d_out, a.ld_d_out, 1, values + from, L, d_p, L, nullptr, false});
    if (by_distance) distances.add_to(a.q + first * a.ld_q, a.ld_q, a.k, a.ld_k, first, rows, p, L);
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t row = first + i;
      const float delta = dot(a.out + row * a.ld_out, a.d_out + row * a.ld_d_out, a.D);
      if (a.d_bias != nullptr) cpu::add_bias(a.bias, row, count, a.scale, p + i * L);
      if (a.window > 0) mask_row(p + i * L, count, row - from, a.window);
      grad_row(p + i * L, d_p + i * L, count, a.scale, a.lse[row * a.ld_lse], delta, a.drop,
               static_cast<uint64_t>(row * a.drop_step), from);
      if (a.d_bias != nullptr) cpu::add_bias_gradient(a.bias, row, count, a.scale, d_p + i * L, a.d_bias);
    }
    float *d_k = a.d_k + from * a.ld_d_k, *d_v = a.d_v + from * a.ld_d_v;
    multiply(
        {rows, a.D, count, d_p, L, 1, k.x + from * k.ld, k.ld, a.d_q + first * a.ld_d_q, a.ld_d_q, nullptr, false});
    multiply({count, a.D, rows, d_p, 1, L, q.x + first * q.ld, q.ld, d_k, a.ld_d_k, nullptr, more});
    multiply({count, a.D, rows, p, 1, L, d_out.x + first * d_out.ld, d_out.ld, d_v, a.ld_d_v, nullptr, more});
    if (by_distance) distance_gradients(a, distances, q, k, table_keys, table_queries, first, rows, d_p, L);
  }
}

#define BRIM_TEXT_OF(x) #x
#define BRIM_TEXT(x) BRIM_TEXT_OF(x)

}  // namespace

extern const cpu::AttentionKernels kAttentionKernels = {
    .name = BRIM_TEXT(BRIM_ISA), .attend = attend, .attend_grad = attend_grad};

}  // namespace brim::ops::BRIM_ISA
