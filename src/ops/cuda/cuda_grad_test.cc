// SPDX-License-Identifier: Apache-2.0
// Gradients on CUDA compared with fp64. The op's inputs (out, lse, mean, rstd) are exact inputs of the reference too.
#include "base/token.h"
#include "ops/attention.h"
#include "ops/cuda/testing.h"
#include "ops/linear.h"
#include "ops/rows.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

// ---- attention ----
struct AttentionSetting {
  DType dtype = DType::bf16;
  int64_t heads = 2, D = 64;
  std::vector<int32_t> lengths;
  bool first_query_only = false, order = true;
  Dropout dropout;
  int64_t window = 0;
  int64_t reach = 0;  // above 0: adds a bias by distance
};

// Errors: the exponent has D roundings of the score's largest partial sum, those of lse, and of exp2; d_out·V and delta
// have D roundings each; dS and P are rounded to the element type before the last products (not in the fp32 kernel),
// which add n roundings; one rounding of the result. With 16 bits, delta comes from the rounded out or from P and
// d_out·V, with their errors.
void check_attention_grad(const AttentionSetting& c) {
  SCOPED_TRACE(::testing::Message() << dtype_name(c.dtype) << " D " << c.D << " sequences " << c.lengths.size()
                                    << " first only " << c.first_query_only << " dropout " << c.dropout.probability
                                    << " order " << c.order << " window " << c.window << " reach " << c.reach);
  const PackedBatch packed(c.lengths, c.order);
  const int64_t T = packed.batch.T, B = packed.batch.B, N = c.heads, D = c.D, H = N * D,
                Tq = c.first_query_only ? B : T;
  const HostTensor qkv = random_tensor(c.dtype, {T, 3 * H}, 21, 1), q1 = random_tensor(c.dtype, {B, H}, 22, 1),
                   d_out = random_tensor(c.dtype, {Tq, H}, 23, 1, 0, 8);
  const HostTensor out(c.dtype, {Tq, H}), lse(DType::f32, {Tq, N});
  out.fill(0);
  lse.fill(0);
  const double scale = 1 / std::sqrt(static_cast<double>(D)), eps = c.dtype == DType::f32 ? 0 : eps_of(c.dtype);
  const std::vector<double> all = qkv.values(), firsts = q1.values(),
                            uppers = d_out.values();  // plain doubles, because the loops below are long
  const auto at = [&](int64_t row, int64_t column) { return all[static_cast<size_t>(row * 3 * H + column)]; };
  const auto q = [&](int64_t row, int64_t column) {
    return c.first_query_only ? firsts[static_cast<size_t>(row * H + column)] : at(row, column);
  };
  const auto up = [&](int64_t row, int64_t column) { return uppers[static_cast<size_t>(row * H + column)]; };
  const auto factor = [&](int64_t row, int64_t head, int64_t key) {
    if (!c.dropout.on()) return 1.0;
    const uint64_t bits =
        dropout_bits(c.dropout.seed, c.dropout.site, static_cast<uint64_t>((c.dropout.first_row + row) * N + head),
                     static_cast<uint32_t>(key / 4));
    return dropout_keeps(bits, static_cast<int>(key & 3), dropout_threshold(c.dropout.probability))
               ? 1 / (1 - static_cast<double>(c.dropout.probability))
               : 0.0;
  };
  std::vector<double> d_q(static_cast<size_t>(Tq * H)), d_k(static_cast<size_t>(T * H)), d_v(d_k.size()),
      q_tol(d_q.size(), smallest_of(c.dtype)), k_tol(d_k.size(), smallest_of(c.dtype)), v_tol(k_tol);
  std::vector<double> k_size(d_k.size()), v_size(d_k.size());
  const int64_t width = c.reach > 0 ? 2 * c.reach + 1 : 0;
  const HostTensor bias = random_tensor(DType::f32, {N, 2 * c.reach + 1}, 24, 1.0);
  std::vector<double> d_bias(static_cast<size_t>(N * width)), bias_tol(d_bias.size(), 1e-30);
  const auto bias_at = [&](int64_t distance) { return c.reach + std::clamp(distance, -c.reach, c.reach); };
  for (int64_t b = 0; b < B; ++b)
    for (int64_t head = 0; head < N; ++head) {
      const int64_t begin = packed.starts[b], n = packed.lengths[b],
                    queries = c.first_query_only ? std::min<int64_t>(1, n) : n;
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t row = c.first_query_only ? b : begin + i;
        std::vector<double> s(static_cast<size_t>(n)), p(s.size()), dp(s.size());
        double top = -INFINITY, sum = 0, score_size = 0, dp_size = 0;
        for (int64_t j = 0; j < n; ++j) {
          double size = 0, size_dp = 0;
          for (int64_t d = 0; d < D; ++d) {
            const double product = q(row, head * D + d) * at(begin + j, H + head * D + d),
                         product_dp = up(row, head * D + d) * at(begin + j, 2 * H + head * D + d);
            s[j] += product * scale;
            size += std::fabs(product) * scale;
            dp[j] += product_dp;
            size_dp += std::fabs(product_dp);
          }
          if (c.reach > 0) {
            s[j] += bias.at(head, bias_at(j - i));
            size += std::fabs(bias.at(head, bias_at(j - i)));
          }
          if (c.window > 0 && std::abs(i - j) > c.window) s[j] = -INFINITY;
          top = std::max(top, s[j]);
          score_size = std::max(score_size, size);
          dp_size = std::max(dp_size, size_dp);
        }
        for (const double x : s) sum += std::exp(x - top);
        lse.set(row, head, top + std::log(sum));
        for (int64_t d = 0; d < D; ++d) {
          double o = 0;
          for (int64_t j = 0; j < n; ++j)
            o += std::exp(s[j] - lse.at(row, head)) * factor(row, head, j) * at(begin + j, 2 * H + head * D + d);
          out.set(row, head * D + d, o);
        }
        double delta = 0, delta_size = 0;
        for (int64_t d = 0; d < D; ++d) {
          const double product = out.at(row, head * D + d) * up(row, head * D + d);
          delta += product;
          delta_size += std::fabs(product);
        }
        const double steps = static_cast<double>(D) + 8,
                     exponent_error = kEps32 * steps * score_size + 8 * kEps32 * (1 + std::fabs(lse.at(row, head)));
        double delta_error = kEps32 * steps * delta_size;
        if (eps > 0) delta_error += eps * 1.01 * delta_size;
        for (int64_t j = 0; j < n && eps > 0; ++j)
          delta_error += std::exp(s[j] - lse.at(row, head)) * factor(row, head, j) *
                         (std::fabs(dp[j]) * exponent_error + kEps32 * steps * dp_size);
        for (int64_t j = 0; j < n; ++j) {
          const double m = factor(row, head, j), prob = std::exp(s[j] - lse.at(row, head)),
                       d_score = prob * (dp[j] * m - delta);
          const double p_error = prob * m * (exponent_error + eps * 1.01) + smallest_of(c.dtype);
          const double s_error = prob *
                                     ((std::fabs(dp[j]) * m + std::fabs(delta)) * exponent_error +
                                      kEps32 * steps * dp_size * m + delta_error) *
                                     (1 + eps) +
                                 eps * 1.01 * std::fabs(d_score) + smallest_of(c.dtype);
          if (c.reach > 0) {
            const auto to = static_cast<size_t>(head * width + bias_at(j - i));
            d_bias[to] += d_score;
            bias_tol[to] += s_error + static_cast<double>(T) * kEps32 * std::fabs(d_score);
          }
          for (int64_t d = 0; d < D; ++d) {
            const size_t at_q = static_cast<size_t>(row * H + head * D + d),
                         at_k = static_cast<size_t>((begin + j) * H + head * D + d);
            const double key = at(begin + j, H + head * D + d), query = q(row, head * D + d),
                         upper = up(row, head * D + d), depth = static_cast<double>(n) * kEps32 * 4;
            d_q[at_q] += scale * d_score * key;
            q_tol[at_q] += scale * std::fabs(key) * (s_error + depth * std::fabs(d_score));
            d_k[at_k] += scale * d_score * query;
            k_tol[at_k] += scale * std::fabs(query) * (s_error + depth * std::fabs(d_score));
            d_v[at_k] += prob * m * upper;
            v_tol[at_k] += std::fabs(upper) * (p_error + depth * prob * m);
          }
        }
      }
    }
  for (size_t i = 0; i < d_q.size(); ++i) q_tol[i] += eps_of(c.dtype) * (std::fabs(d_q[i]) + q_tol[i]);
  for (size_t i = 0; i < d_k.size(); ++i) {
    k_tol[i] += eps_of(c.dtype) * (std::fabs(d_k[i]) + k_tol[i]);
    v_tol[i] += eps_of(c.dtype) * (std::fabs(d_v[i]) + v_tol[i]);
  }

  const DeviceTensor g_qkv(qkv), g_q1(q1), g_out(out), g_d_out(d_out), g_lse(lse), g_d_qkv(c.dtype, {T, 3 * H}, 8),
      g_d_q1(c.dtype, {B, H});
  const DeviceTensor scratch(
      bytes_tensor(attention_grad_scratch_bytes(Gpu::stream(), std::max(T, B), packed.batch.S, H, N, 1, width)));
  const DeviceTensor g_bias(bias), g_d_bias(DType::f32, {N, 2 * c.reach + 1});
  AttentionGradArgs args;
  if (c.reach > 0) {
    args.bias = g_bias;
    args.d_bias = g_d_bias;
  }
  args.q = c.first_query_only ? g_q1.view() : g_qkv.view().slice_cols(0, H);
  args.k = g_qkv.view().slice_cols(H, 2 * H);
  args.v = g_qkv.view().slice_cols(2 * H, 3 * H);
  args.out = g_out;
  args.lse = g_lse;
  args.d_out = g_d_out;
  args.d_q = c.first_query_only ? g_d_q1.view() : g_d_qkv.view().slice_cols(0, H);
  args.d_k = g_d_qkv.view().slice_cols(H, 2 * H);
  args.d_v = g_d_qkv.view().slice_cols(2 * H, 3 * H);
  args.batch = packed.batch;
  args.first_query_only = c.first_query_only;
  args.heads = N;
  args.window = c.window;
  args.scratch = scratch;
  args.dropout = c.dropout;
  attention_grad(Gpu::stream(), args);
  const HostTensor got = g_d_qkv.host();
  const auto part = [&](int64_t from) {
    std::vector<double> columns;
    for (int64_t t = 0; t < T; ++t)
      for (int64_t i = 0; i < H; ++i) columns.push_back(got.at(t, from + i));
    return columns;
  };
  EXPECT_TRUE(close(c.first_query_only ? g_d_q1.values() : part(0), d_q, [&](size_t i) { return q_tol[i]; })) << "d_q";
  EXPECT_TRUE(close(part(H), d_k, [&](size_t i) { return k_tol[i]; })) << "d_k";
  EXPECT_TRUE(close(part(2 * H), d_v, [&](size_t i) { return v_tol[i]; })) << "d_v";
  if (B == 0) return;
  if (c.reach > 0) {
    EXPECT_TRUE(close(g_d_bias.values(), d_bias, [&](size_t i) { return bias_tol[i]; })) << "d_bias";
  }
  if (Gpu::emulated() && c.reach == 0) return;
  const HostTensor before = g_d_bias.host();
  attention_grad(Gpu::stream(), args);
  EXPECT_TRUE(same_bits(got, g_d_qkv.host())) << "the second time";
  EXPECT_TRUE(same_bits(before, g_d_bias.host())) << "d_bias the second time";
}

std::vector<int32_t> grad_lengths() {
  if (Gpu::emulated()) return {1, 2, 8, 0, 15, 16, 17, 32, 33, 48, 64, 65, 1, 129, 5};
  std::vector<int32_t> all;
  for (int32_t n = 0; n <= 70; ++n) all.push_back(n);
  for (const int32_t n : {1, 127, 128, 129, 192, 256, 300, 512, 2, 0}) all.push_back(n);
  return all;
}

using CudaAttentionGrad = CudaOps;
TEST_F(CudaAttentionGrad, MatchesFp64AtEveryLength) {
  for (const DType dtype : kActivationTypes)
    for (const int64_t D : {32, 64})
      for (const bool first : {false, true})
        for (const float probability : {0.0f, 0.1f})
          check_attention_grad({.dtype = dtype,
                                .D = D,
                                .lengths = grad_lengths(),
                                .first_query_only = first,
                                .dropout = {.probability = probability, .seed = 3, .site = 5, .first_row = 2}});
}
TEST_F(CudaAttentionGrad, SumsTheBiasByDistance) {
  const std::vector<int32_t> lengths = Gpu::emulated() ? std::vector<int32_t>{1, 17, 33, 0, 110} : grad_lengths();
  for (const DType dtype : kActivationTypes)
    for (const int64_t D : {32, 64, 24})
      for (const bool first : {false, true}) {
        if (Gpu::emulated() && (dtype == DType::f16 || D == 32) && !first) continue;
        check_attention_grad({.dtype = dtype,
                              .D = D,
                              .lengths = lengths,
                              .first_query_only = first,
                              .dropout = {.probability = D == 64 ? 0.1f : 0.0f, .seed = 3, .site = 5},
                              .reach = D == 24 ? 6 : 91});
      }
}
TEST_F(CudaAttentionGrad, HandlesAllKindsOfBatches) {
  for (const DType dtype : kActivationTypes)
    for (const auto& lengths : ragged_lengths())
      for (const bool first : {false, true})
        for (const bool order : {false, true})
          check_attention_grad(
              {.dtype = dtype, .heads = 3, .lengths = lengths, .first_query_only = first, .order = order});
  for (const int64_t D : {24, 96}) check_attention_grad({.dtype = DType::bf16, .D = D, .lengths = {3, 0, 40}});
}
TEST_F(CudaAttentionGrad, SeesOnlyKeysWithinItsWindow) {
  const std::vector<int32_t> lengths =
      Gpu::emulated() ? std::vector<int32_t>{20, 0, 66, 140} : std::vector<int32_t>{3, 0, 20, 33, 66, 129, 300};
  const Dropout drop{.probability = 0.1f, .seed = 3, .site = 5, .first_row = 2};
  for (AttentionSetting c :
       {AttentionSetting{.dtype = DType::f32, .D = 24, .window = 20},
        AttentionSetting{.dtype = DType::f16, .D = 32, .order = false, .window = 3},
        AttentionSetting{.first_query_only = true, .window = 20}, AttentionSetting{.dropout = drop, .window = 64}}) {
    c.lengths = lengths;
    check_attention_grad(c);
  }
}

// ---- linear ----
using CudaLinearGrad = CudaOps;
void expect_linear_grad(Precision precision, DType type, int64_t T, int64_t N, int64_t K, GradWrite write,
                        const TensorView& scratch, uint64_t& seed) {
  SCOPED_TRACE(::testing::Message() << precision_name(precision) << " T " << T << " N " << N << " K " << K
                                    << " accumulate " << (write == GradWrite::accumulate));
  const bool add = write == GradWrite::accumulate;
  const HostTensor x = random_tensor(type, {T, K}, ++seed), w = random_tensor(type, {N, K}, ++seed),
                   d_y = random_tensor(type, {T, N}, ++seed);
  const HostTensor d_x0 = random_tensor(type, {T, K}, ++seed), d_w0 = random_tensor(DType::f32, {N, K}, ++seed),
                   d_b0 = random_tensor(DType::f32, {N}, ++seed);
  const DeviceTensor gx(x), gw(w), gy(d_y), g_d_x(d_x0), g_d_w(d_w0), g_d_b(d_b0);
  LinearGradArgs args{.x = gx,
                      .w_plain = gw,
                      .d_y = gy,
                      .d_x = g_d_x,
                      .d_w = g_d_w,
                      .d_bias = g_d_b,
                      .scratch = scratch,
                      .precision = precision,
                      .d_x_write = write,
                      .d_w_write = write};
  linear_grad(Gpu::stream(), args);
  const double inner = precision == Precision::tf32 ? 2 * 0x1p-10 : 0;
  std::vector<double> want, tolerance;
  const auto put = [&](double sum, double size, double steps, double start, DType to) {
    // The library may round a product to the result type before adding the existing value.
    const double error = size * (4 * kEps32 * (steps + 8) + inner) + 2 * kEps32 * std::fabs(start) +
                         (add ? 1.01 * eps_of(to) * std::fabs(sum) : 0);
    want.push_back(sum + start);
    tolerance.push_back(error + eps_of(to) * (std::fabs(sum + start) + error) + smallest_of(to));
  };
  for (int64_t t = 0; t < T; ++t)
    for (int64_t k = 0; k < K; ++k) {
      double sum = 0, size = 0;
      for (int64_t n = 0; n < N; ++n) {
        sum += d_y.at(t, n) * w.at(n, k);
        size += std::fabs(d_y.at(t, n) * w.at(n, k));
      }
      put(sum, size, static_cast<double>(N), add ? d_x0.at(t, k) : 0, type);
    }
  EXPECT_TRUE(close(g_d_x.values(), want, [&](size_t i) { return tolerance[i]; })) << "d_x";
  want.clear();
  tolerance.clear();
  for (int64_t n = 0; n < N; ++n)
    for (int64_t k = 0; k < K; ++k) {
      double sum = 0, size = 0;
      for (int64_t t = 0; t < T; ++t) {
        sum += d_y.at(t, n) * x.at(t, k);
        size += std::fabs(d_y.at(t, n) * x.at(t, k));
      }
      put(sum, size, static_cast<double>(T), add ? d_w0.at(n, k) : 0, DType::f32);
    }
  EXPECT_TRUE(close(g_d_w.values(), want, [&](size_t i) { return tolerance[i]; })) << "d_w";
  want.clear();
  tolerance.clear();
  for (int64_t n = 0; n < N; ++n) {
    double sum = 0, size = 0;
    for (int64_t t = 0; t < T; ++t) {
      sum += d_y.at(t, n);
      size += std::fabs(d_y.at(t, n));
    }
    put(sum, size, static_cast<double>(T), add ? d_b0.at(n) : 0, DType::f32);
  }
  EXPECT_TRUE(close(g_d_b.values(), want, [&](size_t i) { return tolerance[i]; })) << "d_bias";
}

TEST_F(CudaLinearGrad, MatchesFp64) {
  std::vector<std::pair<Precision, DType>> kinds{{Precision::fp32, DType::f32}, {Precision::fp16, DType::f16}};
  if (cuda_info(Gpu::device()).bf16) {
    kinds.emplace_back(Precision::bf16, DType::bf16);
    kinds.emplace_back(Precision::tf32, DType::f32);
  }
  uint64_t seed = 1;
  for (const auto& [precision, type] : kinds)
    for (const auto& [N, K] : {std::pair<int64_t, int64_t>{64, 96}, {3, 96}, {9, 40}, {2, 7}, {16, 64}, {72, 136}})
      for (const int64_t T : {0, 1, 31, 64, 65, Gpu::emulated() ? 130 : 1000})
        for (const GradWrite write : {GradWrite::overwrite, GradWrite::accumulate})
          expect_linear_grad(precision, type, T, N, K, write, gemm_scratch(), seed);
}

TEST_F(CudaLinearGrad, MatchesFp64AtShapesOfAdapters) {
  if (Gpu::emulated()) GTEST_SKIP() << "too slow on the emulator";
  uint64_t seed = 1;
  for (const auto& [precision, type] : {std::pair{Precision::fp32, DType::f32}, {Precision::fp16, DType::f16}})
    for (const auto& [N, K] : {std::pair<int64_t, int64_t>{8, 1024}, {16, 256}, {24, 64}, {1024, 8}})
      for (const int64_t T : {511, 512, 3000})
        for (const GradWrite write : {GradWrite::overwrite, GradWrite::accumulate})
          expect_linear_grad(precision, type, T, N, K, write, gemm_scratch(), seed);
}

// One weight gradient exceeds the workspace given to the library.
TEST_F(CudaLinearGrad, MatchesFp64WithManyLabels) {
  if (Gpu::emulated()) GTEST_SKIP() << "8.4 million weights take the emulation a minute";
  constexpr int64_t kT = 3, kN = 11'001, kK = 768;
  const DeviceTensor scratch(bytes_tensor(linear_grad_scratch_bytes(Gpu::stream(), kT, kN, kK, Precision::fp16, 1)));
  uint64_t seed = 1;
  for (const auto& [precision, type] : {std::pair{Precision::fp32, DType::f32}, {Precision::fp16, DType::f16}})
    for (const GradWrite write : {GradWrite::overwrite, GradWrite::accumulate})
      expect_linear_grad(precision, type, kT, kN, kK, write, scratch, seed);
}

// ---- rows ----
using CudaRowsGrad = CudaOps;
TEST_F(CudaRowsGrad, ActivationsScatterAndDropout) {
  for (const DType type : kActivationTypes)
    for (const int64_t pad : {0, 1, 8}) {
      const HostTensor x = random_tensor(type, {11, 24}, 5, 2, 0, pad),
                       d_y = random_tensor(type, {11, 24}, 6, 1, 0, pad);
      const DeviceTensor gx(x), gy(d_y), gd(type, {11, 24}, pad);
      for (const Activation activation : kEveryActivation) {
        activate_grad(Gpu::stream(), {.x = gx, .d_y = gy, .d_x = gd, .activation = activation});
        std::vector<double> want = x.values();
        const std::vector<double> upper = d_y.values();
        for (size_t i = 0; i < want.size(); ++i) {
          const double v = want[i];  // for relu and tanh: the output
          const double slope = activation == Activation::tanh ? 1 - v * v : slope64(activation, v);
          want[i] = slope * upper[i];
        }
        // The terms of the slope times their exponents are below 2 + x², each accurate to a few ulp.
        const std::vector<double> at = x.values();
        EXPECT_TRUE(close(gd.values(), want,
                          [&](size_t i) {
                            return eps_of(type) * std::fabs(want[i]) +
                                   16 * kEps32 * std::fabs(upper[i]) * (2 + at[i] * at[i]) + smallest_of(type);
                          }))
            << dtype_name(type) << " " << static_cast<int>(activation);

        const DeviceTensor in_place(d_y), scratch(DType::u8, {1 << 14}, 0);
        const HostTensor bias0 = random_tensor(DType::f32, {24}, 8);
        const DeviceTensor summed(bias0);
        activate_grad(Gpu::stream(), {.x = gx,
                                      .d_y = in_place,
                                      .d_x = in_place,
                                      .d_bias = summed,
                                      .scratch = scratch,
                                      .activation = activation});
        const std::vector<double> stored = in_place.values();
        EXPECT_EQ(stored, gd.values()) << "in place";
        std::vector<double> sums = bias0.values(), sizes(24, 1);
        for (size_t i = 0; i < stored.size(); ++i) {
          sums[i % 24] += stored[i];
          sizes[i % 24] += std::fabs(stored[i]);
        }
        // The summed values are not rounded to the type.
        EXPECT_TRUE(close(summed.values(), sums,
                          [&](size_t i) { return (eps_of(type) + 16 * kEps32) * sizes[i] + 11 * smallest_of(type); }))
            << dtype_name(type) << " " << static_cast<int>(activation);

        // The output recomputed in place of the input: same bits as activate, and as the gradient that reads the stored
        // output.
        const DeviceTensor kept(type, {11, 24}, pad);
        activate(Gpu::stream(), {.x = gx, .y = kept, .activation = activation});
        activate_grad(
            Gpu::stream(),
            {.x = slope_reads_output(activation) ? kept : gx, .d_y = gy, .d_x = gd, .activation = activation});
        for (const bool summing : {false, true}) {
          const DeviceTensor made(x), d_made(d_y), made_sums(bias0);
          ActivationGradArgs args{.x = made, .d_y = d_made, .d_x = d_made, .y = made, .activation = activation};
          if (summing) {
            args.d_bias = made_sums;
            args.scratch = scratch;
          }
          activate_grad(Gpu::stream(), args);
          EXPECT_EQ(made.values(), kept.values()) << dtype_name(type) << " " << static_cast<int>(activation);
          EXPECT_EQ(d_made.values(), gd.values()) << dtype_name(type) << " " << static_cast<int>(activation);
          if (summing && !slope_reads_output(activation)) {
            EXPECT_EQ(made_sums.values(), summed.values());
          }
        }
      }
      const Dropout drop{.probability = 0.3f, .seed = 9, .site = 3, .first_row = 4};
      dropout_rows(Gpu::stream(), {.x = gx, .y = gd, .dropout = drop});
      std::vector<double> want;
      for (int64_t r = 0; r < 11; ++r)
        for (int64_t i = 0; i < 24; ++i) want.push_back(x.at(r, i) * dropout_factor(drop, r, i));
      EXPECT_TRUE(close(gd.values(), want, [&](size_t i) {
        return (eps_of(type) + 3 * kEps32) * std::fabs(want[i]) + smallest_of(type);
      }));
      const HostTensor before = random_tensor(type, {11, 24}, 8);
      const DeviceTensor g_sum(before);
      dropout_rows(Gpu::stream(),
                   {.x = gx, .y = g_sum, .dropout = drop, .factor = 0.5f, .write = GradWrite::accumulate});
      for (size_t i = 0; i < want.size(); ++i) want[i] = before.values()[i] + 0.5 * want[i];
      EXPECT_TRUE(close(g_sum.values(), want,
                        [&](size_t i) { return 2 * eps_of(type) * (std::fabs(want[i]) + 1) + smallest_of(type); }));

      const HostTensor few = random_tensor(type, {3, 24}, 7);
      const DeviceTensor g_few(few), g_rows(int_tensor({9, 0, 4})), g_to(x);
      scatter_rows(Gpu::stream(), {.d_y = g_few, .rows = g_rows, .d_x = g_to});
      std::vector<double> sums = x.values();
      const int64_t rows[] = {9, 0, 4};
      for (int64_t b = 0; b < 3; ++b)
        for (int64_t i = 0; i < 24; ++i) sums[static_cast<size_t>(rows[b] * 24 + i)] += few.at(b, i);
      EXPECT_TRUE(close(g_to.values(), sums,
                        [&](size_t i) { return (eps_of(type) + kEps32) * std::fabs(sums[i]) + smallest_of(type); }));
    }
}

// More rows than are in flight at a time, and columns that end inside a block.
TEST_F(CudaRowsGrad, ActivationsHandleManyRows) {
  for (const DType type : kActivationTypes) {
    const int64_t T = 100, H = 264;
    const HostTensor x = random_tensor(type, {T, H}, 5, 2), d_y = random_tensor(type, {T, H}, 6);
    const DeviceTensor gx(x), gy(d_y), d_apart(type, {T, H}), y(type, {T, H}), bias(random_tensor(DType::f32, {H}, 8));
    const std::vector<double> bias0 = bias.values();
    activate(Gpu::stream(), {.x = gx, .y = y});
    activate_grad(Gpu::stream(), {.x = gx, .d_y = gy, .d_x = d_apart});
    const DeviceTensor scratch(DType::u8, {activate_grad_scratch_bytes(Gpu::stream(), T, H)});
    ActivationGradArgs args{.x = gx, .d_y = gy, .d_x = gy, .y = gx, .d_bias = bias};
    args.scratch = scratch;
    activate_grad(Gpu::stream(), args);
    EXPECT_EQ(gx.values(), y.values()) << dtype_name(type);
    const std::vector<double> d = gy.values();
    EXPECT_EQ(d, d_apart.values()) << dtype_name(type);
    std::vector<double> sums = bias0, sizes(static_cast<size_t>(H), 1);
    for (size_t i = 0; i < d.size(); ++i) {
      sums[i % static_cast<size_t>(H)] += d[i];
      sizes[i % static_cast<size_t>(H)] += std::fabs(d[i]);
    }
    EXPECT_TRUE(close(bias.values(), sums, [&](size_t i) {
      return (eps_of(type) + static_cast<double>(T) * kEps32) * sizes[i] + static_cast<double>(T) * smallest_of(type);
    })) << dtype_name(type);
  }
}

}  // namespace
}  // namespace brim::ops
