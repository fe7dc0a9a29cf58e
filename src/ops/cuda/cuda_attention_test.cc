// SPDX-License-Identifier: Apache-2.0
#include "ops/attention.h"
#include "ops/cuda/testing.h"
#include "ops/rope.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

struct Setting {
  DType dtype = DType::bf16;
  int64_t heads = 2, D = 64;
  std::vector<int32_t> lengths;
  bool first_query_only = false, fp8_out = false, lse = false, order = true;
  Dropout dropout;
  double spread = 1.5;  // scale of q, k, v; a larger value makes the softmax sharper
  int64_t window = 0;
  int64_t reach = 0;  // above 0: adds a bias by distance
  double rise = 0;    // above 0: keys grow by this much every 32 rows
};

HostTensor risen(HostTensor qkv, const Setting& c) {
  if (c.rise == 0) return qkv;
  const int64_t H = c.heads * c.D;
  int64_t row = 0;
  for (const int32_t n : c.lengths)
    for (int32_t i = 0; i < n; ++i, ++row)
      for (int64_t d = H; d < 2 * H; ++d) qkv.set(row, d, qkv.at(row, d) * (1 + c.rise * (i / 32)));
  return qkv;
}

// Error of an output: probabilities are rounded to the element type before multiplying V (not in the fp32 kernel);
// scores have D fp32 roundings of their largest partial sum, which the exponential turns into a relative error of p,
// twice (numerator and denominator); sums over n keys; one rounding of the result.
void check_attention(const Setting& c) {
  SCOPED_TRACE(::testing::Message() << dtype_name(c.dtype) << " D " << c.D << " heads " << c.heads << " sequences "
                                    << c.lengths.size() << " first only " << c.first_query_only << " fp8 " << c.fp8_out
                                    << " lse " << c.lse << " dropout " << c.dropout.probability << " order " << c.order
                                    << " window " << c.window << " reach " << c.reach);
  const PackedBatch packed(c.lengths, c.order);
  const int64_t T = packed.batch.T, B = packed.batch.B, H = c.heads * c.D, Tq = c.first_query_only ? B : T;
  // q, k, v as parts of one qkv, and separate queries for first_query_only, so that both strides are tested.
  const HostTensor qkv = risen(random_tensor(c.dtype, {T, 3 * H}, 17 + static_cast<uint64_t>(c.D), c.spread), c),
                   q1 = random_tensor(c.dtype, {B, H}, 5, c.spread);
  const DeviceTensor d_qkv(qkv), d_q1(q1), d_scale(random_tensor(DType::f32, {1}, 1, 0, 8)),
      lse(DType::f32, {Tq, c.heads});
  const DeviceTensor out(c.fp8_out ? DType::f8e4m3 : c.dtype, {Tq, H}, 16);
  AttentionArgs args;
  args.q = c.first_query_only ? d_q1.view() : d_qkv.view().slice_cols(0, H);
  args.k = d_qkv.view().slice_cols(H, 2 * H);
  args.v = d_qkv.view().slice_cols(2 * H, 3 * H);
  args.out = out;
  args.batch = packed.batch;
  args.first_query_only = c.first_query_only;
  args.heads = c.heads;
  args.window = c.window;
  if (c.lse) args.lse = lse;
  if (c.fp8_out) args.out_scale = d_scale;
  args.dropout = c.dropout;
  const HostTensor bias = random_tensor(DType::f32, {c.heads, 2 * c.reach + 1}, 23, 1.0);
  const DeviceTensor d_bias(bias);
  if (c.reach > 0) args.bias = d_bias;
  attention(Gpu::stream(), args);

  std::vector<double> want(static_cast<size_t>(Tq * H)), tolerance(want.size()),
      want_lse(static_cast<size_t>(Tq * c.heads)), lse_tolerance(want_lse.size());
  const double eps_p = c.dtype == DType::f32 ? 0 : eps_of(c.dtype), scale = 1 / std::sqrt(static_cast<double>(c.D)),
               factor = c.fp8_out ? 8 : 1;
  const uint32_t threshold = dropout_threshold(c.dropout.probability);
  const std::vector<double> all = qkv.values(), firsts = q1.values();  // plain doubles for the long loops
  const auto at_row = [&](int64_t row, int64_t column) { return all[static_cast<size_t>(row * 3 * H + column)]; };
  for (int64_t b = 0; b < B; ++b)
    for (int64_t head = 0; head < c.heads; ++head) {
      const int64_t begin = packed.starts[b], n = packed.lengths[b], queries = c.first_query_only ? 1 : n;
      for (int64_t i = 0; i < queries; ++i) {
        const int64_t row = c.first_query_only ? b : begin + i;
        std::vector<double> p(static_cast<size_t>(n), -INFINITY);
        double top = -INFINITY, sum = 0, largest = 0;
        const int64_t from = c.window == 0 ? 0 : std::max<int64_t>(0, i - c.window),
                      to_key = c.window == 0 ? n : std::min(n, i + c.window + 1);
        for (int64_t j = from; j < to_key; ++j) {
          double s = 0, magnitude = 0;
          for (int64_t d = 0; d < c.D; ++d) {
            const double product = (c.first_query_only ? firsts[static_cast<size_t>(row * H + head * c.D + d)]
                                                       : at_row(row, head * c.D + d)) *
                                   at_row(begin + j, H + head * c.D + d);
            s += product;
            magnitude += std::fabs(product);
          }
          const double added = c.reach > 0 ? bias.at(head, c.reach + std::clamp(j - i, -c.reach, c.reach)) : 0;
          p[j] = s * scale + added;
          magnitude += std::fabs(added) / scale;
          top = std::max(top, p[j]);
          largest = std::max(largest, magnitude * scale);
        }
        for (double& x : p) sum += x = std::exp(x - top);
        const double score_error = kEps32 * (static_cast<double>(c.D) + 8) * largest + 8 * kEps32;
        const auto at_lse = static_cast<size_t>(row * c.heads + head);
        want_lse[at_lse] = n == 0 ? -INFINITY : top + std::log(sum);
        lse_tolerance[at_lse] =
            2 * score_error + 0x1p-21 * (1 + std::fabs(want_lse[at_lse])) + static_cast<double>(n) * kEps32;
        // Probabilities below the type's normal range round by a fixed amount.
        std::vector<double> o(static_cast<size_t>(c.D)), magnitude(o.size()), least(o.size());
        for (int64_t j = from; j < to_key; ++j) {
          double weight = p[j] / sum;
          if (c.dropout.on()) {
            const uint64_t bits = dropout_bits(c.dropout.seed, c.dropout.site,
                                               static_cast<uint64_t>((c.dropout.first_row + row) * c.heads + head),
                                               static_cast<uint32_t>(j / 4));
            weight = dropout_keeps(bits, static_cast<int>(j & 3), threshold)
                         ? weight / (1 - static_cast<double>(c.dropout.probability))
                         : 0;
          }
          for (int64_t d = 0; d < c.D; ++d) {
            const double v = at_row(begin + j, 2 * H + head * c.D + d);
            o[d] += weight * v;
            magnitude[d] += weight * std::fabs(v);
            least[d] += smallest_of(c.dtype) * std::fabs(v);
          }
        }
        for (int64_t d = 0; d < c.D; ++d) {
          const auto at = static_cast<size_t>(row * H + head * c.D + d);
          want[at] = o[d] * factor;
          const double inner =
              magnitude[d] * (eps_p * 1.01 + 2 * score_error + 0x1p-20 + static_cast<double>(n + 8) * kEps32) +
              least[d];
          const DType to = c.fp8_out ? DType::f8e4m3 : c.dtype;
          tolerance[at] = factor * (inner * (1 + eps_of(to)) + eps_of(to) * std::fabs(o[d])) + smallest_of(to);
        }
      }
    }
  EXPECT_TRUE(close(out.values(), want, [&](size_t i) { return tolerance[i]; }));
  if (c.lse) {
    EXPECT_TRUE(close(lse.values(), want_lse, [&](size_t i) { return lse_tolerance[i]; }));
  }
}

std::vector<int32_t> lengths_around_tiles() {
  if (Gpu::emulated()) return {1, 2, 7, 8, 9, 0, 15, 16, 17, 31, 32, 33, 48, 65, 128, 129, 1, 190, 5};
  std::vector<int32_t> all;
  for (int32_t n = 0; n <= 140; ++n) all.push_back(n);
  for (const int32_t n : {1, 255, 256, 257, 384, 511, 512, 2, 33, 0}) all.push_back(n);
  return all;
}

using CudaAttention = CudaOps;

TEST_F(CudaAttention, MatchesFp64AtEveryLength) {
  for (const DType dtype : kActivationTypes)
    for (const int64_t D : {32, 64})
      for (const bool first : {false, true})
        check_attention({.dtype = dtype, .D = D, .lengths = lengths_around_tiles(), .first_query_only = first});
}

TEST_F(CudaAttention, HandlesAllKindsOfBatches) {
  for (const DType dtype : kActivationTypes)
    for (const auto& lengths : ragged_lengths())
      for (const bool first : {false, true})
        for (const bool order : {false, true})
          check_attention({.dtype = dtype, .heads = 3, .lengths = lengths, .first_query_only = first, .order = order});
}

TEST_F(CudaAttention, SupportsOtherHeadSizes) {
  for (const DType dtype : kActivationTypes)
    for (const int64_t D : {1, 24, 40, 96, 128})
      check_attention({.dtype = dtype, .D = D, .lengths = {3, 0, 17, 40, 1}, .lse = true});
}

TEST_F(CudaAttention, StoresStatisticsForTraining) {
  for (const DType dtype : kActivationTypes)
    for (const int64_t D : {32, 64})
      for (const bool first : {false, true}) {
        check_attention(
            {.dtype = dtype, .D = D, .lengths = lengths_around_tiles(), .first_query_only = first, .lse = true});
        check_attention({.dtype = dtype,
                         .D = D,
                         .lengths = lengths_around_tiles(),
                         .first_query_only = first,
                         .lse = true,
                         .dropout = {.probability = 0.1f, .seed = 7, .site = 11, .first_row = 3}});
      }
}

// Around the tile sizes of the kernels: 16 and 32 queries per warp, 32 keys per chunk, 64 per buffer, 128 queries per
// block.
TEST_F(CudaAttention, SeesOnlyKeysWithinItsWindow) {
  const std::vector<int32_t> lengths = Gpu::emulated() ? std::vector<int32_t>{20, 0, 33, 66, 140}
                                                       : std::vector<int32_t>{3, 0, 20, 33, 66, 129, 257, 600};
  const Dropout drop{.probability = 0.1f, .seed = 7, .site = 11, .first_row = 3};
  for (Setting c : {Setting{.dtype = DType::f32, .D = 40, .lse = true, .dropout = drop, .window = 3},
                    Setting{.dtype = DType::f16, .D = 32, .lse = true, .dropout = drop, .window = 3},
                    Setting{.dtype = DType::f16, .order = false, .window = 31}, Setting{.D = 32, .window = 20},
                    Setting{.first_query_only = true, .lse = true, .dropout = drop, .window = 64},
                    Setting{.fp8_out = true, .window = 20}, Setting{.lse = true, .window = 3}, Setting{.window = 3}}) {
    c.lengths = lengths;
    check_attention(c);
  }
}

TEST_F(CudaAttention, AddsABiasByDistance) {
  const std::vector<int32_t> lengths =
      Gpu::emulated() ? std::vector<int32_t>{1, 17, 33, 0, 140} : lengths_around_tiles();
  for (const DType dtype : kActivationTypes)
    for (const int64_t D : {32, 64, 24})
      for (const bool first : {false, true}) {
        if (Gpu::emulated() && (dtype == DType::f16 || D == 32) && !first) continue;
        check_attention(
            {.dtype = dtype, .D = D, .lengths = lengths, .first_query_only = first, .lse = D == 64, .reach = 91});
      }
  check_attention({.lengths = lengths, .fp8_out = true, .reach = 5});
  check_attention({.lengths = lengths,
                   .lse = true,
                   .dropout = {.probability = 0.1f, .seed = 7, .site = 11, .first_row = 3},
                   .reach = 91});
}

TEST_F(CudaAttention, WritesFp8) {
  for (const DType dtype : {DType::f16, DType::bf16})
    for (const int64_t D : {32, 64, 40})
      check_attention({.dtype = dtype, .D = D, .lengths = lengths_around_tiles(), .fp8_out = true});
}

TEST_F(CudaAttention, IsAccurateForSharpSoftmax) {
  for (const DType dtype : kActivationTypes)
    check_attention({.dtype = dtype, .lengths = {1, 20, 40, 130}, .lse = true, .spread = 8});
}

// Whether rotated inside attention or by the rope op, q and k round once and in the same way, in every kernel. A
// different rounding of a word by the compiler moves a score, and so a probability, by a few roundings.
TEST_F(CudaAttention, RotatesQueriesAndKeysLikeRope) {
  const std::vector<int32_t> lengths =
      Gpu::emulated() ? std::vector<int32_t>{1, 17, 32, 33, 0, 66, 140, 8} : lengths_around_tiles();
  for (const Setting& c : {Setting{}, Setting{.order = false}, Setting{.first_query_only = true}, Setting{.D = 32},
                           Setting{.dtype = DType::f16, .window = 20}, Setting{.D = 32, .fp8_out = true},
                           Setting{.fp8_out = true, .window = 64}, Setting{.dtype = DType::f32},
                           Setting{.D = 24, .first_query_only = true}, Setting{.D = 6}}) {
    SCOPED_TRACE(::testing::Message() << dtype_name(c.dtype) << " D " << c.D << " first only " << c.first_query_only
                                      << " fp8 " << c.fp8_out << " order " << c.order << " window " << c.window);
    const PackedBatch packed(lengths, c.order);
    const int64_t T = packed.batch.T, B = packed.batch.B, H = c.heads * c.D, Tq = c.first_query_only ? B : T;
    std::vector<int32_t> places;
    for (const int32_t n : lengths)
      for (int32_t i = 0; i < n; ++i) places.push_back(i);
    const HostTensor qkv = random_tensor(c.dtype, {T, 3 * H}, 19, c.spread);
    const DeviceTensor before(qkv), inside(qkv), q1(random_tensor(c.dtype, {B, H}, 5, c.spread)),
        positions(int_tensor(places)), scale(random_tensor(DType::f32, {1}, 1, 0, 8)),
        turns(bytes_tensor(
            attention_scratch_bytes(Gpu::stream(), T, packed.batch.S, H, c.heads, Precision::fp32, 1, true)));
    const DType out_type = c.fp8_out ? DType::f8e4m3 : c.dtype;
    const DeviceTensor want(out_type, {Tq, H}), got(out_type, {Tq, H});
    rope(Gpu::stream(), {.x = before.view().slice_cols(c.first_query_only ? H : 0, 2 * H),
                         .positions = positions,
                         .head_size = c.D,
                         .theta = 160000});
    for (const bool turned : {true, false}) {
      const TensorView& x = turned ? before.view() : inside.view();
      AttentionArgs args{.q = c.first_query_only ? q1.view() : x.slice_cols(0, H),
                         .k = x.slice_cols(H, 2 * H),
                         .v = x.slice_cols(2 * H, 3 * H),
                         .out = turned ? want : got,
                         .batch = packed.batch,
                         .first_query_only = c.first_query_only,
                         .heads = c.heads,
                         .window = c.window};
      if (c.fp8_out) args.out_scale = scale;
      if (!turned) {
        args.rope_theta = 160000;
        args.scratch = turns;
      }
      attention(Gpu::stream(), args);
    }
    const std::vector<double> values = want.values();
    EXPECT_TRUE(close(got.values(), values,
                      [&](size_t i) { return eps_of(out_type) * (8 * std::fabs(values[i]) + (c.fp8_out ? 8 : 1)); }));
  }
}

// Row maxima that rise late, by more or less than the slack of the online softmax, and rows without a rise.
TEST_F(CudaAttention, IsAccurateIfLaterKeysScoreHigher) {
  for (const double rise : {0.5, 2.0, 12.0})
    check_attention({.lengths = {40, 100, 128, 190}, .lse = true, .spread = 1, .rise = rise});
}

// With many sequences a block processes several heads, with few it processes one.
TEST_F(CudaAttention, GivesSameBitsAloneAndAmongMany) {
  const int64_t heads = 32, H = heads * 32;
  const std::vector<int32_t> kinds = {33, 128, 48, 64, 65, 40};
  std::vector<int32_t> lengths;
  for (int i = 0; i < (Gpu::emulated() ? 1 : 22); ++i) lengths.insert(lengths.end(), kinds.begin(), kinds.end());
  const PackedBatch many(lengths);
  const int64_t T = many.batch.T;
  const DeviceTensor qkv(random_tensor(DType::bf16, {T, 3 * H}, 3));
  for (const float dropped : {0.0f, 0.1f}) {
    const DeviceTensor together(DType::bf16, {T, H}), alone(DType::bf16, {T, H});
    const auto attend = [&](const DeviceTensor& out, const BatchView& batch, int64_t begin, int64_t end) {
      const TensorView x = qkv.view().slice_rows(begin, end);
      attention(Gpu::stream(), {.q = x.slice_cols(0, H),
                                .k = x.slice_cols(H, 2 * H),
                                .v = x.slice_cols(2 * H, 3 * H),
                                .out = out.view().slice_rows(begin, end),
                                .batch = batch,
                                .heads = heads,
                                .dropout = {.probability = dropped, .seed = 7, .first_row = begin}});
      Gpu::stream().synchronize();
    };
    attend(together, many.batch, 0, T);
    for (size_t b = 0; b < kinds.size(); ++b)
      attend(alone, PackedBatch({kinds[b]}).batch, many.starts[b], many.starts[b + 1]);
    std::vector<double> got = together.values(), want = alone.values();
    got.resize(static_cast<size_t>(many.starts[kinds.size()] * H));
    want.resize(got.size());
    EXPECT_EQ(got, want) << dropped;
  }
}

TEST_F(CudaAttention, IsReproducibleToTheBit) {
  const PackedBatch packed({40, 200, 12, 31, 5, 129, 64});
  const DeviceTensor qkv(random_tensor(DType::bf16, {packed.batch.T, 3 * 128}, 3)),
      a(DType::bf16, {packed.batch.T, 128}), b(DType::bf16, {packed.batch.T, 128});
  for (const DeviceTensor* out : {&a, &b})
    attention(Gpu::stream(), {.q = qkv.view().slice_cols(0, 128),
                              .k = qkv.view().slice_cols(128, 256),
                              .v = qkv.view().slice_cols(256, 384),
                              .out = *out,
                              .batch = packed.batch,
                              .heads = 2});
  EXPECT_TRUE(same_bits(a.host(), b.host()));
}

}  // namespace
}  // namespace brim::ops
