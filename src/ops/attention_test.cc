// SPDX-License-Identifier: Apache-2.0
#include "ops/attention.h"

#include <numeric>
#include <optional>

#include "ops/cpu/attention_kernels.h"
#include "ops/testing.h"

namespace brim::ops {

using device::CpuStream;
using tensor::DType;

namespace {
using namespace brim::ops::testing;

// One packed batch: q, k and v are column ranges of one qkv tensor, as in the model.
struct AttentionCase {
  std::vector<int32_t> lengths, starts;
  int64_t T, B, N, D, H;
  HostTensor qkv, first_q, start_view, order_view;
  std::optional<HostTensor> bias;  // [N,2R+1]
  BatchView batch;
  int64_t window = 0;
  // If `reach` is positive, adds a bias of that reach with the magnitude of the scores.
  AttentionCase(const std::vector<int32_t>& lens, int64_t heads, int64_t head_size, double scale, uint64_t seed,
                int64_t reach = 0)
      : lengths(lens),
        starts(starts_of(lens)),
        T(starts.back()),
        B(static_cast<int64_t>(lens.size())),
        N(heads),
        D(head_size),
        H(N * D),
        qkv(random_tensor(DType::f32, {T, 3 * H}, seed, scale)),
        first_q(random_tensor(DType::f32, {B, H}, seed + 1, scale)),
        start_view(int_tensor(starts)) {
    std::vector<int32_t> order(B);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return lengths[a] > lengths[b]; });
    order_view = int_tensor(order);
    batch = {.T = T,
             .B = B,
             .S = B == 0 ? 0 : *std::max_element(lengths.begin(), lengths.end()),
             .starts = start_view,
             .order = order_view};
    for (const int32_t n : lengths) batch.n_long += n > kShortTokens;
    if (reach > 0) bias.emplace(random_tensor(DType::f32, {N, 2 * reach + 1}, seed + 2, 1.0));
  }
  double bias_of(int64_t head, int64_t distance) const {
    if (!bias) return 0;
    const int64_t reach = bias->view().cols() / 2;
    return bias->at(head, reach + std::clamp(distance, -reach, reach));
  }
  tensor::TensorView bias_view() const { return bias ? bias->view() : tensor::TensorView(); }
  tensor::TensorView q(bool first) const { return first ? first_q.view() : qkv.view().slice_cols(0, H); }
  tensor::TensorView k() const { return qkv.view().slice_cols(H, 2 * H); }
  tensor::TensorView v() const { return qkv.view().slice_cols(2 * H, 3 * H); }
  bool sees(int64_t query, int64_t key) const { return window == 0 || std::abs(query - key) <= window; }
};

// Dropout factor of one probability: its row is (first_row + query row) * heads + head.
double probability_factor(const Dropout& d, int64_t query_row, int64_t heads, int64_t head, int64_t key) {
  Dropout rows = d;
  rows.first_row = (d.first_row + query_row) * heads + head;
  return dropout_factor(rows, 0, key);
}

struct AttentionReference {
  std::vector<double> out, lse, tolerance, lse_tolerance;
};

// `unit` is the rounding unit of the operands: fp32, or bf16 if q, k, p and v are rounded to it.
AttentionReference reference(const AttentionCase& c, bool first, const Dropout& drop, double unit) {
  const int64_t Tq = first ? c.B : c.T;
  AttentionReference r;
  r.out.assign(Tq * c.H, 0);
  r.tolerance.assign(Tq * c.H, 0);
  r.lse.assign(Tq * c.N, -INFINITY);
  r.lse_tolerance.assign(Tq * c.N, 0);
  const double scale = 1 / std::sqrt(static_cast<double>(c.D));
  for (int64_t b = 0; b < c.B; ++b)
    for (int64_t i = 0; i < (first ? std::min(1, c.lengths[b]) : c.lengths[b]); ++i)
      for (int64_t h = 0; h < c.N; ++h) {
        const int64_t row = first ? b : c.starts[b] + i, n = c.lengths[b];
        std::vector<double> s(n);
        double top = -INFINITY, total = 0, score_error = 0;
        for (int64_t j = 0; j < n; ++j) {
          double dot = 0, size = 0;
          for (int64_t d = 0; d < c.D; ++d) {
            const double product = (first ? c.first_q.at(b, h * c.D + d) : c.qkv.at(row, h * c.D + d)) *
                                   c.qkv.at(c.starts[b] + j, c.H + h * c.D + d);
            dot += product;
            size += std::fabs(product);
          }
          s[j] = c.sees(i, j) ? dot * scale + c.bias_of(h, j - i) : -INFINITY;
          size += std::fabs(c.bias_of(h, j - i)) / scale;
          // Both operands rounded to `unit`, D accumulations and the scale in fp32.
          score_error = std::max(score_error, scale * size * (2 * (unit - kEps32) + (std::sqrt(c.D) + 4) * kEps32));
          top = std::max(top, s[j]);
        }
        for (const double v : s) total += std::exp(v - top);
        r.lse[row * c.N + h] = top + std::log(total);
        r.lse_tolerance[row * c.N + h] = score_error + 8 * kEps32 * (std::fabs(top) + std::log(total) + 1);
        // An error e of a score is a relative error e of its probability and, through the sum, of every other: 2e in
        // total.
        const double relative = 2 * score_error + 2 * unit + (std::sqrt(static_cast<double>(n)) + 16) * kEps32 +
                                2 * kEps32 * std::fabs(top);
        for (int64_t d = 0; d < c.D; ++d) {
          double out = 0, size = 0;
          for (int64_t j = 0; j < n; ++j) {
            const double p = std::exp(s[j] - top) / total * probability_factor(drop, row, c.N, h, j);
            const double term = p * c.qkv.at(c.starts[b] + j, 2 * c.H + h * c.D + d);
            out += term;
            size += std::fabs(term);
          }
          r.out[row * c.H + h * c.D + d] = out;
          r.tolerance[row * c.H + h * c.D + d] = relative * size + 1e-30;
        }
      }
  return r;
}

void run_and_compare(const AttentionCase& c, bool first, const Dropout& drop) {
  const int64_t Tq = first ? c.B : c.T;
  const AttentionReference want = reference(c, first, drop, kEps32);
  for_each_cpu_stream([&](CpuStream& stream) {
    const HostTensor out(DType::f32, {Tq, c.H}, 4), lse(DType::f32, {Tq, c.N});
    const int threads = stream.pool() == nullptr ? 1 : stream.pool()->size();
    const HostTensor scratch =
        bytes_tensor(attention_scratch_bytes(stream, c.T, c.batch.S, c.H, c.N, Precision::fp32, threads));
    AttentionArgs args{.q = c.q(first),
                       .k = c.k(),
                       .v = c.v(),
                       .out = out,
                       .batch = c.batch,
                       .first_query_only = first,
                       .heads = c.N,
                       .window = c.window,
                       .lse = lse,
                       .bias = c.bias_view(),
                       .scratch = scratch,
                       .dropout = drop};
    attention(stream, args);
    EXPECT_TRUE(close(out.values(), want.out, [&](size_t i) { return want.tolerance[i]; }));
    EXPECT_TRUE(close(lse.values(), want.lse, [&](size_t i) { return want.lse_tolerance[i]; }));
    // Inference: no statistics and no order; same output.
    const HostTensor again(DType::f32, {Tq, c.H});
    args.out = again;
    args.lse = {};
    args.batch.order = {};
    attention(stream, args);
    EXPECT_TRUE(same_bits(again, out));
  });
}

TEST(Attention, MatchesFp64OnRaggedBatches) {
  uint64_t seed = 1;
  for (const auto& lengths : ragged_lengths())
    for (const auto& [N, D] : {std::pair<int64_t, int64_t>{2, 32}, {3, 64}, {1, 7}, {2, 20}, {1, 128}})
      for (const bool first : {false, true})
        for (const float drop : {0.0f, 0.2f}) {
          SCOPED_TRACE(::testing::Message() << "lengths " << ::testing::PrintToString(lengths) << " N " << N << " D "
                                            << D << " first " << first << " dropout " << drop);
          ++seed;
          run_and_compare(AttentionCase(lengths, N, D, 1.0, seed), first,
                          {.probability = drop, .seed = seed, .site = 4, .first_row = 3});
        }
}

TEST(Attention, AddsABiasByDistance) {
  uint64_t seed = 50;
  for (const auto& lengths : ragged_lengths())
    for (const int64_t reach : {1, 9, 128})
      for (const bool first : {false, true}) {
        ++seed;
        run_and_compare(AttentionCase(lengths, 2, 32, 1.0, seed, reach), first,
                        {.probability = reach == 9 ? 0.2f : 0.0f, .seed = seed, .site = 4});
      }
  run_and_compare(AttentionCase({300, 140}, 1, 20, 1.0, 5, 91), false, {});
}

TEST(Attention, HandlesLongSequencesAndLargeScores) {
  run_and_compare(AttentionCase({512, 5, 300}, 1, 64, 1.0, 5), false, {});
  run_and_compare(AttentionCase({90, 5}, 2, 32, 12.0, 6), false, {});  // scores in the hundreds: nearly one-hot
}

// Windows narrower and wider than blocks of queries, pieces and whole sequences.
TEST(Attention, SeesOnlyKeysWithinItsWindow) {
  uint64_t seed = 40;
  for (const int64_t window : {1, 5, 40, 64, 200})
    for (const bool first : {false, true})
      for (const float drop : {0.0f, 0.2f}) {
        SCOPED_TRACE(::testing::Message() << "window " << window << " first " << first << " dropout " << drop);
        AttentionCase c({3, 0, 300, 17, 66, 150}, 2, 20, 1.0, ++seed);
        c.window = window;
        run_and_compare(c, first, {.probability = drop, .seed = seed, .site = 4, .first_row = 3});
      }
}

// Products in bf16, with q, k, v and the output in fp32 or bf16: every instruction set supports every combination.
TEST(Attention, Bf16MatchesFp64WithinRounding) {
  uint64_t seed = 100;
  for (const auto& lengths : ragged_lengths())
    for (const auto& [N, D] : {std::pair<int64_t, int64_t>{2, 32}, {3, 64}, {2, 20}, {1, 128}})
      for (const bool first : {false, true})
        for (const DType in : {DType::f32, DType::bf16}) {
          AttentionCase c(lengths, N, D, 1.0, ++seed, D == 32 ? 7 : 0);
          const HostTensor qkv(in, {c.T, 3 * c.H}, 8), first_q(in, {c.B, c.H});
          for (int64_t t = 0; t < c.T; ++t)
            for (int64_t i = 0; i < 3 * c.H; ++i) {
              qkv.set(t, i, c.qkv.at(t, i));
              c.qkv.set(t, i, qkv.at(t, i));
            }  // as rounded
          for (int64_t b = 0; b < c.B; ++b)
            for (int64_t i = 0; i < c.H; ++i) {
              first_q.set(b, i, c.first_q.at(b, i));
              c.first_q.set(b, i, first_q.at(b, i));
            }
          const AttentionReference want = reference(c, first, {}, kEpsBf16);
          for_each_cpu_stream([&, N = N, D = D](CpuStream& stream) {
            for (const DType out_type : {DType::f32, DType::bf16}) {
              SCOPED_TRACE(::testing::Message()
                           << "lengths " << ::testing::PrintToString(lengths) << " N " << N << " D " << D << " first "
                           << first << " in " << dtype_name(in) << " out " << dtype_name(out_type));
              const HostTensor out(out_type, {first ? c.B : c.T, c.H}, 8);
              const int threads = stream.pool() == nullptr ? 1 : stream.pool()->size();
              const HostTensor scratch =
                  bytes_tensor(attention_scratch_bytes(stream, c.T, c.batch.S, c.H, c.N, Precision::bf16, threads));
              attention(stream, {.q = first ? first_q.view() : qkv.view().slice_cols(0, c.H),
                                 .k = qkv.view().slice_cols(c.H, 2 * c.H),
                                 .v = qkv.view().slice_cols(2 * c.H, 3 * c.H),
                                 .out = out,
                                 .batch = c.batch,
                                 .first_query_only = first,
                                 .heads = c.N,
                                 .bias = c.bias_view(),
                                 .scratch = scratch,
                                 .precision = Precision::bf16});
              // The short exponential has an error of 1e-4, which also affects the sum.
              EXPECT_TRUE(close(out.values(), want.out, [&](size_t i) {
                return want.tolerance[i] + 2e-4 * std::fabs(want.out[i]) +
                       (out_type == DType::bf16 ? kEpsBf16 * std::fabs(want.out[i]) : 0);
              }));
            }
          });
        }
}

TEST(Attention, UsesBf16KernelsIfSupported) {
  for (const device::Isa isa : device::supported_isas()) {
    const cpu::Bf16AttentionKernels* kernels = cpu::bf16_attention_kernels(isa);
    if (isa == device::Isa::amx || isa == device::Isa::neon_mm) {
      ASSERT_NE(kernels, nullptr);
      EXPECT_STREQ(kernels->name, isa == device::Isa::amx ? "amx_bf16" : "neon_mm_bf16");
      EXPECT_TRUE(kernels->takes(32, 32, 64));
      EXPECT_FALSE(kernels->takes(32, 32, 20));
      // The bf16 kernels round, so a result equal to fp32 would mean that they did not run.
      const AttentionCase c({40}, 1, 64, 1.0, 3);
      CpuStream stream(nullptr, isa);
      const HostTensor fp32(DType::f32, {c.T, c.H}), bf16(DType::f32, {c.T, c.H});
      const HostTensor scratch = bytes_tensor(attention_scratch_bytes(stream, c.T, 40, c.H, 1, Precision::bf16, 1));
      AttentionArgs args{
          .q = c.q(false), .k = c.k(), .v = c.v(), .out = fp32, .batch = c.batch, .heads = 1, .scratch = scratch};
      attention(stream, args);
      args.out = bf16;
      args.precision = Precision::bf16;
      attention(stream, args);
      EXPECT_FALSE(same_bits(fp32, bf16));
    }
  }
}

// A chunk of a batch: starts do not begin at 0, but rows do.
TEST(Attention, StartsAreRelativeToTheFirst) {
  for_each_cpu_stream([](CpuStream& stream) {
    const AttentionCase c({9, 20, 3}, 2, 32, 1.0, 8);
    const HostTensor out(DType::f32, {c.T, c.H}), shifted(DType::f32, {c.T, c.H});
    const int threads = stream.pool() == nullptr ? 1 : stream.pool()->size();
    const HostTensor scratch =
        bytes_tensor(attention_scratch_bytes(stream, c.T, c.batch.S, c.H, c.N, Precision::fp32, threads));
    AttentionArgs args{
        .q = c.q(false), .k = c.k(), .v = c.v(), .out = out, .batch = c.batch, .heads = c.N, .scratch = scratch};
    attention(stream, args);
    std::vector<int32_t> later;
    for (const int32_t s : c.starts) later.push_back(s + 1000);
    const HostTensor later_view = int_tensor(later);
    args.batch.starts = later_view;
    args.out = shifted;
    attention(stream, args);
    EXPECT_TRUE(same_bits(out, shifted));
  });
}

TEST(Attention, RejectsInvalidArguments) {
  CpuStream stream(nullptr, device::best_isa());
  const AttentionCase c({4}, 2, 8, 1.0, 8);
  const HostTensor out(DType::f32, {4, 16}), short_out(DType::f32, {3, 16});
  AttentionArgs args{.q = c.q(false), .k = c.k(), .v = c.v(), .out = short_out, .batch = c.batch, .heads = 2};
  try {
    attention(stream, args);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("out is f32[3,16], must be f32[4,16]"), std::string::npos) << e.what();
  }
  args.out = out;
  args.heads = 3;
  EXPECT_THROW(attention(stream, args), Error);
}

// ---- Gradient ----

// q, k, v, d_out and the three gradients in fp64, rows of H; queries have B rows with `first`.
struct Doubles {
  std::vector<double> q, k, v, d_out, d_q, d_k, d_v, d_q_tolerance, d_k_tolerance, d_v_tolerance;
  std::vector<double> bias, d_bias, d_bias_tolerance;  // [N,2R+1], empty without
};

// Index of the bias of a query-key pair.
size_t bias_at(const AttentionCase& c, int64_t head, int64_t distance) {
  const int64_t width = c.bias->view().cols(), reach = width / 2;
  return static_cast<size_t>(head * width + reach + std::clamp(distance, -reach, reach));
}

Doubles doubles_of(const AttentionCase& c, bool first, const HostTensor& d_out) {
  Doubles x;
  for (int64_t t = 0; t < c.T; ++t)
    for (int64_t i = 0; i < c.H; ++i) {
      if (!first) x.q.push_back(c.qkv.at(t, i));
      x.k.push_back(c.qkv.at(t, c.H + i));
      x.v.push_back(c.qkv.at(t, 2 * c.H + i));
    }
  if (first) x.q = c.first_q.values();
  x.d_out = d_out.values();
  if (c.bias) x.bias = c.bias->values();
  return x;
}

// Calls fn(b, head, query position, query row, p) with the probabilities of each query.
template <class Fn>
void for_queries(const AttentionCase& c, bool first, const Doubles& x, Fn&& fn) {
  const double scale = 1 / std::sqrt(static_cast<double>(c.D));
  for (int64_t b = 0; b < c.B; ++b)
    for (int64_t i = 0; i < (first ? std::min(1, c.lengths[b]) : c.lengths[b]); ++i)
      for (int64_t h = 0; h < c.N; ++h) {
        const int64_t row = first ? b : c.starts[b] + i;
        std::vector<double> p(c.lengths[b]);
        double top = -INFINITY, total = 0;
        for (int64_t j = 0; j < c.lengths[b]; ++j) {
          double dot = 0;
          for (int64_t d = h * c.D; d < (h + 1) * c.D; ++d)
            dot += x.q[row * c.H + d] * x.k[(c.starts[b] + j) * c.H + d];
          p[j] = c.sees(i, j) ? dot * scale + (c.bias ? x.bias[bias_at(c, h, j - i)] : 0) : -INFINITY;
          top = std::max(top, p[j]);
        }
        for (double& v : p) total += v = std::exp(v - top);
        for (double& v : p) v /= total;
        fn(b, h, i, row, p, top, total);
      }
}

double loss_of(const AttentionCase& c, bool first, const Doubles& x, const Dropout& drop) {
  double loss = 0;
  for_queries(c, first, x,
              [&](int64_t b, int64_t h, int64_t, int64_t row, const std::vector<double>& p, double, double) {
                for (int64_t j = 0; j < c.lengths[b]; ++j)
                  for (int64_t d = h * c.D; d < (h + 1) * c.D; ++d)
                    loss += x.d_out[row * c.H + d] * p[j] * probability_factor(drop, row, c.N, h, j) *
                            x.v[(c.starts[b] + j) * c.H + d];
              });
  return loss;
}

void differentiate(const AttentionCase& c, bool first, Doubles& x, const Dropout& drop) {
  x.d_q.assign(x.q.size(), 0);
  x.d_k.assign(x.k.size(), 0);
  x.d_v.assign(x.v.size(), 0);
  x.d_q_tolerance = x.d_q;
  x.d_k_tolerance = x.d_k;
  x.d_v_tolerance = x.d_v;
  x.d_bias.assign(x.bias.size(), 0);
  x.d_bias_tolerance = x.d_bias;
  const double scale = 1 / std::sqrt(static_cast<double>(c.D));
  for_queries(
      c, first, x,
      [&](int64_t b, int64_t h, int64_t i, int64_t row, const std::vector<double>& p, double top, double total) {
        const int64_t n = c.lengths[b];
        std::vector<double> d_p(n), d_p_size(n), score_size(n);
        double delta = 0, delta_size = 0, largest = 0;
        for (int64_t j = 0; j < n; ++j) {
          const double f = probability_factor(drop, row, c.N, h, j);
          for (int64_t d = h * c.D; d < (h + 1) * c.D; ++d) {
            const double term = x.d_out[row * c.H + d] * x.v[(c.starts[b] + j) * c.H + d] * f;
            d_p[j] += term;
            d_p_size[j] += std::fabs(term);
            score_size[j] += std::fabs(x.q[row * c.H + d] * x.k[(c.starts[b] + j) * c.H + d]) * scale;
          }
          score_size[j] += std::fabs(c.bias_of(h, j - i));
          delta += p[j] * d_p[j];
          delta_size += p[j] * d_p_size[j];
          largest = std::max(largest, score_size[j]);
        }
        // Relative error of a probability: of its score (D products), of the log-sum-exp (rounded once, from n such
        // probabilities), and of exp. It also bounds the dot products that follow, which have at most D or n terms.
        const double unit =
            (std::sqrt(static_cast<double>(c.D)) + std::sqrt(static_cast<double>(n)) + 16) * kEps32 * (1 + largest) +
            4 * kEps32 * (std::fabs(top) + std::log(total));
        for (int64_t j = 0; j < n; ++j) {
          const double f = probability_factor(drop, row, c.N, h, j), d_s = p[j] * (d_p[j] - delta) * scale;
          const double d_s_error = unit * 3 * p[j] * (d_p_size[j] + delta_size) * scale;
          if (c.bias) {
            x.d_bias[bias_at(c, h, j - i)] += d_s / scale;
            x.d_bias_tolerance[bias_at(c, h, j - i)] += d_s_error / scale;
          }
          for (int64_t d = h * c.D; d < (h + 1) * c.D; ++d) {
            const int64_t query = row * c.H + d, key = (c.starts[b] + j) * c.H + d;
            x.d_q[query] += d_s * x.k[key];
            x.d_q_tolerance[query] += d_s_error * std::fabs(x.k[key]);
            x.d_k[key] += d_s * x.q[query];
            x.d_k_tolerance[key] += d_s_error * std::fabs(x.q[query]);
            x.d_v[key] += p[j] * f * x.d_out[query];
            x.d_v_tolerance[key] += unit * 3 * p[j] * f * std::fabs(x.d_out[query]);
          }
        }
      });
}

TEST(AttentionGrad, ReferenceMatchesFiniteDifferences) {
  for (const bool first : {false, true})
    for (const float p : {0.0f, 0.3f}) {
      const AttentionCase c({3, 0, 1, 4}, 2, 3, 1.0, 3, p > 0 ? 2 : 0);
      const HostTensor d_out = random_tensor(DType::f32, {first ? c.B : c.T, c.H}, 4);
      const Dropout drop{.probability = p, .seed = 5, .site = 1, .first_row = 7};
      Doubles x = doubles_of(c, first, d_out);
      differentiate(c, first, x, drop);
      const auto loss = [&] { return loss_of(c, first, x, drop); };
      EXPECT_TRUE(close(x.d_q, finite_differences(x.q, loss), 1e-8));
      EXPECT_TRUE(close(x.d_k, finite_differences(x.k, loss), 1e-8));
      EXPECT_TRUE(close(x.d_v, finite_differences(x.v, loss), 1e-8));
      EXPECT_TRUE(close(x.d_bias, finite_differences(x.bias, loss), 1e-8));
    }
}

// Forward, then backward; returns d_q, d_k, d_v (the last two as halves of one tensor, as in the model's d_qkv) and the
// gradient of the bias, if any.
std::vector<HostTensor> run_gradient(CpuStream& stream, const AttentionCase& c, bool first, const Dropout& drop,
                                     const HostTensor& d_out) {
  const int64_t Tq = first ? c.B : c.T;
  const int threads = stream.pool() == nullptr ? 1 : stream.pool()->size();
  const HostTensor out(DType::f32, {Tq, c.H}), lse(DType::f32, {Tq, c.N});
  const HostTensor scratch =
      bytes_tensor(attention_scratch_bytes(stream, c.T, c.batch.S, c.H, c.N, Precision::fp32, threads));
  attention(stream, {.q = c.q(first),
                     .k = c.k(),
                     .v = c.v(),
                     .out = out,
                     .batch = c.batch,
                     .first_query_only = first,
                     .heads = c.N,
                     .window = c.window,
                     .lse = lse,
                     .bias = c.bias_view(),
                     .scratch = scratch,
                     .dropout = drop});
  const int64_t width = c.bias ? c.bias->view().cols() : 0;
  const HostTensor grad_scratch =
      bytes_tensor(attention_grad_scratch_bytes(stream, c.T, c.batch.S, c.H, c.N, threads, width));
  std::vector<HostTensor> d;
  d.emplace_back(DType::f32, std::initializer_list<int64_t>{Tq, c.H}, 5);
  d.emplace_back(DType::f32, std::initializer_list<int64_t>{c.T, 2 * c.H}, 3);
  if (c.bias) d.emplace_back(DType::f32, std::initializer_list<int64_t>{c.N, width});
  attention_grad(stream, {.q = c.q(first),
                          .k = c.k(),
                          .v = c.v(),
                          .out = out,
                          .lse = lse,
                          .d_out = d_out,
                          .d_q = d[0],
                          .d_k = d[1].view().slice_cols(0, c.H),
                          .d_v = d[1].view().slice_cols(c.H, 2 * c.H),
                          .batch = c.batch,
                          .first_query_only = first,
                          .heads = c.N,
                          .window = c.window,
                          .bias = c.bias_view(),
                          .d_bias = c.bias ? d[2].view() : tensor::TensorView(),
                          .scratch = grad_scratch,
                          .dropout = drop});
  return d;
}

void run_and_compare_gradient(const AttentionCase& c, bool first, float p) {
  const HostTensor d_out = random_tensor(DType::f32, {first ? c.B : c.T, c.H}, 6, 1, 0, 2);
  const Dropout drop{.probability = p, .seed = 11, .site = 2};
  Doubles x = doubles_of(c, first, d_out);
  differentiate(c, first, x, drop);
  for_each_cpu_stream([&](CpuStream& stream) {
    SCOPED_TRACE(::testing::Message() << "lengths " << ::testing::PrintToString(c.lengths) << " N " << c.N << " D "
                                      << c.D << " window " << c.window << " first " << first << " dropout " << p);
    const std::vector<HostTensor> d = run_gradient(stream, c, first, drop, d_out);
    EXPECT_TRUE(close(d[0].values(), x.d_q, [&](size_t i) { return x.d_q_tolerance[i] + 1e-30; }));
    std::vector<double> d_k, d_v;
    for (int64_t t = 0; t < c.T; ++t)
      for (int64_t i = 0; i < c.H; ++i) {
        d_k.push_back(d[1].at(t, i));
        d_v.push_back(d[1].at(t, c.H + i));
      }
    EXPECT_TRUE(close(d_k, x.d_k, [&](size_t i) { return x.d_k_tolerance[i] + 1e-30; }));
    EXPECT_TRUE(close(d_v, x.d_v, [&](size_t i) { return x.d_v_tolerance[i] + 1e-30; }));
    if (c.bias && c.B > 0) {
      EXPECT_TRUE(close(d[2].values(), x.d_bias, [&](size_t i) { return x.d_bias_tolerance[i] + 1e-30; }));
    }
  });
}

TEST(AttentionGrad, MatchesFp64OnRaggedBatches) {
  for (const auto& lengths : ragged_lengths())
    for (const auto& [N, D] : {std::pair<int64_t, int64_t>{2, 32}, {1, 64}, {3, 7}})
      for (const bool first : {false, true})
        for (const float p : {0.0f, 0.2f})
          run_and_compare_gradient(
              AttentionCase(lengths, N, D, 1.0, static_cast<uint64_t>(lengths.size() + D), D == 32 ? 5 : 0), first, p);
}

TEST(AttentionGrad, SeesOnlyKeysWithinItsWindow) {
  for (const int64_t window : {1, 20, 64})
    for (const bool first : {false, true})
      for (const float p : {0.0f, 0.2f}) {
        AttentionCase c({3, 0, 130, 17, 66}, 2, 20, 1.0, 9);
        c.window = window;
        run_and_compare_gradient(c, first, p);
      }
}

TEST(AttentionGrad, GivesSameBitsForAllThreadCounts) {
  const AttentionCase c({70, 3, 0, 33, 5, 1}, 3, 32, 1.0, 8), biased({70, 3, 0, 33, 5, 1}, 3, 32, 1.0, 8, 9);
  const HostTensor d_out = random_tensor(DType::f32, {c.T, c.H}, 6);
  expect_same_bits_for_all_thread_counts(
      [&](CpuStream& stream) { return run_gradient(stream, biased, false, {.probability = 0.1f, .seed = 3}, d_out); });
  expect_same_bits_for_all_thread_counts(
      [&](CpuStream& stream) { return run_gradient(stream, c, false, {.probability = 0.1f, .seed = 3}, d_out); });
}

// Splitting long sequences among threads must not change the output bits either.
TEST(Attention, GivesSameBitsForAllThreadCounts) {
  const AttentionCase c({400, 3, 129, 128, 5, 1}, 2, 32, 1.0, 8);
  for (const Precision precision : {Precision::fp32, Precision::bf16})
    expect_same_bits_for_all_thread_counts([&](CpuStream& stream) {
      const int threads = stream.pool() == nullptr ? 1 : stream.pool()->size();
      const HostTensor scratch =
          bytes_tensor(attention_scratch_bytes(stream, c.T, c.batch.S, c.H, c.N, precision, threads));
      std::vector<HostTensor> out;
      out.emplace_back(DType::f32, std::initializer_list<int64_t>{c.T, c.H});
      attention(stream, {.q = c.q(false),
                         .k = c.k(),
                         .v = c.v(),
                         .out = out[0],
                         .batch = c.batch,
                         .heads = c.N,
                         .scratch = scratch,
                         .precision = precision});
      return out;
    });
}

}  // namespace
}  // namespace brim::ops
