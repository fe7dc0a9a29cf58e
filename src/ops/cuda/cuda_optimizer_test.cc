// SPDX-License-Identifier: Apache-2.0
// Loss, optimizer and fp8 scales on CUDA compared with the CPU, whose tests compare with fp64.
#include "ops/adamw.h"
#include "ops/amax.h"
#include "ops/cuda/testing.h"
#include "ops/loss.h"

namespace brim::ops {

using tensor::DType;

namespace {
using namespace brim::ops::testing;

device::CpuStream& cpu() {
  static device::CpuStream stream(nullptr, device::best_isa());
  return stream;
}

using CudaLoss = CudaOps;
TEST_F(CudaLoss, SquaredErrorMatchesTheCpu) {
  for (const int64_t rows : {1, 16, 17, 300})
    for (const int64_t K : {1, 3})
      for (const DType type : kActivationTypes) {
        const HostTensor logits = random_tensor(DType::f32, {rows, K}, 1, 3),
                         targets = random_tensor(DType::f32, {rows, K}, 2), loss(DType::f32, {1}),
                         d(DType::f32, {rows, K}), scratch = bytes_tensor(cross_entropy_scratch_bytes(cpu(), rows, 1));
        loss.fill(0.5);
        const DeviceTensor g_logits(logits), g_targets(targets), g_loss(loss), g_d(type, {rows, K}, 1),
            g_scratch(scratch);
        squared_error(cpu(), {logits, targets, loss, d, scratch, 0.125f});
        squared_error(Gpu::stream(), {g_logits, g_targets, g_loss, g_d, g_scratch, 0.125f});
        const std::vector<double> want = d.values();
        EXPECT_TRUE(close(g_d.values(), want, [&](size_t i) {
          return (eps_of(type) + 4 * kEps32) * std::fabs(want[i]) + smallest_of(type);
        }));
        EXPECT_TRUE(close(g_loss.values(), loss.values(), 8 * kEps32 * loss.at(0)));
      }
}
TEST_F(CudaLoss, MatchesTheCpu) {
  uint64_t seed = 1;
  for (const int64_t K : {1, 2, 3, 33, 100})
    for (const int64_t rows : {1, 15, 16, 17, 300})
      for (const bool multi_label : {false, true})
        for (const int teachers : {0, 1, 3})
          for (const DType type : kActivationTypes) {
            SCOPED_TRACE(::testing::Message() << "K " << K << " rows " << rows << " multi-label " << multi_label
                                              << " teachers " << teachers << " " << dtype_name(type));
            const HostTensor logits = random_tensor(DType::f32, {rows, K}, ++seed, 4, 0, 2),
                             other = random_tensor(DType::f32, {std::max(1, teachers) * rows, K}, ++seed, 4),
                             weights = random_tensor(DType::f32, {K}, ++seed, 0.1, 1);
            HostTensor targets =
                multi_label ? random_tensor(DType::f32, {rows, K}, ++seed) : HostTensor(DType::i32, {rows});
            for (int64_t r = 0; r < rows; ++r)
              if (multi_label)
                for (int64_t k = 0; k < K; ++k) targets.set(r, k, r % 5 == 4 ? -1 : targets.at(r, k) > 0 ? 1 : 0);
              else
                targets.set(r, 0, r % 7 == 3 ? kIgnoredTarget : r % 5 == 4 ? kNoLabel : static_cast<double>(r * 5 % K));
            const HostTensor loss(DType::f32, {1}), d_logits(DType::f32, {rows, K}),
                scratch = bytes_tensor(cross_entropy_scratch_bytes(cpu(), rows, 1));
            loss.fill(0.5);
            CrossEntropyArgs args{.logits = logits,
                                  .targets = targets,
                                  .class_weights = weights,
                                  .loss = loss,
                                  .d_logits = d_logits,
                                  .scratch = scratch,
                                  .scale = 0.125f};
            args.multi_label = multi_label;
            if (!multi_label) args.label_smoothing = 0.1f;
            if (teachers > 0) {
              args.teacher = other;
              args.soft_weight = 0.7f;
              args.hard_weight = 0.3f;
              args.temperature = 2;
            }
            const DeviceTensor g_logits(logits), g_targets(targets), g_weights(weights), g_other(other), g_loss(loss),
                g_d(type, {rows, K}, 1), g_scratch(scratch);
            cross_entropy(cpu(), args);
            args.logits = g_logits;
            args.targets = g_targets;
            args.class_weights = g_weights;
            args.loss = g_loss;
            args.d_logits = g_d;
            args.scratch = g_scratch;
            if (teachers > 0) args.teacher = g_other;
            cross_entropy(Gpu::stream(), args);
            const std::vector<double> want = d_logits.values();
            // Probabilities to 64 eps (exponents up to 32 are rounded before exponentiation), times weights below 2 and
            // the scale.
            EXPECT_TRUE(close(g_d.values(), want, [&](size_t i) {
              return eps_of(type) * std::fabs(want[i]) + 64 * kEps32 * 0.5 + smallest_of(type);
            }));
            EXPECT_TRUE(close(g_loss.values(), loss.values(),
                              128 * kEps32 * (std::fabs(loss.at(0)) + static_cast<double>(rows))));
          }
}

TEST_F(CudaLoss, PropagatesATargetOutOfRange) {
  const DeviceTensor logits(random_tensor(DType::f32, {2, 3}, 1)), targets(int_tensor({0, 7})),
      loss(random_tensor(DType::f32, {1}, 1, 0)), d(DType::f32, {2, 3}), scratch(bytes_tensor(64));
  cross_entropy(Gpu::stream(), {.logits = logits, .targets = targets, .loss = loss, .d_logits = d, .scratch = scratch});
  EXPECT_TRUE(std::isnan(loss.values()[0]));
}

// Tables of constants have rank 3; device tensors of the tests have at most two dimensions.
HostTensor flat_table(int64_t rows, int64_t lanes) { return HostTensor(DType::f32, {rows * lanes * kAdamWRowFloats}); }
TensorView as_table(const DeviceTensor& flat, int64_t rows, int64_t lanes) {
  return flat.view().reshape({rows, lanes, kAdamWRowFloats});
}

using CudaAdamW = CudaOps;
// Lanes with gaps between them and table rows selected by the step: same bits as each lane alone.
TEST_F(CudaAdamW, LaneResultDoesNotDependOnOtherLanes) {
  constexpr int64_t kLanes = 3, kN = 1500, kGap = 12, kRows = 2;
  for (const bool bytes : {false, true}) {
    const DType moment = bytes ? DType::u8 : DType::f32;
    const int64_t blocks = (kN + kAdamBlock - 1) / kAdamBlock;
    const HostTensor start = random_tensor(DType::f32, {kLanes, kN}, 1, 1, 0, kGap),
                     grads = random_tensor(DType::f32, {kLanes, kN}, 2, 1, 0, kGap), factors(DType::f32, {kLanes}),
                     table = flat_table(kRows, kLanes);
    AdamWRow rows[kRows][kLanes];
    for (int64_t r = 0; r < kRows; ++r)
      for (int64_t g = 0; g < kLanes; ++g) {
        rows[r][g] = adamw_row(1e-2f / static_cast<float>(1 + g), 0.9f, 0.999f, 1e-8f, 0.1f, r + 1);
        factors.set(g, 0, g == 2 ? NAN : 0.5);
      }
    std::memcpy(table.view().data, rows, sizeof rows);
    const auto zeros = [](DType type, std::initializer_list<int64_t> dims) {
      const HostTensor t(type, dims);
      std::memset(t.view().data, 0, static_cast<size_t>(t.view().bytes()));
      return DeviceTensor(t);
    };
    const DeviceTensor master(start), grad(grads), factor(factors), g_table(table), step(long_tensor({kRows + 1})),
        m = zeros(moment, {kLanes, kN}), v = zeros(moment, {kLanes, kN}), m_scale = zeros(DType::f32, {kLanes, blocks}),
        v_scale = zeros(DType::f32, {kLanes, blocks});
    AdamWArgs args{.master = master, .grad = grad, .m = m, .v = v, .grad_factor = factor};
    args.table = {.rows = as_table(g_table, kRows, kLanes), .step = step};
    if (bytes) {
      args.m_scale = m_scale;
      args.v_scale = v_scale;
    }
    adamw(Gpu::stream(), args);
    const HostTensor together = master.host();
    for (int64_t g = 0; g < kLanes; ++g) {
      const auto row_of = [&](const HostTensor& from) {
        HostTensor one(DType::f32, {kN});
        std::memcpy(one.view().data, from.as<float>() + g * from.view().ld(), kN * 4);
        return one;
      };
      const DeviceTensor w(row_of(start)), d(row_of(grads)),
          m1 = zeros(moment, {kN}), v1 = zeros(moment, {kN}), scale1 = zeros(DType::f32, {blocks}),
          scale2 = zeros(DType::f32, {blocks}), one_row(flat_table(1, 1));
      set_step(Gpu::stream(), {.rows = as_table(one_row, 1, 1), .row = rows[1][g]});
      AdamWArgs one{.master = w, .grad = d, .m = m1, .v = v1, .table = {.rows = as_table(one_row, 1, 1)}};
      one.grad_factor = factor.view().slice_rows(g, g + 1);
      if (bytes) {
        one.m_scale = scale1;
        one.v_scale = scale2;
      }
      adamw(Gpu::stream(), one);
      EXPECT_TRUE(same_bits(w.host(), row_of(together))) << g;
      EXPECT_EQ(static_cast<bool>(same_bits(row_of(together), row_of(start))), g == 2);
    }
  }
}
TEST_F(CudaAdamW, AdvancingIncrementsTheStep) {
  const DeviceTensor step(long_tensor({7}));
  advance_step(Gpu::stream(), {.step = step});
  EXPECT_EQ(*step.host().as<int64_t>(), 8);
}
TEST_F(CudaAdamW, MatchesTheCpu) {
  for (const int64_t n : {1, 4, 255, 256, 257, 5000})
    for (const bool bytes : {false, true})
      for (const DType copy_type : {DType::f32, DType::f16, DType::bf16}) {
        SCOPED_TRACE(::testing::Message() << "n " << n << " 8-bit " << bytes << " copy " << dtype_name(copy_type));
        const int64_t blocks = (n + kAdamBlock - 1) / kAdamBlock;
        const HostTensor master = random_tensor(DType::f32, {n}, 1), grad = random_tensor(DType::f32, {n}, 2),
                         factor = random_tensor(DType::f32, {1}, 1, 0, 0.5);
        HostTensor m = bytes ? HostTensor(DType::u8, {n}) : random_tensor(DType::f32, {n}, 3, 0.1),
                   v = bytes ? HostTensor(DType::u8, {n}) : random_tensor(DType::f32, {n}, 4, 0);
        const HostTensor m_scale(DType::f32, {blocks}), v_scale(DType::f32, {blocks}), copy(copy_type, {n});
        if (bytes) {
          m_scale.fill(0);
          v_scale.fill(0);
          std::fill_n(m.as<uint8_t>(), n, uint8_t{0});
          std::fill_n(v.as<uint8_t>(), n, uint8_t{0});
        } else {
          for (int64_t i = 0; i < n; ++i) v.set(i, 0, 0.01 + 0.001 * static_cast<double>(i % 13));
        }
        const HostTensor table(DType::f32, {1, 1, kAdamWRowFloats});
        AdamWArgs args{.master = master, .grad = grad, .m = m, .v = v, .grad_factor = factor, .table = {.rows = table}};
        if (bytes) {
          args.m_scale = m_scale;
          args.v_scale = v_scale;
        }
        if (copy_type != DType::f32) args.copy = copy;
        const DeviceTensor g_master(master), g_grad(grad), g_m(m), g_v(v), g_m_scale(m_scale), g_v_scale(v_scale),
            g_copy(copy), g_factor(factor), g_table(flat_table(1, 1));
        AdamWArgs there = args;
        there.table.rows = as_table(g_table, 1, 1);
        there.master = g_master;
        there.grad = g_grad;
        there.m = g_m;
        there.v = g_v;
        there.grad_factor = g_factor;
        if (bytes) {
          there.m_scale = g_m_scale;
          there.v_scale = g_v_scale;
        }
        if (copy_type != DType::f32) there.copy = g_copy;
        for (int64_t step = 1; step <= 3; ++step) {
          const AdamWRow row = adamw_row(1e-2f, 0.9f, 0.999f, 1e-8f, 0.1f, step);
          set_step(cpu(), {.rows = table, .row = row});
          set_step(Gpu::stream(), {.rows = there.table.rows, .row = row});
          adamw(cpu(), args);
          adamw(Gpu::stream(), there);
        }
        // Same operations in the same order; an instruction set without FMA differs by occasional roundings, and a
        // moment at the edge of a code by one code.
        const std::vector<double> want = master.values();
        EXPECT_TRUE(
            close(g_master.values(), want, [&](size_t i) { return (bytes ? 4e-3 : 1e-6) * (1 + std::fabs(want[i])); }));
        if (bytes) {
          int64_t apart = 0;
          const HostTensor got = g_m.host();
          for (int64_t i = 0; i < n; ++i) apart += got.as<uint8_t>()[i] != m.as<uint8_t>()[i];
          EXPECT_LE(apart, n / 100 + 1);
        } else {
          const std::vector<double> moments = v.values();
          EXPECT_TRUE(close(g_v.values(), moments, [&](size_t i) { return 4 * kEps32 * moments[i]; }));
        }
        if (copy_type != DType::f32) {
          const std::vector<double> now = g_master.values();
          EXPECT_TRUE(close(g_copy.values(), now,
                            [&](size_t i) { return eps_of(copy_type) * std::fabs(now[i]) + smallest_of(copy_type); }));
        }
      }
}
TEST_F(CudaAdamW, SkipsAStepWithOverflowedGradients) {
  const HostTensor before = random_tensor(DType::f32, {100}, 1);
  const DeviceTensor master(before), grad(random_tensor(DType::f32, {100}, 2)), m(before), v(before),
      factor(random_tensor(DType::f32, {1}, 1, 0, NAN)), table(flat_table(1, 1));
  const TensorView rows = as_table(table, 1, 1);
  set_step(Gpu::stream(), {.rows = rows, .row = adamw_row(1, 0.9f, 0.999f, 1e-8f, 0, 1)});
  adamw(Gpu::stream(),
        {.master = master, .grad = grad, .m = m, .v = v, .grad_factor = factor, .table = {.rows = rows}});
  EXPECT_TRUE(same_bits(master.host(), before));
  EXPECT_TRUE(same_bits(m.host(), before));
}

using CudaGradNorm = CudaOps;
TEST_F(CudaGradNorm, MatchesTheCpu) {
  for (const int64_t n : {0, 1, 1000, 16384, 16385, 100000})
    for (const float max_norm : {0.0f, 1.0f, 1e6f}) {
      const HostTensor grad = random_tensor(DType::f32, {n}, 5), norm(DType::f32, {1}), factor(DType::f32, {1}),
                       scratch = bytes_tensor(grad_norm_scratch_bytes(n));
      const DeviceTensor g_grad(grad), g_norm(norm), g_factor(factor), g_scratch(scratch);
      grad_norm(cpu(), {.grad = grad,
                        .norm = norm,
                        .factor = factor,
                        .scratch = scratch,
                        .grad_scale = 0.25f,
                        .max_norm = max_norm});
      grad_norm(Gpu::stream(), {.grad = g_grad,
                                .norm = g_norm,
                                .factor = g_factor,
                                .scratch = g_scratch,
                                .grad_scale = 0.25f,
                                .max_norm = max_norm});
      EXPECT_TRUE(close(g_norm.values(), norm.values(), 16 * kEps32 * norm.at(0)));
      EXPECT_TRUE(close(g_factor.values(), factor.values(), 16 * kEps32));
    }
  const HostTensor lanes = random_tensor(DType::f32, {3, 17000}, 6, 1, 0, 4);
  const DeviceTensor g_lanes(lanes), norms(DType::f32, {3}), factors(DType::f32, {3}),
      many(bytes_tensor(grad_norm_scratch_bytes(17000, 3)));
  grad_norm(Gpu::stream(), {.grad = g_lanes, .norm = norms, .factor = factors, .scratch = many, .max_norm = 1});
  for (int64_t g = 0; g < 3; ++g) {
    TensorView alone = g_lanes.view().slice_rows(g, g + 1).reshape({17000});
    const DeviceTensor norm(DType::f32, {1}), factor(DType::f32, {1});
    grad_norm(Gpu::stream(), {.grad = alone, .norm = norm, .factor = factor, .scratch = many, .max_norm = 1});
    EXPECT_EQ(norm.values()[0], norms.values()[static_cast<size_t>(g)]);
    EXPECT_EQ(factor.values()[0], factors.values()[static_cast<size_t>(g)]);
  }
  const HostTensor empty(DType::f32, {2, 3});
  empty.fill(0);
  const DeviceTensor ring(empty), step(long_tensor({7}));
  grad_norm(Gpu::stream(),
            {.grad = g_lanes, .norm = ring, .factor = factors, .scratch = many, .step = step, .max_norm = 1});
  EXPECT_EQ(ring.values()[0], 0);
  EXPECT_EQ(ring.values()[5], norms.values()[2]);
  const HostTensor bad = random_tensor(DType::f32, {50}, 5);
  bad.set(49, 0, INFINITY);
  const DeviceTensor grad(bad), norm(DType::f32, {1}), factor(DType::f32, {1}), scratch(bytes_tensor(64));
  grad_norm(Gpu::stream(), {.grad = grad, .norm = norm, .factor = factor, .scratch = scratch});
  EXPECT_TRUE(std::isnan(factor.values()[0]));
}

using CudaAmax = CudaOps;
TEST_F(CudaAmax, FindsTheLargestMagnitudeAndItsScale) {
  for (const DType type : kActivationTypes)
    for (const int64_t pad : {0, 3}) {
      const HostTensor x = random_tensor(type, {37, 200}, 1, 1, 0, pad), zero = random_tensor(DType::f32, {1}, 1, 0);
      x.set(30, 199, -14);
      const DeviceTensor gx(x), most(zero), scale(DType::f32, {1}), inverse(DType::f32, {1, 1});
      amax(Gpu::stream(), {.x = gx, .amax = most});
      EXPECT_EQ(most.values()[0], 14);
      fp8_scale(Gpu::stream(), {.amax = most, .scale = scale, .inverse = inverse});
      EXPECT_EQ(scale.values()[0], 32);
      EXPECT_EQ(inverse.values()[0], 0.03125);
    }
  const HostTensor bad = random_tensor(DType::bf16, {64}, 1);
  bad.set(3, 0, std::nan(""));
  const DeviceTensor gx(bad), most(random_tensor(DType::f32, {1}, 1, 0));
  amax(Gpu::stream(), {.x = gx, .amax = most});
  EXPECT_TRUE(std::isinf(most.values()[0]));
}

TEST_F(CudaAmax, RemembersAndScalesLikeTheCpu) {
  constexpr int64_t kSites = 131;
  device::CpuStream cpu(nullptr, device::best_isa());
  const HostTensor history = random_tensor(DType::f32, {kSites, kFp8History}, 1),
                   most = random_tensor(DType::f32, {kSites}, 2), scale(DType::f32, {kSites}),
                   inverse(DType::f32, {kSites, 4});  // row stride required by matmuls
  inverse.fill(0);
  for (int64_t k = 0; k < kFp8History; ++k) history.set(100, k, 0);  // a gradient without history
  most.set(100, 0, 0);
  most.set(5, 0, INFINITY);
  most.set(70, 0, std::nan(""));
  const DeviceTensor d_history(history), d_most(most), d_scale(scale), d_inverse(inverse);
  for (int step = 0; step < 3; ++step) {
    const auto both = [&](device::Stream& stream, const TensorView& h, const TensorView& m, const TensorView& s,
                          const TensorView& i) {
      fp8_remember(stream, {.amax = m, .history = h, .first_gradient = 60, .unit = 0.3f});
      fp8_delayed_scale(stream,
                        {.history = h, .scale = s, .inverse = i, .first_gradient = 60, .unit = 0.7f, .margin = 2});
    };
    both(cpu, history, most, scale, inverse.view().slice_cols(0, 1));
    both(Gpu::stream(), d_history, d_most, d_scale, d_inverse.view().slice_cols(0, 1));
    EXPECT_NEAR(scale.at(100), 448 / 1.4, 1e-4);
    EXPECT_EQ(d_inverse.values(), inverse.values());
    EXPECT_EQ(d_history.values(), history.values());
    EXPECT_EQ(d_most.values(), most.values());
    EXPECT_EQ(d_scale.values(), scale.values());
  }
}

}  // namespace
}  // namespace brim::ops
