// SPDX-License-Identifier: Apache-2.0
#include <numeric>

#include "ops/attention_distance_testing.h"

namespace brim::ops {
namespace {

using namespace brim::ops::testing;
using device::CpuStream;
using tensor::DType;
using tensor::TensorView;

// The attention and, with `gradients`, its gradient on the CPU: out, lse, d_q, d_k, d_v, d_queries, d_keys.
std::vector<HostTensor> run_distances(CpuStream& stream, const DistanceCase& c, const DistanceInputs& in,
                                      bool gradients, Precision precision = Precision::fp32) {
  const int64_t H = c.H(), rows = c.rows();
  const HostTensor starts = int_tensor(starts_of(c.lengths));
  const int threads = stream.pool() == nullptr ? 1 : stream.pool()->size();
  const BatchView batch{.T = c.T(), .B = c.B(), .S = c.S(), .starts = starts};
  const auto table = [&](bool used, int64_t at) {
    return used ? in.tables.view().slice_cols(at, at + H) : TensorView();
  };
  const bool half = in.q.view().dtype != DType::f32;
  std::vector<HostTensor> result;
  result.emplace_back(in.q.view().dtype, std::initializer_list<int64_t>{c.Tq(), H}, 3);
  if (!half) result.emplace_back(DType::f32, std::initializer_list<int64_t>{c.Tq(), c.N});
  const HostTensor scratch =
      bytes_tensor(attention_scratch_bytes(stream, c.T(), c.S(), H, c.N, precision, threads, false, true));
  const HostTensor wide_tables = [&] {  // tables are always f32 here
    HostTensor wide(DType::f32, {rows, 2 * H});
    for (int64_t r = 0; r < rows; ++r)
      for (int64_t i = 0; i < 2 * H; ++i) wide.set(r, i, in.tables.at(r, i));
    return wide;
  }();
  const auto wide_table = [&](bool used, int64_t at) {
    return used ? wide_tables.view().slice_cols(at, at + H) : TensorView();
  };
  attention(stream, {.q = in.q,
                     .k = in.kv.view().slice_cols(0, H),
                     .v = in.kv.view().slice_cols(H, 2 * H),
                     .out = result[0],
                     .batch = batch,
                     .first_query_only = c.first,
                     .heads = c.N,
                     .lse = half ? TensorView() : result[1].view(),
                     .distance_queries = wide_table(c.queries, 0),
                     .distance_keys = wide_table(c.keys, H),
                     .scratch = scratch,
                     .precision = precision,
                     .dropout = c.dropout()});
  if (!gradients) return result;
  result.emplace_back(DType::f32, std::initializer_list<int64_t>{c.Tq(), H}, 5);
  result.emplace_back(DType::f32, std::initializer_list<int64_t>{c.T(), H}, 3);
  result.emplace_back(DType::f32, std::initializer_list<int64_t>{c.T(), H});
  for (const bool used : {c.queries, c.keys})
    result.emplace_back(DType::f32, std::initializer_list<int64_t>{used ? rows : 0, H}, 7);
  const HostTensor grad_scratch =
      bytes_tensor(attention_grad_scratch_bytes(stream, c.T(), c.S(), H, c.N, threads, 0, rows));
  attention_grad(stream, {.q = in.q,
                          .k = in.kv.view().slice_cols(0, H),
                          .v = in.kv.view().slice_cols(H, 2 * H),
                          .out = result[0],
                          .lse = result[1],
                          .d_out = in.d_out,
                          .d_q = result[2],
                          .d_k = result[3],
                          .d_v = result[4],
                          .batch = batch,
                          .first_query_only = c.first,
                          .heads = c.N,
                          .distance_queries = table(c.queries, 0),
                          .distance_keys = table(c.keys, H),
                          .d_distance_queries = c.queries ? result[5].view() : TensorView(),
                          .d_distance_keys = c.keys ? result[6].view() : TensorView(),
                          .scratch = grad_scratch,
                          .dropout = c.dropout()});
  return result;
}

void compare(const DistanceCase& c) {
  SCOPED_TRACE(c.text());
  const DistanceInputs in(c, DType::f32);
  const DistanceReference want(c, in, 0);
  for_each_cpu_stream([&](CpuStream& stream) {
    const std::vector<HostTensor> got = run_distances(stream, c, in, true);
    EXPECT_TRUE(want.out.matches(got[0].values(), 0));
    EXPECT_TRUE(want.lse.matches(got[1].values(), 0));
    EXPECT_TRUE(want.d_q.matches(got[2].values(), 0));
    EXPECT_TRUE(want.d_k.matches(got[3].values(), 0));
    EXPECT_TRUE(want.d_v.matches(got[4].values(), 0));
    if (c.queries) {
      EXPECT_TRUE(want.d_queries.matches(got[5].values(), 8 * kEps32));
    }
    if (c.keys) {
      EXPECT_TRUE(want.d_keys.matches(got[6].values(), 8 * kEps32));
    }
  });
}

TEST(DistanceAttention, MatchesFp64OnRaggedBatches) {
  for (const DistanceCase& c : distance_cases({{2, 32}, {3, 7}, {1, 64}})) compare(c);
}

TEST(DistanceAttention, HandlesLongSequencesAndLargeScores) {
  compare({.lengths = {512, 5, 300}, .N = 1, .D = 20});
  compare({.lengths = {90, 5}, .N = 2, .D = 32, .scale = 3});
}

TEST(DistanceAttention, ReferenceMatchesFiniteDifferences) {
  for (const bool first : {false, true})
    for (const float drop : {0.0f, 0.3f}) {
      const DistanceCase c{.lengths = {3, 0, 1, 4}, .N = 2, .D = 3, .first = first, .drop = drop, .more = 1};
      const DistanceInputs in(c, DType::f32);
      std::vector<double> q = in.q.values(), kv = in.kv.values(), tables = in.tables.values();
      const std::vector<double> d_out = in.d_out.values();
      const auto loss = [&] { return DistanceReference(c, q, kv, d_out, tables, 0).loss; };
      const DistanceReference want(c, q, kv, d_out, tables, 0);
      const auto joined = [&](const Bounded& left, const Bounded& right) {  // as columns of one tensor
        std::vector<double> all;
        for (size_t i = 0; i < left.value.size(); i += static_cast<size_t>(c.H()))
          for (const Bounded* part : {&left, &right})
            all.insert(all.end(), part->value.begin() + static_cast<ptrdiff_t>(i),
                       part->value.begin() + static_cast<ptrdiff_t>(i) + c.H());
        return all;
      };
      EXPECT_TRUE(close(want.d_q.value, finite_differences(q, loss), 1e-8));
      EXPECT_TRUE(close(joined(want.d_k, want.d_v), finite_differences(kv, loss), 1e-8));
      EXPECT_TRUE(close(joined(want.d_queries, want.d_keys), finite_differences(tables, loss), 1e-8));
    }
}

TEST(DistanceAttention, GivesSameBitsForAllThreadCounts) {
  const DistanceCase c{.lengths = {170, 3, 0, 33, 5, 1}, .N = 3, .D = 32, .drop = 0.1f};
  const DistanceInputs in(c, DType::f32);
  expect_same_bits_for_all_thread_counts([&](CpuStream& stream) { return run_distances(stream, c, in, true); });
}

// bf16 queries, keys and values with f32 tables, as in scoring in bf16 or int8.
TEST(DistanceAttention, ReadsBf16Views) {
  const DistanceCase c{.lengths = {33, 5, 1, 150}, .N = 2, .D = 20};
  const DistanceInputs in(c, DType::bf16);
  const DistanceReference want(c, in, 0);
  for_each_cpu_stream([&](CpuStream& stream) {
    const std::vector<HostTensor> got = run_distances(stream, c, in, false, Precision::bf16);
    EXPECT_TRUE(want.out.matches(got[0].values(), 1.01 * kEpsBf16));
  });
}

TEST(DistanceAttention, RejectsTooFewRows) {
  CpuStream stream(nullptr, device::best_isa());
  DistanceCase c{.lengths = {4}, .N = 2, .D = 8};
  const DistanceInputs in(c, DType::f32);
  const HostTensor starts = int_tensor({0, 4}), out(DType::f32, {4, 16});
  AttentionArgs args{.q = in.q, .k = in.kv.view().slice_cols(0, 16), .v = in.kv.view().slice_cols(16, 32), .out = out};
  args.batch = {.T = 4, .B = 1, .S = 4, .starts = starts};
  args.heads = 2;
  args.distance_keys = in.tables.view().slice_rows(0, 5).slice_cols(0, 16);
  EXPECT_THROW(attention(stream, args), Error);
}

}  // namespace
}  // namespace brim::ops
