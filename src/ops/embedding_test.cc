// SPDX-License-Identifier: Apache-2.0
#include "ops/embedding.h"

#include "ops/testing.h"

namespace brim {
namespace {
using namespace brim::testing;

TEST(Embedding, AgreesWithFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    uint64_t seed = 1;
    for (const int64_t T : {0, 1, 3, 40})
      for (const int64_t H : {1, 7, 32, 48, 384})
        for (const DType table : {DType::f32, DType::f16, DType::bf16})
          for (const float drop : {0.0f, 0.1f}) {
            SCOPED_TRACE(::testing::Message() << "T " << T << " H " << H << " " << dtype_name(table) << " dropout " << drop);
            const int64_t V = 50, P = 20;
            const HostTensor word = random_tensor(table, {V, H}, ++seed), position = random_tensor(table, {P, H}, ++seed);
            const HostTensor type = random_tensor(DType::f32, {1, H}, ++seed);
            const HostTensor gamma = random_tensor(DType::f32, {H}, ++seed), beta = random_tensor(DType::f32, {H}, ++seed);
            std::vector<int32_t> ids, positions;
            for (int64_t t = 0; t < T; ++t) ids.push_back(static_cast<int32_t>(t * 37 % V)), positions.push_back(static_cast<int32_t>(t % P));
            const HostTensor id_view = int_tensor(ids), position_view = int_tensor(positions);
            const HostTensor y(DType::f32, {T, H}, 5), sum(DType::f32, {T, H}), mean(DType::f32, {T}), rstd(DType::f32, {T});
            EmbeddingArgs args{.word = word, .position = position, .gamma = gamma, .beta = beta, .y = y};
            args.batch = {.T = T, .ids = id_view, .positions = position_view};
            if (H != 7) args.type = type;
            if (drop > 0) args.sum = sum, args.mean = mean, args.rstd = rstd;
            args.eps = 1e-5f;
            args.dropout = {.probability = drop, .seed = seed, .site = 3};
            embedding(stream, args);
            std::vector<double> want, tolerance, want_sum;
            for (int64_t t = 0; t < T; ++t) {
              std::vector<double> s(H);
              double m = 0, variance = 0, largest = 0;
              for (int64_t i = 0; i < H; ++i) {
                s[i] = word.at(ids[t], i) + position.at(positions[t], i) + (H != 7 ? type.at(0, i) : 0);
                m += s[i] / static_cast<double>(H);
                largest = std::max(largest, std::fabs(word.at(ids[t], i)) + std::fabs(position.at(positions[t], i)) + std::fabs(type.at(0, i)));
              }
              for (const double v : s) variance += (v - m) * (v - m) / static_cast<double>(H);
              const double r = 1 / std::sqrt(variance + static_cast<double>(args.eps));
              for (int64_t i = 0; i < H; ++i) {
                const double normal = (s[i] - m) * r, value = normal * gamma.at(i) + beta.at(i);
                const uint64_t bits = dropout_bits(args.dropout.seed, 3, static_cast<uint64_t>(t), static_cast<uint32_t>(i / 4));
                const bool keep = drop == 0 || dropout_keeps(bits, static_cast<int>(i & 3), dropout_threshold(drop));
                want.push_back(keep ? value / (1 - static_cast<double>(drop)) : 0);
                want_sum.push_back(s[i]);
                // As in layer_norm_test, plus the three-term sum and the dropout's product.
                tolerance.push_back(12 * kEps32 * (largest * r * std::fabs(gamma.at(i)) * (1 + std::fabs(normal)) +
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

TEST(Embedding, RefusesIdsPastTheTable) {
  CpuStream stream(nullptr, best_isa());
  const HostTensor word = random_tensor(DType::f32, {4, 8}, 1), gamma = random_tensor(DType::f32, {8}, 2), y(DType::f32, {1, 8});
  const HostTensor good = int_tensor({0}), low = int_tensor({-1}), high = int_tensor({4});
  for (const HostTensor* bad : {&low, &high}) {
    EmbeddingArgs args{.word = word, .position = word, .gamma = gamma, .beta = gamma, .y = y};
    args.batch = {.T = 1, .ids = *bad, .positions = good};
    EXPECT_THROW(embedding(stream, args), Error);
    args.batch = {.T = 1, .ids = good, .positions = *bad};
    EXPECT_THROW(embedding(stream, args), Error);
  }
}

}  // namespace
}  // namespace brim
