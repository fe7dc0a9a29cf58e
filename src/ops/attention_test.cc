// SPDX-License-Identifier: Apache-2.0
#include "ops/attention.h"

#include <numeric>

#include "ops/testing.h"

namespace brim {
namespace {
using namespace brim::testing;

// One packed batch: q, k and v are column ranges of one qkv, as in the model.
struct Case {
  std::vector<int32_t> lengths, starts;
  int64_t T, B, N, D, H;
  HostTensor qkv, first_q, start_view, order_view;
  BatchView batch;
  Case(const std::vector<int32_t>& lens, int64_t heads, int64_t head_size, double scale, uint64_t seed)
      : lengths(lens), starts(starts_of(lens)), T(starts.back()), B(static_cast<int64_t>(lens.size())), N(heads), D(head_size), H(N * D),
        qkv(random_tensor(DType::f32, {T, 3 * H}, seed, scale)), first_q(random_tensor(DType::f32, {B, H}, seed + 1, scale)),
        start_view(int_tensor(starts)) {
    std::vector<int32_t> order(B);
    std::iota(order.begin(), order.end(), 0);
    std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return lengths[a] > lengths[b]; });
    order_view = int_tensor(order);
    batch = {.T = T, .B = B, .S = B == 0 ? 0 : *std::max_element(lengths.begin(), lengths.end()), .starts = start_view, .order = order_view};
    for (const int32_t n : lengths) batch.n_long += n > kShortTokens;
  }
  TensorView q(bool first) const { return first ? first_q.view() : qkv.view().slice_cols(0, H); }
  TensorView k() const { return qkv.view().slice_cols(H, 2 * H); }
  TensorView v() const { return qkv.view().slice_cols(2 * H, 3 * H); }
};

bool kept(const Dropout& d, int64_t query_row, int64_t heads, int64_t head, int64_t key) {
  const uint64_t bits = dropout_bits(d.seed, d.site, static_cast<uint64_t>((d.first_row + query_row) * heads + head), static_cast<uint32_t>(key / 4));
  return dropout_keeps(bits, static_cast<int>(key & 3), dropout_threshold(d.probability));
}

struct Reference {
  std::vector<double> out, lse, tolerance, lse_tolerance;
};

// `unit` is the rounding of the operands: fp32's, or bf16's where q, k, p and v are rounded to it.
Reference reference(const Case& c, bool first, const Dropout& drop, double unit) {
  const int64_t Tq = first ? c.B : c.T;
  Reference r;
  r.out.assign(Tq * c.H, 0), r.tolerance.assign(Tq * c.H, 0), r.lse.assign(Tq * c.N, -INFINITY), r.lse_tolerance.assign(Tq * c.N, 0);
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
            const double product = (first ? c.first_q.at(b, h * c.D + d) : c.qkv.at(row, h * c.D + d)) * c.qkv.at(c.starts[b] + j, c.H + h * c.D + d);
            dot += product, size += std::fabs(product);
          }
          s[j] = dot * scale;
          // Both operands rounded to `unit`, D accumulations and the scale in fp32.
          score_error = std::max(score_error, scale * size * (2 * (unit - kEps32) + (std::sqrt(c.D) + 4) * kEps32));
          top = std::max(top, s[j]);
        }
        for (const double v : s) total += std::exp(v - top);
        r.lse[row * c.N + h] = top + std::log(total);
        r.lse_tolerance[row * c.N + h] = score_error + 8 * kEps32 * (std::fabs(top) + std::log(total) + 1);
        // An error e of a score is a relative error e of its probability and, through the sum, of every other: 2e in all.
        const double relative = 2 * score_error + 2 * unit + (std::sqrt(static_cast<double>(n)) + 16) * kEps32 + 2 * kEps32 * std::fabs(top);
        for (int64_t d = 0; d < c.D; ++d) {
          double out = 0, size = 0;
          for (int64_t j = 0; j < n; ++j) {
            double p = std::exp(s[j] - top) / total;
            if (drop.on()) p = kept(drop, row, c.N, h, j) ? p / (1 - static_cast<double>(drop.probability)) : 0;
            const double term = p * c.qkv.at(c.starts[b] + j, 2 * c.H + h * c.D + d);
            out += term, size += std::fabs(term);
          }
          r.out[row * c.H + h * c.D + d] = out;
          r.tolerance[row * c.H + h * c.D + d] = relative * size + 1e-30;
        }
      }
  return r;
}

void run_and_compare(CpuStream& stream, const Case& c, bool first, const Dropout& drop, double unit = kEps32) {
  const int64_t Tq = first ? c.B : c.T;
  const HostTensor out(DType::f32, {Tq, c.H}, 4), lse(DType::f32, {Tq, c.N});
  const int threads = stream.pool() == nullptr ? 1 : stream.pool()->size();
  const HostTensor scratch = bytes_tensor(attention_scratch_bytes(stream, c.T, c.batch.S, c.H, c.N, Precision::fp32, threads));
  AttentionArgs args{.q = c.q(first), .k = c.k(), .v = c.v(), .out = out, .batch = c.batch, .first_query_only = first, .heads = c.N,
                     .lse = lse, .scratch = scratch, .dropout = drop};
  attention(stream, args);
  const Reference want = reference(c, first, drop, unit);
  EXPECT_TRUE(close(out.values(), want.out, [&](size_t i) { return want.tolerance[i]; }));
  EXPECT_TRUE(close(lse.values(), want.lse, [&](size_t i) { return want.lse_tolerance[i]; }));
  // Inference: no statistics, no order given; the same output.
  const HostTensor again(DType::f32, {Tq, c.H});
  args.out = again, args.lse = {}, args.batch.order = {};
  attention(stream, args);
  EXPECT_TRUE(same_bits(again, out));
}

TEST(Attention, AgreesWithFp64OnRaggedBatches) {
  for_each_cpu_stream([](CpuStream& stream) {
    uint64_t seed = 1;
    for (const auto& lengths : ragged_lengths())
      for (const auto& [N, D] : {std::pair<int64_t, int64_t>{2, 32}, {3, 64}, {1, 7}, {2, 20}, {1, 128}}) {
        for (const bool first : {false, true})
          for (const float drop : {0.0f, 0.2f}) {
            SCOPED_TRACE(::testing::Message() << "lengths " << ::testing::PrintToString(lengths) << " N " << N << " D " << D << " first "
                                              << first << " dropout " << drop);
            const Case c(lengths, N, D, 1.0, ++seed);
            run_and_compare(stream, c, first, {.probability = drop, .seed = seed, .site = 4, .first_row = 3});
          }
      }
  });
}

TEST(Attention, LongSequencesAndLargeScores) {
  for_each_cpu_stream([](CpuStream& stream) {
    run_and_compare(stream, Case({512, 5, 300}, 1, 64, 1.0, 5), false, {});
    run_and_compare(stream, Case({90, 5}, 2, 32, 12.0, 6), false, {});  // scores in the hundreds: nearly one-hot
  });
}

// A chunk of a batch: starts do not begin at 0, rows do.
TEST(Attention, StartsAreRelativeToTheFirst) {
  for_each_cpu_stream([](CpuStream& stream) {
    const Case c({9, 20, 3}, 2, 32, 1.0, 8);
    const HostTensor out(DType::f32, {c.T, c.H}), shifted(DType::f32, {c.T, c.H});
    const int threads = stream.pool() == nullptr ? 1 : stream.pool()->size();
    const HostTensor scratch = bytes_tensor(attention_scratch_bytes(stream, c.T, c.batch.S, c.H, c.N, Precision::fp32, threads));
    AttentionArgs args{.q = c.q(false), .k = c.k(), .v = c.v(), .out = out, .batch = c.batch, .heads = c.N, .scratch = scratch};
    attention(stream, args);
    std::vector<int32_t> later;
    for (const int32_t s : c.starts) later.push_back(s + 1000);
    const HostTensor later_view = int_tensor(later);
    args.batch.starts = later_view, args.out = shifted;
    attention(stream, args);
    EXPECT_TRUE(same_bits(out, shifted));
  });
}

TEST(Attention, SaysWhatDoesNotFit) {
  CpuStream stream(nullptr, best_isa());
  const Case c({4}, 2, 8, 1.0, 8);
  const HostTensor out(DType::f32, {4, 16}), short_out(DType::f32, {3, 16});
  AttentionArgs args{.q = c.q(false), .k = c.k(), .v = c.v(), .out = short_out, .batch = c.batch, .heads = 2};
  try {
    attention(stream, args);
    FAIL();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("out is f32[3,16], must be f32[4,16]"), std::string::npos) << e.what();
  }
  args.out = out, args.heads = 3;
  EXPECT_THROW(attention(stream, args), Error);
}

}  // namespace
}  // namespace brim
