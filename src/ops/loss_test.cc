// SPDX-License-Identifier: Apache-2.0
#include "ops/loss.h"

#include "ops/testing.h"

namespace brim::ops {

using device::CpuStream;
using tensor::DType;

namespace {
using namespace brim::ops::testing;

struct Setting {
  const char* name;
  int64_t K;
  bool multi_label, weights;
  float smoothing, hard, soft, temperature;
  int teachers = 1;
  bool unlabelled = false;  // every fifth row has no label
};
constexpr Setting kSettings[] = {
    {"plain", 3, false, false, 0, 1, 0, 1},
    {"weights", 5, false, true, 0, 1, 0, 1},
    {"smoothing", 4, false, false, 0.1f, 1, 0, 1},
    {"weights and smoothing", 7, false, true, 0.2f, 1, 0, 1},
    {"distillation", 6, false, true, 0.1f, 0.3f, 0.7f, 3},
    {"soft only", 17, false, false, 0, 0, 1, 2},
    {"many classes", 1000, false, false, 0, 1, 0, 1},
    {"one class", 1, false, false, 0, 1, 0, 1},
    {"multi-label", 5, true, false, 0, 1, 0, 1},
    {"multi-label distilled", 9, true, true, 0, 0.5f, 0.5f, 2},
    {"three teachers", 6, false, true, 0.1f, 0.3f, 0.7f, 3, 3},
    {"two teachers, rows without labels", 3, false, true, 0.1f, 0.4f, 0.6f, 2, 2, true},
    {"multi-label, two teachers, rows without labels", 5, true, true, 0, 0.5f, 0.5f, 2, 2, true},
};

double softplus(double x) { return std::max(x, 0.0) + std::log1p(std::exp(-std::fabs(x))); }

struct Problem {
  Setting s;
  int64_t rows;
  std::vector<double> z, teacher, weights, multi;
  std::vector<int32_t> targets;
  Problem(const Setting& setting, int64_t n, double scale, uint64_t seed) : s(setting), rows(n) {
    z = random_tensor(DType::f32, {n, s.K}, seed, scale).values();
    teacher = random_tensor(DType::f32, {s.teachers * n, s.K}, seed + 1, scale).values();
    weights = random_tensor(DType::f32, {s.K}, seed + 2).values();
    for (double& w : weights) w = s.weights ? static_cast<double>(static_cast<float>(0.5 + std::fabs(w))) : 1;
    for (int64_t i = 0; i < n * s.K; ++i) multi.push_back(i % 3 == 0 ? 1 : 0);
    for (int64_t r = 0; r < n; ++r) targets.push_back(r % 4 == 3 ? kIgnoredTarget : static_cast<int32_t>(r * 5 % s.K));
    for (int64_t r = 0; s.unlabelled && r < n; r += 5) {
      targets[r] = kNoLabel;
      std::fill_n(multi.begin() + r * s.K, s.K, -1.0);
    }
  }
  // Loss computed directly from the definitions in loss.h.
  double loss() const {
    double total = 0;
    for (int64_t r = 0; r < rows; ++r)
      total += s.multi_label ? multi_row(&z[r * s.K], r) : targets[r] == kIgnoredTarget ? 0 : class_row(&z[r * s.K], r);
    return total;
  }
  double log_sum(const double* x, double t) const {
    double top = -INFINITY, total = 0;
    for (int64_t k = 0; k < s.K; ++k) top = std::max(top, x[k] / t);
    for (int64_t k = 0; k < s.K; ++k) total += std::exp(x[k] / t - top);
    return top + std::log(total);
  }
  // Mean of the teachers' softened probabilities.
  template <class Probability>
  double mean(int64_t r, const Probability& of) const {
    double sum = 0;
    for (int i = 0; i < s.teachers; ++i) sum += of(&teacher[(i * rows + r) * s.K]);
    return sum / s.teachers;
  }
  double class_row(const double* x, int64_t r) const {
    const double lse = log_sum(x, 1), smooth = s.smoothing, t = s.temperature, sum_x = log_sum(x, t);
    double hard = 0, soft = 0;
    if (targets[r] != kNoLabel) {
      hard = (1 - smooth) * weights[targets[r]] * (lse - x[targets[r]]);
      for (int64_t k = 0; k < s.K; ++k) hard += smooth / static_cast<double>(s.K) * weights[k] * (lse - x[k]);
    }
    for (int64_t k = 0; s.soft != 0 && k < s.K; ++k) {
      const double q = mean(r, [&](const double* w) { return std::exp(w[k] / t - log_sum(w, t)); });
      soft += q * (std::log(q) - (x[k] / t - sum_x));
    }
    return static_cast<double>(s.hard) * hard + static_cast<double>(s.soft) * t * t * soft;
  }
  double multi_row(const double* x, int64_t r) const {
    const double t = s.temperature, n = static_cast<double>(s.K);
    double hard = 0, soft = 0;
    for (int64_t k = 0; k < s.K; ++k) {
      const double y = multi[r * s.K + k], q = mean(r, [&](const double*w) { return 1 / (1 + std::exp(-w[k] / t)); }),
                   p = 1 / (1 + std::exp(-x[k] / t));
      if (y >= 0) hard += weights[k] * (softplus(x[k]) - y * x[k]) / n;
      soft += (q * std::log(q / p) + (1 - q) * std::log((1 - q) / (1 - p))) / n;
    }
    return static_cast<double>(s.hard) * hard + static_cast<double>(s.soft) * t * t * soft;
  }
};

std::vector<HostTensor> run(CpuStream& stream, const Problem& p, float scale) {
  const int64_t K = p.s.K;
  const HostTensor logits(DType::f32, {p.rows, K}, 1), teacher(DType::f32, {p.s.teachers * p.rows, K}, 3),
      weights(DType::f32, {K}), multi(DType::f32, {p.rows, K});
  for (int64_t i = 0; i < p.rows * K; ++i) {
    logits.set(i / K, i % K, p.z[i]);
    multi.set(i / K, i % K, p.multi[i]);
  }
  for (int64_t i = 0; i < p.s.teachers * p.rows * K; ++i) teacher.set(i / K, i % K, p.teacher[i]);
  for (int64_t k = 0; k < K; ++k) weights.set(k, 0, p.weights[k]);
  const HostTensor targets = int_tensor(p.targets);
  const HostTensor scratch = bytes_tensor(cross_entropy_scratch_bytes(stream, p.rows, 1));
  std::vector<HostTensor> out;
  out.emplace_back(DType::f32, std::initializer_list<int64_t>{1});
  out.emplace_back(DType::f32, std::initializer_list<int64_t>{p.rows, K}, 2);
  out[0].set(0, 0, 2.5);  // accumulated
  CrossEntropyArgs args{.logits = logits,
                        .targets = p.s.multi_label ? multi.view() : targets.view(),
                        .loss = out[0],
                        .d_logits = out[1],
                        .scratch = scratch,
                        .scale = scale,
                        .label_smoothing = p.s.smoothing,
                        .hard_weight = p.s.hard,
                        .soft_weight = p.s.soft,
                        .temperature = p.s.temperature,
                        .multi_label = p.s.multi_label};
  if (p.s.weights) args.class_weights = weights;
  if (p.s.soft != 0) args.teacher = teacher;
  cross_entropy(stream, args);
  return out;
}

TEST(CrossEntropy, LossAndGradientMatchFp64) {
  for (const Setting& s : kSettings)
    for (const int64_t rows : {0, 1, 17, 40})
      for (const double scale : {1.0, 8.0}) {
        SCOPED_TRACE(::testing::Message() << s.name << ", " << rows << " rows, logits of " << scale);
        if (s.K == 1000 && rows > 1) continue;  // finite differences of 1000 classes: one row only
        Problem p(s, rows, scale, 7);
        const double want_loss = p.loss();
        const std::vector<double> want = finite_differences(p.z, [&] { return p.loss(); });
        const float factor = 0.125f;
        for_each_cpu_stream([&](CpuStream& stream) {
          const std::vector<HostTensor> got = run(stream, p, factor);
          EXPECT_TRUE(close({got[0].at(0)}, {want_loss + 2.5},
                            4 * kEps32 * (std::fabs(want_loss) + 2.5 + static_cast<double>(rows) * scale * 8)));
          // Probabilities are at most 1: exp to 2e-7, and one rounding of the difference of logits; weights up to 4;
          // finite differences are accurate to 1e-9 times the magnitude of the loss.
          const double tolerance =
              factor * (4 * static_cast<double>(s.temperature) * (2e-7 + 8 * kEps32 * (4 + scale)) +
                        1e-9 * (1 + std::fabs(want_loss)));
          std::vector<double> scaled;
          for (const double g : want) scaled.push_back(g * factor);
          EXPECT_TRUE(close(got[1].values(), scaled, tolerance));
        });
      }
}

TEST(CrossEntropy, GivesSameBitsForAllThreadCounts) {
  const Problem p(kSettings[4], 700, 1, 3);
  expect_same_bits_for_all_thread_counts([&](CpuStream& stream) { return run(stream, p, 1.0f / 700); });
}

TEST(CrossEntropy, ExtremeLogitsStayFinite) {
  CpuStream stream(nullptr, device::best_isa());
  for (const Setting& s : {kSettings[0], kSettings[8]}) {
    Problem p(s, 2, 1, 3);
    for (size_t i = 0; i < p.z.size(); ++i) p.z[i] = i % 2 != 0 ? 1e4 : -1e4;
    const std::vector<HostTensor> got = run(stream, p, 1);
    EXPECT_TRUE(std::isfinite(got[0].at(0)));
    for (const double g : got[1].values()) EXPECT_TRUE(std::isfinite(g));
  }
}

TEST(CrossEntropy, RejectsInvalidArguments) {
  CpuStream stream(nullptr, device::best_isa());
  Problem p(kSettings[0], 1, 1, 3);
  for (const int32_t bad : {3, -1, -99}) {
    p.targets = {bad};
    EXPECT_THROW((void)run(stream, p, 1), Error) << bad;
  }
  p.targets = {0};
  p.s.smoothing = 1.5f;
  EXPECT_THROW((void)run(stream, p, 1), Error);
  Setting many = kSettings[4];
  many.teachers = kMostTeachers + 1;
  EXPECT_THROW((void)run(stream, Problem(many, 1, 1, 3), 1), Error);
}

TEST(SquaredError, LossAndGradientMatchFp64) {
  for (const int64_t rows : {0, 1, 17, 40})
    for (const int64_t K : {1, 3}) {
      const HostTensor logits = random_tensor(DType::f32, {rows, K}, 1, 3),
                       targets = random_tensor(DType::f32, {rows, K}, 2);
      double want_loss = 2.5;
      std::vector<double> want;
      for (int64_t i = 0; i < rows * K; ++i) {
        const double off = logits.at(i / K, i % K) - targets.at(i / K, i % K);
        want_loss += off * off / static_cast<double>(K);
        want.push_back(0.25 * 2 * off / static_cast<double>(K));
      }
      const auto run = [&](CpuStream& stream) {
        std::vector<HostTensor> out;
        out.emplace_back(DType::f32, std::initializer_list<int64_t>{1});
        out.emplace_back(DType::f32, std::initializer_list<int64_t>{rows, K}, 2);
        out[0].set(0, 0, 2.5);
        const HostTensor scratch = bytes_tensor(cross_entropy_scratch_bytes(stream, rows, 1));
        squared_error(stream, {.logits = logits,
                               .targets = targets,
                               .loss = out[0],
                               .d_logits = out[1],
                               .scratch = scratch,
                               .scale = 0.25f});
        return out;
      };
      for_each_cpu_stream([&](CpuStream& stream) {
        const std::vector<HostTensor> got = run(stream);
        EXPECT_TRUE(close({got[0].at(0)}, {want_loss}, 2 * kEps32 * want_loss));
        EXPECT_TRUE(close(got[1].values(), want, [&](size_t i) { return 2 * kEps32 * std::fabs(want[i]); }));
      });
      expect_same_bits_for_all_thread_counts(run);
    }
}

}  // namespace
}  // namespace brim::ops
