// SPDX-License-Identifier: Apache-2.0
// Forecasting ops on CUDA compared with the CPU, whose tests compare with fp64; and a lane among others compared with
// the lane alone, bit for bit.
#include "ops/basis_fold.h"
#include "ops/cuda/testing.h"
#include "ops/forecast_loss.h"
#include "ops/lane_linear.h"
#include "ops/lane_linear_testing.h"
#include "ops/lane_testing.h"
#include "ops/residual_step.h"

namespace brim::ops {

using tensor::DType;
using tensor::TensorView;

namespace {
using namespace brim::ops::testing;

device::CpuStream& lane_cpu() {
  static device::CpuStream stream(nullptr, device::best_isa());
  return stream;
}

// A host tensor of any rank on the device; device tensors of the tests have at most two dimensions.
struct OnDevice {
  TensorView shape;
  HostTensor flat;
  DeviceTensor memory;
  explicit OnDevice(const HostTensor& host) : shape(host.view()), flat(DType::u8, {host.view().bytes()}) {
    if (flat.rows() > 0) std::memcpy(flat.view().data, host.view().data, static_cast<size_t>(flat.rows()));
    memory = DeviceTensor(flat);
  }
  operator TensorView() const {  // NOLINT: implicit on purpose
    TensorView v = shape;
    v.data = memory.view().data;
    return v;
  }
  // Current contents, in the element order of the host tensor.
  std::vector<double> values() const {
    const HostTensor bytes = memory.host();
    HostTensor t(shape.dtype, {shape.elements()});
    if (t.rows() > 0) std::memcpy(t.view().data, bytes.view().data, static_cast<size_t>(bytes.rows()));
    return t.values();
  }
};
std::vector<double> flat_values(const HostTensor& host) { return OnDevice(host).values(); }

using CudaWindowGather = CudaOps;
TEST_F(CudaWindowGather, MatchesTheCpuExactly) {
  const TestStore store({2, 40, 3, 200, 77}, 3);
  for (const Sampling sampling : {Sampling::series, Sampling::windows})
    for (const int64_t L : {8, 72}) {
      const TestLanes lanes({{.seed = 1, .lookback = 5, .history = 30, .season = 2},
                             {.seed = 2, .lookback = static_cast<int32_t>(L), .history = 1000, .season = 4},
                             {.seed = 3, .lookback = 8, .history = 9, .scaler = WindowScaler::none}},
                            store, sampling);
      const Gathered want(3, 19, L, 6);
      const HostTensor step = long_tensor({41});
      const OnDevice values(store.values), begin(store.begin), end(lanes.end), first(lanes.first),
          weights(lanes.weights), specs(lanes.specs), g_step(step), r(want.r), r_half(want.r_half), mask(want.mask),
          y(want.y), level(want.level), scale(want.scale), season(want.season_scale), chosen(want.chosen);
      WindowGatherArgs args = want.args(store, lanes);
      args.step = step;
      args.first_row = 5;
      window_gather(lane_cpu(), args);
      args.values = values;
      args.begin = begin;
      args.end = end;
      args.first = first;
      args.weights = weights;
      args.lanes = specs;
      args.step = g_step;
      args.r = r;
      args.r_half = r_half;
      args.mask = mask;
      args.y = y;
      args.level = level;
      args.scale = scale;
      args.season_scale = season;
      args.chosen = chosen;
      window_gather(Gpu::stream(), args);
      // Same sums in the same order: same bits.
      EXPECT_TRUE(close(chosen.values(), flat_values(want.chosen), 0.0));
      EXPECT_TRUE(close(mask.values(), flat_values(want.mask), 0.0));
      EXPECT_TRUE(close(r.values(), flat_values(want.r), 0.0));
      EXPECT_TRUE(close(r_half.values(), flat_values(want.r_half), 0.0));
      EXPECT_TRUE(close(y.values(), flat_values(want.y), 0.0));
      EXPECT_TRUE(close(level.values(), flat_values(want.level), 0.0));
      EXPECT_TRUE(close(scale.values(), flat_values(want.scale), 0.0));
      EXPECT_TRUE(close(season.values(), flat_values(want.season_scale), 0.0));
    }
}

// Precision with operands of this type.
Precision precision_of(DType type) {
  return type == DType::bf16 ? Precision::bf16 : type == DType::f16 ? Precision::fp16 : Precision::fp32;
}
// A lane tensor of values representable in `type`, in f32 for the CPU and in `type` for the device.
struct Twin {
  LaneTensor rounded, exact;
  DeviceTensor memory;
  Twin(int64_t G, int64_t rows, int64_t cols, uint64_t seed, int64_t gap, DType type)
      : rounded(G, rows, cols, seed, gap, type), exact(G, rows, cols, seed, gap) {
    for (int64_t g = 0; g < G; ++g)
      for (int64_t i = 0; i < rows * cols; ++i) exact.memory.set(g, i, rounded.memory.at(g, i));
    memory = DeviceTensor(rounded.memory);
  }
  TensorView there() const { return rounded.like(memory); }
  TensorView vectors() const { return memory.view(); }  // [G, cols] for a single row
};

using CudaLaneLinear = CudaOps;
TEST_F(CudaLaneLinear, MatchesTheCpuAndIsIndependentOfOtherLanes) {
  struct Shape {
    int64_t G, B, N, K;
  };
  std::vector<Shape> shapes = {{1, 1, 8, 8}, {3, 33, 40, 72}, {2, 130, 24, 16}};
  if (!Gpu::emulated()) {
    shapes.push_back({16, 1024, 512, 512});
    shapes.push_back({16, 256, 88, 512});
    shapes.push_back({5, 1024, 512, 72});
  }
  for (const Shape& s : shapes)
    for (const DType type : kActivationTypes) {
      SCOPED_TRACE(::testing::Message() << s.G << " lanes " << s.B << " " << s.N << " " << s.K << " "
                                        << dtype_name(type));
      const bool large = s.B * s.N > 100000;
      const Twin x(s.G, s.B, s.K, 1, 0, type), w(s.G, s.N, s.K, 2, 64, type), bias(s.G, 1, s.N, 3, 64, type),
          y(s.G, s.B, s.N, 4, 0, type), d_y(s.G, s.B, s.N, 5, 0, type), d_x(s.G, s.B, s.K, 6, 0, type),
          d_w(s.G, s.N, s.K, 7, 32, DType::f32), d_bias(s.G, 1, s.N, 8, 32, DType::f32),
          sums(s.G, 1, s.K, 9, 32, DType::f32);
      const auto forward = [&](auto pick, const TensorView& out) {
        return LaneLinearArgs{.x = pick(x.there()),
                              .w = pick(w.there()),
                              .bias = pick(bias.vectors()),
                              .y = out,
                              .scratch = gemm_scratch(),
                              .precision = precision_of(type),
                              .relu = true};
      };
      const auto all = [](const TensorView& v) { return v; };
      lane_linear(Gpu::stream(), forward(all, y.there()));
      const auto backward = [&](auto pick, const TensorView& to_x, const TensorView& to_w, const TensorView& to_b,
                                const TensorView& to_s) {
        return LaneLinearGradArgs{.x = pick(x.there()),
                                  .w = pick(w.there()),
                                  .d_y = pick(d_y.there()),
                                  .d_x = to_x,
                                  .d_w = to_w,
                                  .d_bias = to_b,
                                  .d_x_sums = to_s,
                                  .scratch = gemm_scratch(),
                                  .precision = precision_of(type),
                                  .x_is_relu = true};
      };
      lane_linear_grad(Gpu::stream(), backward(all, d_x.there(), d_w.there(), d_bias.vectors(), sums.vectors()));
      const std::vector<double> got_y = y.memory.values(), got_d_x = d_x.memory.values(), got_d_w = d_w.memory.values(),
                                got_bias = d_bias.memory.values(), got_sums = sums.memory.values();
      // Each lane alone.
      for (int64_t g = 0; g < (large ? 2 : s.G); ++g) {
        const Twin y1(1, s.B, s.N, 4, 0, type), d_x1(1, s.B, s.K, 6, 0, type), d_w1(1, s.N, s.K, 7, 0, DType::f32),
            bias1(1, 1, s.N, 8, 0, DType::f32), sums1(1, 1, s.K, 9, 0, DType::f32);
        const auto one = [&](const TensorView& v) { return v.slice_rows(g, g + 1); };
        lane_linear(Gpu::stream(), forward(one, y1.there()));
        lane_linear_grad(Gpu::stream(), backward(one, d_x1.there(), d_w1.there(), bias1.vectors(), sums1.vectors()));
        const auto same = [&](const Twin& alone, const std::vector<double>& together, int64_t each) {
          const std::vector<double> a = alone.memory.values();
          return std::equal(a.begin(), a.end(), together.begin() + g * each);
        };
        EXPECT_TRUE(same(y1, got_y, s.B * s.N)) << g;
        EXPECT_TRUE(same(d_x1, got_d_x, s.B * s.K)) << g;
        EXPECT_TRUE(same(d_w1, got_d_w, s.N * s.K)) << g;
        EXPECT_TRUE(same(bias1, got_bias, s.N)) << g;
        EXPECT_TRUE(same(sums1, got_sums, s.K)) << g;
      }
      if (large) continue;
      const LaneTensor want_y(s.G, s.B, s.N, 1), want_d_x(s.G, s.B, s.K, 1), want_d_w(s.G, s.N, s.K, 1),
          want_bias(s.G, 1, s.N, 1), want_sums(s.G, 1, s.K, 1);
      const HostTensor scratch =
          bytes_tensor(std::max(lane_linear_scratch_bytes(lane_cpu(), s.G, s.B, s.N, s.K, Precision::fp32, 1),
                                lane_linear_grad_scratch_bytes(lane_cpu(), s.G, s.B, s.N, s.K, Precision::fp32, 1)));
      lane_linear(
          lane_cpu(),
          {.x = x.exact, .w = w.exact, .bias = bias.exact.rows(), .y = want_y, .scratch = scratch, .relu = true});
      lane_linear_grad(lane_cpu(), {.x = x.exact,
                                    .w = w.exact,
                                    .d_y = d_y.exact,
                                    .d_x = want_d_x,
                                    .d_w = want_d_w,
                                    .d_bias = want_bias.rows(),
                                    .d_x_sums = want_sums.rows(),
                                    .scratch = scratch,
                                    .x_is_relu = true});
      // Sums of `depth` products of two normal values: their magnitude is below 4 times the root of `depth`. The gated
      // sums add up to B roundings of d_x.
      const auto near = [&](const std::vector<double>& got, const LaneTensor& want, double depth, double eps) {
        const std::vector<double> expected = want.memory.values();
        const double size = 4 * std::sqrt(depth) + 8;
        return close(got, expected,
                     [&](size_t i) { return eps * std::fabs(expected[i]) + depth * 4 * kEps32 * size + eps; });
      };
      const double eps = eps_of(type);
      EXPECT_TRUE(near(got_y, want_y, static_cast<double>(s.K), eps));
      EXPECT_TRUE(near(got_d_x, want_d_x, static_cast<double>(s.N), eps));
      EXPECT_TRUE(near(got_d_w, want_d_w, static_cast<double>(s.B), kEps32));
      EXPECT_TRUE(near(got_bias, want_bias, static_cast<double>(s.B), kEps32));
      const double rows = static_cast<double>(s.B), values = 4 * std::sqrt(static_cast<double>(s.N)) + 8;
      EXPECT_TRUE(close(got_sums, want_sums.memory.values(), rows * values * (eps + 4 * kEps32)));
    }
}

// The first layer's gradient is added in fp32 to the gradient that bypasses the block, and weight gradients of shared
// blocks to each other.
TEST_F(CudaLaneLinear, AddsInFp32) {
  const int64_t G = 2, B = 20, N = 16, K = 24;
  const Twin x(G, B, K, 1, 0, DType::bf16), w(G, N, K, 2, 0, DType::bf16), d_y(G, B, N, 3, 0, DType::bf16),
      d_x(G, B, K, 4, 0, DType::f32), d_w(G, N, K, 5, 0, DType::f32);
  LaneLinearGradArgs args{.x = x.there(),
                          .w = w.there(),
                          .d_y = d_y.there(),
                          .d_x = d_x.there(),
                          .d_w = d_w.there(),
                          .scratch = gemm_scratch(),
                          .precision = Precision::bf16,
                          .d_x_write = GradWrite::accumulate,
                          .write = GradWrite::accumulate};
  lane_linear_grad(Gpu::stream(), args);
  const HostTensor scratch = bytes_tensor(lane_linear_grad_scratch_bytes(lane_cpu(), G, B, N, K, Precision::fp32, 1));
  lane_linear_grad(lane_cpu(), {.x = x.exact,
                                .w = w.exact,
                                .d_y = d_y.exact,
                                .d_x = d_x.exact,
                                .d_w = d_w.exact,
                                .scratch = scratch,
                                .d_x_write = GradWrite::accumulate,
                                .write = GradWrite::accumulate});
  EXPECT_TRUE(close(d_x.memory.values(), d_x.exact.memory.values(), 1e-4));
  EXPECT_TRUE(close(d_w.memory.values(), d_w.exact.memory.values(), 1e-4));
}

using CudaResidualStep = CudaOps;
TEST_F(CudaResidualStep, MatchesTheCpu) {
  const int64_t G = 2, B = 37, L = 24, F = 8;
  const auto random = [](std::initializer_list<int64_t> dims, uint64_t seed) {
    HostTensor t(DType::f32, dims);
    const HostTensor flat = random_tensor(DType::f32, {t.view().elements()}, seed);
    std::memcpy(t.view().data, flat.view().data, static_cast<size_t>(flat.view().bytes()));
    return t;
  };
  const HostTensor r = random({G, B, L}, 1), o = random({G, B, L + F}, 2), mask(DType::u8, {G, B, L}),
                   next(DType::f32, {G, B, L}), half(DType::bf16, {G, B, L}), d_r = random({G, B, L}, 4),
                   d_f = random({G, B, F}, 5), d_o(DType::f32, {G, B, L + F});
  for (int64_t i = 0; i < G * B * L; ++i) mask.as<uint8_t>()[i] = i % 5 == 2 ? 0 : 1;
  for (const bool first : {false, true}) {
    const HostTensor f = random({G, B, F}, 3);
    const OnDevice g_r(r), g_o(o), g_mask(mask), g_next(next), g_half(half), g_f(f);
    const GradWrite write = first ? GradWrite::overwrite : GradWrite::accumulate;
    residual_step(lane_cpu(), {.r = r, .o = o, .mask = mask, .r_next = next, .r_half = half, .f = f, .f_write = write});
    residual_step(Gpu::stream(),
                  {.r = g_r, .o = g_o, .mask = g_mask, .r_next = g_next, .r_half = g_half, .f = g_f, .f_write = write});
    EXPECT_TRUE(close(g_next.values(), flat_values(next), 0.0));
    EXPECT_TRUE(close(g_half.values(), flat_values(half), 0.0));
    EXPECT_TRUE(close(g_f.values(), flat_values(f), 0.0));
  }
  for (const bool last : {false, true})
    for (const DType type : kActivationTypes) {
      const HostTensor d_r_cpu = random({G, B, L}, 4), d_o_typed(type, {G, B, L + F});
      const OnDevice g_d_r(d_r), g_d_f(d_f), g_mask(mask), g_d_o(d_o_typed);
      residual_step_grad(lane_cpu(), {.d_r = d_r_cpu, .d_f = d_f, .mask = mask, .d_o = d_o, .last = last});
      residual_step_grad(Gpu::stream(), {.d_r = g_d_r, .d_f = g_d_f, .mask = g_mask, .d_o = g_d_o, .last = last});
      const std::vector<double> want = flat_values(d_o);
      EXPECT_TRUE(close(g_d_r.values(), flat_values(d_r_cpu), 0.0));
      EXPECT_TRUE(close(g_d_o.values(), want, [&](size_t i) {
        return type == DType::f32 ? 0.0 : eps_of(type) * std::fabs(want[i]) + smallest_of(type);
      }));
    }
}

using CudaBasisFold = CudaOps;
TEST_F(CudaBasisFold, MatchesTheCpu) {
  const int64_t G = 2, P = 6, N = 24, W = 40;
  for (const DType type : kActivationTypes) {
    const Twin basis(G, P, N, 1, 16, DType::f32), theta(G, P, W, 2, 16, DType::f32), v(G, N, W, 3, 0, type),
        d_v(G, N, W, 4, 16, DType::f32), d_theta(G, P, W, 5, 16, DType::f32);
    const LaneTensor want(G, N, W, 3), want_d(G, P, W, 5, 16);
    basis_fold(lane_cpu(), {.basis = basis.exact, .theta = theta.exact, .v = want});
    basis_fold(Gpu::stream(), {.basis = basis.there(), .theta = theta.there(), .v = v.there()});
    // Sums of a few products of normal values, fused or not.
    EXPECT_TRUE(close(v.memory.values(), want.memory.values(), 32 * eps_of(type) + 1e-5));
    for (const GradWrite write : {GradWrite::overwrite, GradWrite::accumulate}) {
      basis_fold_grad(lane_cpu(), {.basis = basis.exact, .d_v = d_v.exact, .d_theta = want_d, .d_theta_write = write});
      basis_fold_grad(Gpu::stream(),
                      {.basis = basis.there(), .d_v = d_v.there(), .d_theta = d_theta.there(), .d_theta_write = write});
      EXPECT_TRUE(close(d_theta.memory.values(), want_d.memory.values(), 1e-4));
    }
  }
}

using CudaForecastLoss = CudaOps;
TEST_F(CudaForecastLoss, MatchesTheCpu) {
  std::vector<LaneSpec> lanes;
  for (int loss = 0; loss <= static_cast<int>(ForecastLoss::quantile); ++loss)
    lanes.push_back({.lookback = 8, .loss = static_cast<ForecastLoss>(loss), .huber_delta = 0.7f});
  const auto G = static_cast<int64_t>(lanes.size());
  for (const int64_t B : {1, 9, 40})
    for (const int64_t Q : {1, 3})
      for (const bool present : {false, true}) {
        const int64_t H = 13, F = 40;
        uint64_t seed = 1;
        const auto random = [&](std::initializer_list<int64_t> dims, double size, double mean) {
          HostTensor t(DType::f32, dims);
          const HostTensor flat = random_tensor(DType::f32, {t.view().elements()}, ++seed, size, mean);
          std::memcpy(t.view().data, flat.view().data, static_cast<size_t>(flat.view().bytes()));
          return t;
        };
        const HostTensor f = random({G, B, F}, 1, 0), level = random({G, B}, 3, 10), scale = random({G, B}, 0, 1.5),
                         season = random({G, B}, 0.1, 2), y = random({G, B, H}, 2, 10), specs = spec_tensor(lanes),
                         quantiles = random_tensor(DType::f32, {Q}, 1, 0.1, 0.5), loss = random({2, G}, 0, 0.25),
                         d_f(DType::f32, {G, B, F}), y_hat(DType::f32, {G, B, Q * H}),
                         scratch = bytes_tensor(forecast_loss_scratch_bytes(G, B)), step = long_tensor({7});
        for (int64_t i = 0; i < y.view().elements(); ++i)
          if (i % 7 == 3) y.as<float>()[i] = NAN;
        const OnDevice g_f(f), g_level(level), g_scale(scale), g_season(season), g_y(y), g_specs(specs),
            g_quantiles(quantiles), g_loss(loss), g_d_f(d_f), g_y_hat(y_hat), g_scratch(scratch), g_step(step);
        ForecastLossArgs args{.f = f,
                              .level = level,
                              .scale = scale,
                              .lanes = specs,
                              .y = y,
                              .season_scale = season,
                              .quantiles = quantiles,
                              .loss = loss,
                              .step = step,
                              .d_f = d_f,
                              .y_hat = y_hat,
                              .scratch = scratch,
                              .horizon = H,
                              .loss_write = GradWrite::accumulate,
                              .mean_of_present = present};
        forecast_loss(lane_cpu(), args);
        args.f = g_f;
        args.level = g_level;
        args.scale = g_scale;
        args.lanes = g_specs;
        args.y = g_y;
        args.season_scale = g_season;
        args.quantiles = g_quantiles;
        args.loss = g_loss;
        args.step = g_step;
        args.d_f = g_d_f;
        args.y_hat = g_y_hat;
        args.scratch = g_scratch;
        forecast_loss(Gpu::stream(), args);
        // A cell has a few roundings, and ŷ is fused or not.
        const std::vector<double> losses = flat_values(loss), slopes = flat_values(d_f), hats = flat_values(y_hat);
        EXPECT_TRUE(close(g_loss.values(), losses, [&](size_t i) { return 1e-5 * (1 + losses[i]); }));
        EXPECT_TRUE(close(g_d_f.values(), slopes, [&](size_t i) { return 1e-5 * (1e-3 + std::fabs(slopes[i])); }));
        EXPECT_TRUE(close(g_y_hat.values(), hats, [&](size_t i) { return 4 * kEps32 * (std::fabs(hats[i]) + 20); }));
      }
}

}  // namespace
}  // namespace brim::ops
