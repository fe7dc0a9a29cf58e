// SPDX-License-Identifier: Apache-2.0
#include "ops/forecast_loss.h"

#include "ops/lane_testing.h"

namespace brim::ops {

using device::CpuStream;
using tensor::DType;

namespace {
using namespace brim::ops::testing;

constexpr ForecastLoss kLosses[] = {ForecastLoss::smape, ForecastLoss::mape,  ForecastLoss::mase,    ForecastLoss::mae,
                                    ForecastLoss::mse,   ForecastLoss::huber, ForecastLoss::quantile};

// One lane per loss.
struct LossCase {
  int64_t G = std::size(kLosses), B, H = 5, Q, F;
  std::vector<LaneSpec> lanes;
  HostTensor specs, f, y, level, scale, season, quantiles;
  LossCase(int64_t windows, int64_t Qs, uint64_t seed) : B(windows), Q(Qs), F((Qs * 5 + 7) / 8 * 8) {
    for (const ForecastLoss loss : kLosses) lanes.push_back({.lookback = 8, .loss = loss, .huber_delta = 0.7f});
    specs = spec_tensor(lanes);
    const auto fill = [&](std::initializer_list<int64_t> dims, double size, double mean) {
      HostTensor t(DType::f32, dims);
      const HostTensor flat = random_tensor(DType::f32, {t.view().elements()}, ++seed, size, mean);
      if (flat.rows() > 0) std::memcpy(t.view().data, flat.view().data, static_cast<size_t>(flat.view().bytes()));
      return t;
    };
    f = fill({G, B, F}, 1, 0);
    level = fill({G, B}, 3, 10);
    scale = fill({G, B}, 0.1, 1.5);
    season = fill({G, B}, 0.1, 2);
    y = fill({G, B, H}, 2, 10);
    quantiles = HostTensor(DType::f32, {Q});
    for (int64_t q = 0; q < Q; ++q) quantiles.as<float>()[q] = static_cast<float>(q + 1) / static_cast<float>(Q + 1);
    for (int64_t i = 0; i < y.view().elements(); ++i)
      if (i % 7 == 3) y.as<float>()[i] = NAN;
  }
  // Mean over cells, with `constant` instead of f in the denominator of smape; from the definitions in forecast_loss.h.
  double loss64(int64_t g, const std::vector<double>& x, const std::vector<double>& constant, bool present) const {
    double sum = 0, cells = 0;
    for (int64_t i = 0; i < B; ++i)
      for (int64_t k = 0; k < Q * H; ++k) {
        const int64_t row = g * B + i;
        const double l = level.as<float>()[row], s = scale.as<float>()[row], target = y.as<float>()[row * H + k % H];
        if (std::isnan(target) && present) continue;
        ++cells;
        if (std::isnan(target)) continue;
        const double value = x[i * F + k], e = value - (target - l) / s, hat = l + s * value,
                     fixed = l + s * constant[i * F + k], q = quantiles.as<float>()[k / H], delta = 0.7f;
        switch (kLosses[g]) {
          case ForecastLoss::smape:
            sum += 200 * std::fabs(hat - target) / (std::fabs(fixed) + std::fabs(target));
            break;
          case ForecastLoss::mape:
            sum += std::fabs(hat - target) / std::fabs(target);
            break;
          case ForecastLoss::mase:
            sum += std::fabs(hat - target) / season.as<float>()[row];
            break;
          case ForecastLoss::mae:
            sum += std::fabs(e);
            break;
          case ForecastLoss::mse:
            sum += e * e;
            break;
          case ForecastLoss::huber:
            sum += std::fabs(e) <= delta ? e * e / 2 : delta * (std::fabs(e) - delta / 2);
            break;
          case ForecastLoss::quantile:
            sum += std::max(-q * e, (1 - q) * e);
            break;
        }
      }
    return sum / std::max(cells, 1.0);
  }
  std::vector<double> forecasts(int64_t g) const {
    return std::vector<double>(f.as<float>() + g * B * F, f.as<float>() + (g + 1) * B * F);
  }
};

struct LossResult {
  HostTensor loss, d_f, y_hat, scratch;
  explicit LossResult(const LossCase& c)
      : loss(DType::f32, {2, c.G}),
        d_f(DType::f32, {c.G, c.B, c.F}),
        y_hat(DType::f32, {c.G, c.B, c.Q * c.H}),
        scratch(bytes_tensor(forecast_loss_scratch_bytes(c.G, c.B))) {
    loss.fill(0);
  }
  ForecastLossArgs args(const LossCase& c) const {
    return {.f = c.f,
            .level = c.level,
            .scale = c.scale,
            .lanes = c.specs,
            .y = c.y,
            .season_scale = c.season,
            .quantiles = c.quantiles,
            .loss = loss,
            .d_f = d_f,
            .y_hat = y_hat,
            .scratch = scratch,
            .horizon = c.H};
  }
};

TEST(ForecastLoss, LossAndGradientMatchFp64) {
  for_each_cpu_stream([](CpuStream& stream) {
    for (const int64_t B : {1, 7, 8, 9})
      for (const int64_t Q : {1, 3})
        for (const bool present : {false, true}) {
          const LossCase c(B, Q, static_cast<uint64_t>(B * 10 + Q));
          const LossResult got(c);
          const HostTensor step = long_tensor({3});  // the second of two rows
          ForecastLossArgs args = got.args(c);
          args.step = step;
          args.mean_of_present = present;
          forecast_loss(stream, args);
          for (int64_t g = 0; g < c.G; ++g) {
            std::vector<double> x = c.forecasts(g);
            const std::vector<double> fixed = x;
            const double want = c.loss64(g, x, fixed, present);
            EXPECT_NEAR(got.loss.at(1, g), want, 32 * kEps32 * (want + 200));
            EXPECT_EQ(got.loss.at(0, g), 0);
            const std::vector<double> slopes = finite_differences(x, [&] { return c.loss64(g, x, fixed, present); });
            for (size_t i = 0; i < slopes.size(); ++i)
              EXPECT_NEAR(got.d_f.as<float>()[static_cast<size_t>(g * B * c.F) + i], slopes[i],
                          2e-5 * (1 + std::fabs(slopes[i])))
                  << g << " " << i;
            for (int64_t k = 0; k < c.Q * c.H; ++k) {
              const double l = c.level.as<float>()[g * B], s = c.scale.as<float>()[g * B];
              EXPECT_NEAR(got.y_hat.as<float>()[g * B * c.Q * c.H + k], l + s * fixed[k], 1e-5);
            }
          }
        }
  });
}

// Two halves of a step add up to the whole, and a lane alone equals the lane among others, bit for bit.
TEST(ForecastLoss, PartsAddUpAndLanesAreIndependent) {
  CpuStream stream(nullptr, device::best_isa());
  const LossCase c(16, 1, 5);
  const LossResult whole(c);
  forecast_loss(stream, whole.args(c));
  for (int64_t g = 0; g < c.G; ++g) {
    const auto part = [&](const HostTensor& t, int64_t begin, int64_t rows) {
      const int64_t each = t.view().rank == 3 ? t.cols() : 1;
      tensor::TensorView v(static_cast<float*>(t.view().data) + (g * c.B + begin) * each, DType::f32, {1, rows, each});
      return t.view().rank == 3 ? v : v.reshape({1, rows});
    };
    const HostTensor loss(DType::f32, {1, 1}), d_f(DType::f32, {1, c.B, c.F});
    const auto run = [&](int64_t begin, int64_t rows, GradWrite write) {
      ForecastLossArgs args{.f = part(c.f, begin, rows),
                            .level = part(c.level, begin, rows),
                            .scale = part(c.scale, begin, rows),
                            .lanes = c.specs.view().slice_rows(g, g + 1),
                            .y = part(c.y, begin, rows),
                            .season_scale = part(c.season, begin, rows),
                            .loss = loss,
                            .scratch = whole.scratch,
                            .horizon = c.H,
                            .windows = c.B,
                            .loss_write = write};
      args.d_f = tensor::TensorView(d_f.as<float>() + begin * c.F, DType::f32, {1, rows, c.F});
      forecast_loss(stream, args);
    };
    run(0, 16, GradWrite::overwrite);
    EXPECT_EQ(loss.at(0), whole.loss.at(0, g));
    EXPECT_EQ(std::memcmp(d_f.view().data, whole.d_f.as<float>() + g * c.B * c.F, 16 * 8 * 4), 0);
    run(0, 6, GradWrite::overwrite);
    run(6, 10, GradWrite::accumulate);
    EXPECT_NEAR(loss.at(0), whole.loss.at(0, g), 1e-6 * loss.at(0));
    EXPECT_EQ(std::memcmp(d_f.view().data, whole.d_f.as<float>() + g * c.B * c.F, 16 * 8 * 4), 0);
  }
}

TEST(ForecastLoss, ZeroDenominatorsCountAsZero) {
  for (const ForecastLoss loss : {ForecastLoss::smape, ForecastLoss::mape, ForecastLoss::mase}) {
    const LossCell cell = forecast_cell({.loss = loss}, 0, 0, 0, 1, 0, 0.5f);
    EXPECT_EQ(cell.loss, 0);
    EXPECT_EQ(cell.slope, 0);
  }
}

}  // namespace
}  // namespace brim::ops
