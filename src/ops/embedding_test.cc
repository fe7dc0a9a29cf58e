// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding.h"

#include <algorithm>
#include <numeric>

#include "base/token.h"
#include "ops/testing.h"

namespace brim::ops {

using device::CpuStream;
using tensor::DType;

namespace {
using namespace brim::ops::testing;

TEST(Embedding, MatchesFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    uint64_t seed = 1;
    for (const int64_t T : {0, 1, 3, 40})
      for (const int64_t H : {1, 7, 32, 48, 384})
        for (const DType table : {DType::f32, DType::f16, DType::bf16})
          for (const float drop : {0.0f, 0.1f}) {
            SCOPED_TRACE(::testing::Message()
                         << "T " << T << " H " << H << " " << dtype_name(table) << " dropout " << drop);
            const int64_t V = 50, P = 20;
            const HostTensor word = random_tensor(table, {V, H}, ++seed),
                             position = random_tensor(table, {P, H}, ++seed);
            const HostTensor type = random_tensor(DType::f32, {3, H}, ++seed);
            const HostTensor gamma = random_tensor(DType::f32, {H}, ++seed),
                             beta = random_tensor(DType::f32, {H}, ++seed);
            std::vector<int32_t> ids, positions, tokens;
            for (int64_t t = 0; t < T; ++t) {
              ids.push_back(static_cast<int32_t>(t * 37 % V));
              positions.push_back(static_cast<int32_t>(t % P));
              tokens.push_back(typed(ids.back(), static_cast<int32_t>(t % 3)));  // ignored without a type table
            }
            const HostTensor id_view = int_tensor(tokens), position_view = int_tensor(positions);
            const HostTensor y(DType::f32, {T, H}, 5), sum(DType::f32, {T, H}), mean(DType::f32, {T}),
                rstd(DType::f32, {T});
            EmbeddingArgs args{.word = word, .position = position, .gamma = gamma, .beta = beta, .y = y};
            args.batch = {.T = T, .ids = id_view, .positions = position_view};
            if (H != 7) args.type = type;
            if (drop > 0) {
              args.sum = sum;
              args.mean = mean;
              args.rstd = rstd;
            }
            args.eps = 1e-5f;
            args.dropout = {.probability = drop, .seed = seed, .site = 3};
            embedding(stream, args);
            std::vector<double> want, tolerance, want_sum;
            for (int64_t t = 0; t < T; ++t) {
              std::vector<double> s(H);
              double m = 0, variance = 0, largest = 0;
              for (int64_t i = 0; i < H; ++i) {
                s[i] = word.at(ids[t], i) + position.at(positions[t], i) + (H != 7 ? type.at(t % 3, i) : 0);
                m += s[i] / static_cast<double>(H);
                largest = std::max(largest, std::fabs(word.at(ids[t], i)) + std::fabs(position.at(positions[t], i)) +
                                                std::fabs(type.at(t % 3, i)));
              }
              for (const double v : s) variance += (v - m) * (v - m) / static_cast<double>(H);
              const double r = 1 / std::sqrt(variance + static_cast<double>(args.eps));
              for (int64_t i = 0; i < H; ++i) {
                const double normal = (s[i] - m) * r, value = normal * gamma.at(i) + beta.at(i);
                const uint64_t bits =
                    dropout_bits(args.dropout.seed, 3, static_cast<uint64_t>(t), static_cast<uint32_t>(i / 4));
                const bool keep = drop == 0 || dropout_keeps(bits, static_cast<int>(i & 3), dropout_threshold(drop));
                want.push_back(keep ? value / (1 - static_cast<double>(drop)) : 0);
                want_sum.push_back(s[i]);
                // As in layer_norm_test, plus the three-term sum and the dropout product.
                tolerance.push_back(12 * kEps32 *
                                    (largest * r * std::fabs(gamma.at(i)) * (1 + std::fabs(normal)) +
                                     std::fabs(normal * gamma.at(i)) + std::fabs(beta.at(i))));
              }
            }
            EXPECT_TRUE(close(y.values(), want, [&](size_t i) { return tolerance[i]; }));
            if (drop > 0) {
              EXPECT_TRUE(close(sum.values(), want_sum, 3 * kEps32 * 16));
            }
          }
  });
}

TEST(Embedding, MissingPositionsEqualATableOfZeros) {
  for_each_cpu_stream([](CpuStream& stream) {
    const int64_t H = 40;
    const HostTensor word = random_tensor(DType::f32, {9, H}, 1), gamma = random_tensor(DType::f32, {H}, 2),
                     zeros(DType::f32, {4, H}), zero(DType::f32, {H}), ids = int_tensor({3, 0, 8}),
                     positions = int_tensor({0, 1, 2}), with(DType::f32, {3, H}), without(DType::f32, {3, H});
    zeros.fill(0);
    zero.fill(0);
    EmbeddingArgs args{.word = word, .position = zeros, .gamma = gamma, .beta = zero, .y = with};
    args.batch = {.T = 3, .ids = ids, .positions = positions};
    embedding(stream, args);
    args.position = {};
    args.beta = {};
    args.y = without;
    embedding(stream, args);
    EXPECT_TRUE(same_bits(with, without));
    const HostTensor d_word = random_tensor(DType::f32, {9, H}, 5), sorted = int_tensor({1, 0, 2});
    std::vector<double> want = d_word.values();
    for (const auto& [row, t] : {std::pair<size_t, int64_t>{3, 0}, {0, 1}, {8, 2}})
      for (int64_t i = 0; i < H; ++i) want[row * static_cast<size_t>(H) + static_cast<size_t>(i)] += with.at(t, i);
    EmbeddingGradArgs grad{.d_sum = with, .sorted = sorted, .sorted_positions = positions, .d_word = d_word};
    grad.batch = args.batch;
    embedding_grad(stream, grad);
    EXPECT_TRUE(close(d_word.values(), want, 16 * kEps32));
  });
}

TEST(Embedding, RejectsIdsPastTheTable) {
  CpuStream stream(nullptr, device::best_isa());
  const HostTensor word = random_tensor(DType::f32, {4, 8}, 1), gamma = random_tensor(DType::f32, {8}, 2),
                   y(DType::f32, {1, 8});
  const HostTensor good = int_tensor({0}), low = int_tensor({-1}), high = int_tensor({4}),
                   typed2 = int_tensor({typed(0, 2)});
  const HostTensor types = random_tensor(DType::f32, {2, 8}, 3);
  for (const HostTensor* bad : {&low, &high}) {
    EmbeddingArgs args{.word = word, .position = word, .gamma = gamma, .beta = gamma, .y = y};
    args.batch = {.T = 1, .ids = *bad, .positions = good};
    EXPECT_THROW(embedding(stream, args), Error);
    args.batch = {.T = 1, .ids = good, .positions = *bad};
    EXPECT_THROW(embedding(stream, args), Error);
    args.type = types;
    args.batch = {.T = 1, .ids = typed2, .positions = good};
    EXPECT_THROW(embedding(stream, args), Error);
  }
}

std::vector<int32_t> sorted_rows(const std::vector<int32_t>& keys) {
  std::vector<int32_t> rows(keys.size());
  std::iota(rows.begin(), rows.end(), 0);
  std::stable_sort(rows.begin(), rows.end(), [&](int a, int b) { return id_of(keys[a]) < id_of(keys[b]); });
  return rows;
}

std::vector<HostTensor> run_gradient(CpuStream& stream, const std::vector<int32_t>& ids,
                                     const std::vector<int32_t>& positions, int64_t H, bool type) {
  const auto T = static_cast<int64_t>(ids.size());
  const HostTensor d_sum = random_tensor(DType::f32, {T, H}, 3, 1, 0, 2), id_view = int_tensor(ids),
                   position_view = int_tensor(positions);
  const HostTensor sorted = int_tensor(sorted_rows(ids)), sorted_positions = int_tensor(sorted_rows(positions));
  std::vector<HostTensor> out;
  out.push_back(random_tensor(DType::f32, {9, H}, 4));
  out.push_back(random_tensor(DType::f32, {6, H}, 5));
  out.push_back(random_tensor(DType::f32, {2, H}, 6));
  EmbeddingGradArgs args{.d_sum = d_sum,
                         .sorted = sorted,
                         .sorted_positions = sorted_positions,
                         .d_word = out[0],
                         .d_position = out[1],
                         .padding_id = 1,
                         .position_padding_id = 0};
  args.batch = {.T = T, .ids = id_view, .positions = position_view};
  if (type) args.d_type = out[2];
  embedding_grad(stream, args);
  return out;
}

// The gradient of a table is linear in d_sum: the sum over its tokens.
TEST(EmbeddingGrad, MatchesFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const int64_t T : {0, 1, 5, 60})
      for (const int64_t H : {1, 16, 100, 130}) {
        SCOPED_TRACE(::testing::Message() << "T " << T << " H " << H);
        std::vector<int32_t> ids, positions, tokens;
        for (int64_t t = 0; t < T; ++t) {
          ids.push_back(static_cast<int32_t>(t * 7 % 9));
          positions.push_back(static_cast<int32_t>(t % 6));
          tokens.push_back(typed(ids.back(), t % 4 == 1 ? 1 : 0));
        }
        const std::vector<HostTensor> got = run_gradient(stream, tokens, positions, H, H != 16);
        const HostTensor d_sum = random_tensor(DType::f32, {T, H}, 3);
        std::vector<double> word = random_tensor(DType::f32, {9, H}, 4).values(),
                            position = random_tensor(DType::f32, {6, H}, 5).values();
        std::vector<double> type = random_tensor(DType::f32, {2, H}, 6).values();
        for (int64_t t = 0; t < T; ++t)
          for (int64_t i = 0; i < H; ++i) {
            if (ids[t] != 1) word[ids[t] * H + i] += d_sum.at(t, i);
            if (positions[t] != 0) position[positions[t] * H + i] += d_sum.at(t, i);
            if (H != 16) type[(t % 4 == 1 ? H : 0) + i] += d_sum.at(t, i);
          }
        const double tolerance = static_cast<double>(T + 1) * kEps32 * 40;  // at most T additions of values up to 40
        EXPECT_TRUE(close(got[0].values(), word, tolerance));
        EXPECT_TRUE(close(got[1].values(), position, tolerance));
        EXPECT_TRUE(close(got[2].values(), type, tolerance));
      }
  });
}

TEST(EmbeddingGrad, GivesSameBitsForAllThreadCounts) {
  std::vector<int32_t> ids, positions;
  for (int t = 0; t < 200; ++t) {
    ids.push_back(typed(t * 11 % 9, t % 2));
    positions.push_back(t % 6);
  }
  expect_same_bits_for_all_thread_counts(
      [&](CpuStream& stream) { return run_gradient(stream, ids, positions, 200, true); });
}

}  // namespace
}  // namespace brim::ops
