// SPDX-License-Identifier: Apache-2.0
#include "ops/adamw.h"

#include "ops/adam8_code.h"
#include "ops/testing.h"

namespace brim::ops {

using device::CpuStream;
using tensor::DType;

namespace {
using namespace brim::ops::testing;

struct State {
  HostTensor master, m, v, m_scale, v_scale, copy, factor, table;
  explicit State(int64_t n, bool bytes, DType copy_type = DType::bf16)
      : master(random_tensor(DType::f32, {n}, 1)),
        m(bytes ? DType::u8 : DType::f32, {n}),
        v(bytes ? DType::u8 : DType::f32, {n}),
        m_scale(DType::f32, {(n + kAdamBlock - 1) / kAdamBlock}),
        v_scale(DType::f32, {(n + kAdamBlock - 1) / kAdamBlock}),
        copy(copy_type, {n}),
        factor(DType::f32, {1}),
        table(DType::f32, {1, 1, kAdamWRowFloats}) {
    for (const HostTensor* t : {&m, &v, &m_scale, &v_scale})
      if (t->view().elements() > 0) std::memset(t->view().data, 0, static_cast<size_t>(t->view().bytes()));
    factor.set(0, 0, 0.5);
  }
  AdamWArgs args(const HostTensor& grad, int64_t step, float decay = 0.1f) const {
    CpuStream stream(nullptr, device::best_isa());
    set_step(stream, {.rows = table, .row = adamw_row(1e-2f, 0.9f, 0.999f, 1e-8f, decay, step)});
    AdamWArgs a{
        .master = master, .grad = grad, .m = m, .v = v, .copy = copy, .grad_factor = factor, .table = {.rows = table}};
    if (m.view().dtype == DType::u8) {
      a.m_scale = m_scale;
      a.v_scale = v_scale;
    }
    return a;
  }
};

TEST(AdamW, MatchesFp64OverSteps) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const int64_t n : {0, 1, 15, 16, 17, 1000, 70000})
      for (const DType copy : {DType::f16, DType::bf16}) {
        SCOPED_TRACE(::testing::Message() << n << " elements, copy in " << dtype_name(copy));
        const State s(n, false, copy);
        std::vector<double> w = s.master.values(), m(n), v(n), moved(n);
        const double beta1 = 0.9f, beta2 = 0.999f, lr = 1e-2f, decay = 0.1f, eps = 1e-8f;
        const int steps = 4;
        for (int step = 1; step <= steps; ++step) {
          const HostTensor grad = random_tensor(DType::f32, {n}, 10 + static_cast<uint64_t>(step));
          adamw(stream, s.args(grad, step));
          for (int64_t i = 0; i < n; ++i) {
            const double g = grad.at(i) * 0.5;
            m[i] = beta1 * m[i] + (1 - beta1) * g;
            v[i] = beta2 * v[i] + (1 - beta2) * g * g;
            const double update =
                lr / (1 - std::pow(beta1, step)) * m[i] / (std::sqrt(v[i] / (1 - std::pow(beta2, step))) + eps);
            w[i] = w[i] * (1 - lr * decay) - update;
            moved[i] += std::fabs(update);
          }
        }
        // 1 - beta in fp32 is off by eps/(1-beta) at worst; each step rounds the weight twice and the update about ten
        // times.
        EXPECT_TRUE(close(s.m.values(), m, 1e-6));
        EXPECT_TRUE(close(s.v.values(), v, [&](size_t i) { return (kEps32 / 1e-3 + 16 * kEps32) * v[i] + 1e-12; }));
        EXPECT_TRUE(close(s.master.values(), w, [&](size_t i) {
          return 2.5 * steps * kEps32 * std::fabs(w[i]) + (64 * kEps32 + kEps32 / 1e-3) * moved[i] + 1e-9;
        }));
        HostTensor rounded(copy, {n});
        for (int64_t i = 0; i < n; ++i) rounded.set(i, 0, s.master.at(i));
        EXPECT_TRUE(same_bits(s.copy, rounded));
      }
  });
}

TEST(AdamW, NonFiniteFactorSkipsTheStep) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const bool bytes : {false, true})
      for (const double factor : {double{NAN}, double{INFINITY}}) {
        const State s(300, bytes), before(300, bytes);
        s.factor.set(0, 0, factor);
        const HostTensor grad = random_tensor(DType::f32, {300}, 3);
        adamw(stream, s.args(grad, 1));
        EXPECT_TRUE(same_bits(s.master, before.master));
        EXPECT_TRUE(same_bits(s.m, before.m));
        EXPECT_TRUE(same_bits(s.v, before.v));
      }
  });
}

TEST(AdamW, GivesSameBitsForAllThreadCounts) {
  for (const bool bytes : {false, true})
    expect_same_bits_for_all_thread_counts([&](CpuStream& stream) {
      State s(50000, bytes);
      for (int step = 1; step <= 3; ++step) {
        const HostTensor grad = random_tensor(DType::f32, {50000}, 20 + static_cast<uint64_t>(step));
        adamw(stream, s.args(grad, step));
      }
      std::vector<HostTensor> out;
      out.push_back(std::move(s.master));
      out.push_back(std::move(s.m));
      out.push_back(std::move(s.v));
      return out;
    });
}

TEST(Adam8Code, RoundTripsEveryCodeInOrder) {
  for (int code = 0; code < 256; ++code) {
    const auto byte = static_cast<uint8_t>(code), before = static_cast<uint8_t>(code - 1);
    EXPECT_EQ(adam8_encode_m(adam8_decode_m(byte)), code == 0x80 ? 0 : code);  // 0x80 is minus zero
    EXPECT_EQ(adam8_encode_root(adam8_decode_root(byte)), code);
    EXPECT_TRUE(code == 0 || adam8_decode_root(byte) > adam8_decode_root(before)) << code;
    EXPECT_TRUE(code == 0 || code >= 128 || adam8_decode_m(byte) > adam8_decode_m(before)) << code;
  }
  EXPECT_EQ(adam8_decode_m(0x7F), 1.875f);
  EXPECT_EQ(adam8_decode_root(0xFF), 1.9375f);
}

TEST(Adam8Code, RoundsToNearestAndKeepsNonZeroRoots) {
  for (double x = 1e-9; x < 1.875; x *= 1.0137) {
    const auto f = static_cast<float>(x);
    // Half a step: 2^-4 of the value with three bits of fraction, 2^-5 with four; evenly spaced below 2^-14.
    EXPECT_NEAR(adam8_decode_m(adam8_encode_m(f)), f, std::max(f / 16, 0x1p-18f) * 1.0001f);
    EXPECT_NEAR(adam8_decode_m(adam8_encode_m(-f)), -f, std::max(f / 16, 0x1p-18f) * 1.0001f);
    EXPECT_NEAR(adam8_decode_root(adam8_encode_root(f)), f, std::max(f / 32, 0x1p-18f) * 1.0001f);
    EXPECT_GT(adam8_encode_root(f), 0);
  }
  EXPECT_EQ(adam8_encode_m(2.5f), 0x7F);
  EXPECT_EQ(adam8_encode_root(1e30f), 0xFF);
  EXPECT_EQ(adam8_encode_root(0), 0);
}

// One step from a known state: moments within half a step of the code, the weight update within the resulting bound.
TEST(AdamW8, OneStepIsWithinTheCodePrecision) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const int64_t n : {1, 255, 256, 257, 5000}) {
      const State eight(n, true), full(n, false);
      const HostTensor grad = random_tensor(DType::f32, {n}, 5);
      adamw(stream, eight.args(grad, 1));
      adamw(stream, full.args(grad, 1));
      EXPECT_TRUE(same_bits(eight.master, full.master)) << n;  // the moments were exact (zero) before the step
      for (int64_t i = 0; i < n; ++i) {
        const double m = adam8_decode_m(eight.m.as<uint8_t>()[i]) * eight.m_scale.at(i / kAdamBlock);
        const double root = adam8_decode_root(eight.v.as<uint8_t>()[i]) * eight.v_scale.at(i / kAdamBlock);
        EXPECT_NEAR(m, full.m.at(i), std::fabs(full.m.at(i)) / 15.9 + 1e-5 * eight.m_scale.at(i / kAdamBlock));
        EXPECT_NEAR(root, std::sqrt(full.v.at(i)),
                    std::sqrt(full.v.at(i)) / 31.9 + 2e-5 * eight.v_scale.at(i / kAdamBlock));
      }
    }
  });
}

// A noisy quadratic with curvatures over four decades: 8-bit moments must end as close to the minimum as 32-bit ones.
TEST(AdamW8, ConvergesLikeFullPrecision) {
  CpuStream stream(nullptr, device::best_isa());
  const int64_t n = 2000;
  double left[2];
  for (const bool bytes : {false, true}) {
    const State s(n, bytes);
    s.factor.set(0, 0, 1);
    for (int step = 1; step <= 600; ++step) {
      HostTensor grad = random_tensor(DType::f32, {n}, 100 + static_cast<uint64_t>(step), 0.01);
      for (int64_t i = 0; i < n; ++i) {
        const double curvature = std::pow(10.0, static_cast<double>(i % 5) - 2);
        grad.as<float>()[i] = static_cast<float>(curvature * (s.master.at(i) + grad.at(i)));
      }
      adamw(stream, s.args(grad, step, 0));
    }
    left[bytes] = 0;
    for (const double w : s.master.values()) left[bytes] += w * w / static_cast<double>(n);
  }
  EXPECT_LT(left[0], 1e-3);
  EXPECT_LT(left[1], 2 * left[0] + 1e-4);
}

// Several lanes in slabs with gaps, each with its own rate, decay and factor, from a table row selected by the step:
// every lane gives the same bits as alone, and skipped or stopped lanes do not change.
TEST(AdamW, LaneResultDoesNotDependOnOtherLanes) {
  constexpr int64_t kLanes = 4, kN = 5000, kGap = 24, kRows = 3;
  for (const bool bytes : {false, true})
    expect_same_bits_for_all_thread_counts([&](CpuStream& stream) {
      const int64_t blocks = (kN + kAdamBlock - 1) / kAdamBlock;
      const DType moment = bytes ? DType::u8 : DType::f32;
      std::vector<HostTensor> all;
      all.push_back(random_tensor(DType::f32, {kLanes, kN}, 1, 1, 0, kGap));
      const HostTensor grad = random_tensor(DType::f32, {kLanes, kN}, 2, 1, 0, kGap), m(moment, {kLanes, kN}),
                       v(moment, {kLanes, kN}, kGap), copy(DType::bf16, {kLanes, kN}), factor(DType::f32, {kLanes}),
                       m_scale(DType::f32, {kLanes, blocks}), v_scale(DType::f32, {kLanes, blocks}),
                       table(DType::f32, {kRows, kLanes, kAdamWRowFloats}), step = long_tensor({kRows + 1});
      const HostTensor& master = all[0];
      for (const HostTensor* t : {&m, &v, &m_scale, &v_scale})
        std::memset(t->view().data, 0, static_cast<size_t>(t->rows() * t->view().ld() * dtype_bytes(t->view().dtype)));
      AdamWRow rows[kRows][kLanes];
      for (int64_t r = 0; r < kRows; ++r)
        for (int64_t g = 0; g < kLanes; ++g) {
          const float lr = g == 3 ? 0 : 1e-2f / static_cast<float>(1 + g), decay = g == 1 ? 0.1f : 0;
          rows[r][g] = adamw_row(lr, 0.9f, 0.999f, 1e-8f, decay, r + 1);
          factor.set(g, 0, g == 2 ? NAN : 0.5 + static_cast<double>(g));
        }
      std::memcpy(table.view().data, rows, sizeof rows);
      std::vector<HostTensor> want;
      for (int64_t g = 0; g < kLanes; ++g) {
        want.emplace_back(DType::f32, std::initializer_list<int64_t>{kN});
        const HostTensor &alone = want.back(), g_alone(DType::f32, {kN}), row(DType::f32, {1, 1, kAdamWRowFloats});
        std::memcpy(alone.view().data, master.as<float>() + g * (kN + kGap), kN * 4);
        std::memcpy(g_alone.view().data, grad.as<float>() + g * (kN + kGap), kN * 4);
        set_step(stream, {.rows = row, .row = rows[1][g]});
        const HostTensor m1(moment, {kN}), v1(moment, {kN}), scale1(DType::f32, {blocks}), scale2(DType::f32, {blocks});
        for (const HostTensor* t : {&m1, &v1, &scale1, &scale2})
          std::memset(t->view().data, 0, static_cast<size_t>(t->view().bytes()));
        AdamWArgs one{.master = alone, .grad = g_alone, .m = m1, .v = v1, .table = {.rows = row}};
        one.grad_factor = factor.view().slice_rows(g, g + 1);
        if (bytes) {
          one.m_scale = scale1;
          one.v_scale = scale2;
        }
        adamw(stream, one);
      }
      AdamWArgs args{.master = master, .grad = grad, .m = m, .v = v, .copy = copy, .grad_factor = factor};
      args.table = {.rows = table, .step = step};
      if (bytes) {
        args.m_scale = m_scale;
        args.v_scale = v_scale;
      }
      const HostTensor before = random_tensor(DType::f32, {kLanes, kN}, 1, 1, 0, kGap);
      adamw(stream, args);
      for (int64_t g = 0; g < kLanes; ++g) {
        const float* lane = master.as<float>() + g * (kN + kGap);
        EXPECT_EQ(std::memcmp(lane, want[static_cast<size_t>(g)].view().data, kN * 4), 0) << g;
        EXPECT_EQ(std::memcmp(lane, before.as<float>() + g * (kN + kGap), kN * 4) == 0, g >= 2) << g;
        if (g != 2) {
          EXPECT_EQ(copy.at(g, 7), static_cast<double>(to_float(tensor::to_bf16(lane[7])))) << g;
        }
      }
      return all;
    });
}

TEST(AdamW, AdvancingSelectsTheNextRow) {
  CpuStream stream(nullptr, device::best_isa());
  const HostTensor step = long_tensor({41});
  advance_step(stream, {.step = step});
  EXPECT_EQ(*step.as<int64_t>(), 42);
}

TEST(GradNorm, LaneNormDoesNotDependOnOtherLanes) {
  const HostTensor grad = random_tensor(DType::f32, {3, 20000}, 3, 1, 0, 5);
  grad.set(1, 7, INFINITY);
  expect_same_bits_for_all_thread_counts([&](CpuStream& stream) {
    std::vector<HostTensor> out;
    out.emplace_back(DType::f32, std::initializer_list<int64_t>{3});
    out.emplace_back(DType::f32, std::initializer_list<int64_t>{3});
    const HostTensor scratch = bytes_tensor(grad_norm_scratch_bytes(20000, 3));
    grad_norm(stream, {.grad = grad, .norm = out[0], .factor = out[1], .scratch = scratch, .max_norm = 1});
    for (int64_t g = 0; g < 3; ++g) {
      const HostTensor norm(DType::f32, {1}), factor(DType::f32, {1});
      tensor::TensorView alone(grad.as<float>() + g * 20005, DType::f32, {20000});
      grad_norm(stream, {.grad = alone, .norm = norm, .factor = factor, .scratch = scratch, .max_norm = 1});
      EXPECT_TRUE(std::memcmp(norm.as<float>(), out[0].as<float>() + g, 4) == 0) << g;
      EXPECT_TRUE(std::memcmp(factor.as<float>(), out[1].as<float>() + g, 4) == 0) << g;
    }
    EXPECT_TRUE(std::isnan(out[1].at(1)));
    const HostTensor ring(DType::f32, {2, 3}), step = long_tensor({7});
    ring.fill(0);
    grad_norm(stream, {.grad = grad, .norm = ring, .factor = out[1], .scratch = scratch, .step = step, .max_norm = 1});
    EXPECT_EQ(ring.at(0, 0), 0);
    EXPECT_EQ(std::memcmp(ring.as<float>() + 3, out[0].as<float>(), 12), 0);
    return out;
  });
}

TEST(GradNorm, NormAndFactorMatchFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const int64_t n : {0, 1, 17, 4097, 100000})
      for (const float max_norm : {0.0f, 1.0f, 1e6f}) {
        const HostTensor grad = random_tensor(DType::f32, {n}, 3, 2.0), norm(DType::f32, {1}), factor(DType::f32, {1});
        const HostTensor scratch = bytes_tensor(grad_norm_scratch_bytes(n));
        grad_norm(stream, {.grad = grad,
                           .norm = norm,
                           .factor = factor,
                           .scratch = scratch,
                           .grad_scale = 0.25f,
                           .max_norm = max_norm});
        double total = 0;
        for (const double g : grad.values()) total += g * g;
        const double want = std::sqrt(total) * 0.25;
        // Each lane sums up to 4096 / 4 squares in fp32 before adding to a double: sqrt(1024) roundings of the sum,
        // halved by the root.
        EXPECT_NEAR(norm.at(0), want, 20 * kEps32 * want);
        EXPECT_NEAR(factor.at(0), 0.25 * (max_norm > 0 ? std::min(1.0, max_norm / (want + 1e-6)) : 1.0),
                    24 * kEps32 * 0.25);
      }
  });
}

TEST(GradNorm, OverflowAndNanGiveANanFactor) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const double bad : {double{NAN}, double{INFINITY}, 1e30}) {
      const HostTensor grad = random_tensor(DType::f32, {100}, 3), norm(DType::f32, {1}), factor(DType::f32, {1});
      grad.set(50, 0, bad);
      const HostTensor scratch = bytes_tensor(grad_norm_scratch_bytes(100));
      grad_norm(stream, {.grad = grad, .norm = norm, .factor = factor, .scratch = scratch, .max_norm = 1});
      EXPECT_FALSE(std::isfinite(norm.at(0)));
      EXPECT_TRUE(std::isnan(factor.at(0)));
    }
  });
}

TEST(GradNorm, GivesSameBitsForAllThreadCounts) {
  const HostTensor grad = random_tensor(DType::f32, {200001}, 3);
  expect_same_bits_for_all_thread_counts([&](CpuStream& stream) {
    std::vector<HostTensor> out;
    out.emplace_back(DType::f32, std::initializer_list<int64_t>{1});
    out.emplace_back(DType::f32, std::initializer_list<int64_t>{1});
    const HostTensor scratch = bytes_tensor(grad_norm_scratch_bytes(200001));
    grad_norm(stream, {.grad = grad, .norm = out[0], .factor = out[1], .scratch = scratch, .max_norm = 1});
    return out;
  });
}

}  // namespace
}  // namespace brim::ops
