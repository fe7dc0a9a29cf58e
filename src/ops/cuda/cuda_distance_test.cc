// SPDX-License-Identifier: Apache-2.0
#include "ops/attention_distance_testing.h"
#include "ops/cuda/testing.h"
#include "ops/distance_rows.h"
#include "ops/unfold.h"

namespace brim::ops {

using tensor::DType;
using tensor::TensorView;

namespace {
using namespace brim::ops::testing;
using CudaDistance = CudaOps;

TensorView part_of(const DeviceTensor& both, bool used, int64_t at, int64_t H) {
  return used ? both.view().slice_cols(at, at + H) : TensorView();
}

void check_distances(const DistanceCase& c, DType type, bool gradients) {
  SCOPED_TRACE(::testing::Message() << dtype_name(type) << " " << c.text());
  const DistanceInputs in(c, type);
  const double eps = type == DType::f32 ? 0 : eps_of(type), round = 1.01 * eps_of(type);
  // Weights below the normal range of fp16 round by a fixed amount; the values they multiply are mostly below four.
  const double least = smallest_of(type) * (1 + 4 * static_cast<double>(c.S()) * c.scale);
  const DistanceReference want(c, in, eps);
  const PackedBatch packed(c.lengths);
  const int64_t H = c.H(), rows = c.rows();
  const DeviceTensor q(in.q), kv(in.kv), d_out(in.d_out), tables(in.tables), out(type, {c.Tq(), H}, 16),
      lse(DType::f32, {c.Tq(), c.N});
  AttentionArgs args{.q = q, .k = kv.view().slice_cols(0, H), .v = kv.view().slice_cols(H, 2 * H), .out = out};
  args.batch = packed.batch;
  args.first_query_only = c.first;
  args.heads = c.N;
  args.lse = lse;
  args.distance_queries = part_of(tables, c.queries, 0, H);
  args.distance_keys = part_of(tables, c.keys, H, H);
  args.dropout = c.dropout();
  attention(Gpu::stream(), args);
  EXPECT_TRUE(want.out.matches(out.values(), round, least));
  EXPECT_TRUE(want.lse.matches(lse.values(), kEps32));
  if (!gradients) return;
  const DeviceTensor d_q(type, {c.Tq(), H}, 8), d_kv(type, {c.T(), 2 * H}), d_tables(DType::f32, {rows, 2 * H});
  const DeviceTensor scratch(
      bytes_tensor(attention_grad_scratch_bytes(Gpu::stream(), c.T(), c.S(), H, c.N, 1, 0, rows)));
  AttentionGradArgs grad{.q = args.q, .k = args.k, .v = args.v, .out = out, .lse = lse, .d_out = d_out};
  grad.d_q = d_q;
  grad.d_k = d_kv.view().slice_cols(0, H);
  grad.d_v = d_kv.view().slice_cols(H, 2 * H);
  grad.batch = packed.batch;
  grad.first_query_only = c.first;
  grad.heads = c.N;
  grad.distance_queries = args.distance_queries;
  grad.distance_keys = args.distance_keys;
  grad.d_distance_queries = part_of(d_tables, c.queries, 0, H);
  grad.d_distance_keys = part_of(d_tables, c.keys, H, H);
  grad.scratch = scratch;
  grad.dropout = c.dropout();
  attention_grad(Gpu::stream(), grad);
  EXPECT_TRUE(want.d_q.matches(d_q.values(), round, least));
  const HostTensor got_kv = d_kv.host(), got_tables = d_tables.host();
  const auto columns = [](const HostTensor& t, int64_t begin, int64_t end) {
    std::vector<double> values;
    for (int64_t r = 0; r < t.rows(); ++r)
      for (int64_t i = begin; i < end; ++i) values.push_back(t.at(r, i));
    return values;
  };
  EXPECT_TRUE(want.d_k.matches(columns(got_kv, 0, H), round, least));
  EXPECT_TRUE(want.d_v.matches(columns(got_kv, H, 2 * H), round, least));
  if (c.queries) {
    EXPECT_TRUE(want.d_queries.matches(columns(got_tables, 0, H), 64 * kEps32, least * static_cast<double>(c.T() + 1)));
  }
  if (c.keys) {
    EXPECT_TRUE(
        want.d_keys.matches(columns(got_tables, H, 2 * H), 64 * kEps32, least * static_cast<double>(c.T() + 1)));
  }
}

TEST_F(CudaDistance, MatchesFp64OnRaggedBatches) {
  for (const DType type : kActivationTypes)
    for (const DistanceCase& c : distance_cases({{2, 32}, {3, 64}, {2, 20}})) {
      if (c.B() == 0) continue;
      check_distances(c, type, true);
      if (::testing::Test::HasFailure()) return;
    }
}

TEST_F(CudaDistance, HandlesLongSequences) {
  for (const DType type : {DType::f32, DType::bf16, DType::f16})
    check_distances({.lengths = {Gpu::emulated() ? 130 : 512, 5, 100}, .N = 1, .D = 64}, type, true);
  check_distances({.lengths = {70, 1}, .N = 1, .D = 128, .scale = 0.5}, DType::bf16, true);
}

// Scores in the thousands before scaling overflow fp16 unless sums are in fp32.
TEST_F(CudaDistance, SumsLargeScoresInFp32) {
  check_distances({.lengths = {40, 9}, .N = 2, .D = 64, .scale = 12}, DType::f16, false);
}

TEST_F(CudaDistance, WritesFp8) {
  const DistanceCase c{.lengths = {40, 9, 0, 1, 130}, .N = 2, .D = 64};
  const DistanceInputs in(c, DType::bf16);
  const DistanceReference want(c, in, kEpsBf16);
  const PackedBatch packed(c.lengths);
  const int64_t H = c.H();
  const DeviceTensor q(in.q), kv(in.kv), tables(in.tables), out(DType::f8e4m3, {c.T(), H}),
      scale(random_tensor(DType::f32, {1}, 1, 0, 8));
  AttentionArgs args{.q = q, .k = kv.view().slice_cols(0, H), .v = kv.view().slice_cols(H, 2 * H), .out = out};
  args.batch = packed.batch;
  args.heads = c.N;
  args.out_scale = scale;
  args.distance_queries = part_of(tables, true, 0, H);
  args.distance_keys = part_of(tables, true, H, H);
  attention(Gpu::stream(), args);
  std::vector<double> value = want.out.value;
  for (double& v : value) v *= 8;
  EXPECT_TRUE(close(out.values(), value,
                    [&](size_t i) { return 8 * want.out.error[i] + 1.01 * 0x1p-4 * std::fabs(value[i]) + 0x1p-10; }));
}

TEST_F(CudaDistance, CopiesRowsAndSumsTheirGradients) {
  for (const DType type : kActivationTypes)
    for (const DistanceBuckets b : {DistanceBuckets{16, 16, 44}, {20, 0, 20}})
      for (const int64_t reach : {0, 7, 43}) {
        const int64_t first = distance_bucket(b, -reach), n = distance_bucket(b, reach) - first + 1, C = 200;
        const HostTensor x = random_tensor(type, {n, C}, 1, 1, 0, 3),
                         d_y = random_tensor(DType::f32, {2 * reach + 1, C}, 2);
        const DeviceTensor dx(x), y(type, {2 * reach + 1, C}, 5), d_dy(d_y), d_x(type, {n, C}, 4);
        distance_rows(Gpu::stream(), {.x = dx, .y = y, .buckets = b, .first = first});
        distance_rows_grad(Gpu::stream(), {.d_y = d_dy, .d_x = d_x, .buckets = b, .first = first});
        const HostTensor got = y.host();
        std::vector<double> want(static_cast<size_t>(n * C));
        for (int64_t u = 0; u <= 2 * reach; ++u)
          for (int64_t i = 0; i < C; ++i) {
            const int64_t row = distance_bucket(b, reach - u) - first;
            ASSERT_EQ(got.at(u, i), x.at(row, i)) << u << " " << i;
            want[static_cast<size_t>(row * C + i)] += d_y.at(u, i);
          }
        EXPECT_TRUE(close(d_x.values(), want,
                          [&](size_t i) { return 200 * kEps32 + 1.01 * eps_of(type) * std::fabs(want[i]); }));
      }
}

TEST_F(CudaDistance, AccumulatesRows) {
  for (const DType type : kActivationTypes) {
    const HostTensor x = random_tensor(type, {5, 37}, 1, 1, 0, 3), y = random_tensor(DType::f32, {5, 37}, 2);
    const DeviceTensor dx(x), dy(y);
    accumulate(Gpu::stream(), {.x = dx, .y = dy});
    std::vector<double> want = y.values();
    for (size_t i = 0; i < want.size(); ++i) want[i] += x.values()[i];
    EXPECT_TRUE(close(dy.values(), want, 8 * kEps32));
  }
}

TEST_F(CudaDistance, UnfoldsNeighboursWithinSequences) {
  for (const DType type : kActivationTypes)
    for (const int64_t width : {3, 5}) {
      const std::vector<int32_t> lengths{5, 0, 1, 33, 2}, starts = starts_of(lengths);
      const int64_t T = starts.back(), C = 9;
      std::vector<int32_t> positions;
      for (const int32_t n : lengths)
        for (int32_t i = 0; i < n; ++i) positions.push_back(2 + i);
      const HostTensor x = random_tensor(type, {T, C}, 1), d_y = random_tensor(type, {T, C * width}, 2),
                       before = random_tensor(type, {T, C}, 3);
      const DeviceTensor dx(x), at(int_tensor(positions)), y(type, {T, C * width}), d_dy(d_y), d_x(before);
      unfold(Gpu::stream(), {.x = dx, .positions = at, .y = y, .width = width});
      unfold_grad(Gpu::stream(), {.d_y = d_dy, .positions = at, .d_x = d_x, .width = width});
      const HostTensor got = y.host();
      std::vector<double> want = before.values();
      for (size_t b = 0; b < lengths.size(); ++b)
        for (int64_t t = starts[b]; t < starts[b + 1]; ++t)
          for (int64_t i = 0; i < width; ++i)
            for (int64_t c = 0; c < C; ++c) {
              const int64_t from = t + i - width / 2;
              const bool inside = from >= starts[b] && from < starts[b + 1];
              ASSERT_EQ(got.at(t, c * width + i), inside ? x.at(from, c) : 0) << t << " " << i;
              if (inside) want[static_cast<size_t>(from * C + c)] += d_y.at(t, c * width + i);
            }
      EXPECT_TRUE(
          close(d_x.values(), want, [&](size_t i) { return 50 * kEps32 + 1.01 * eps_of(type) * std::fabs(want[i]); }));
    }
}

}  // namespace
}  // namespace brim::ops
