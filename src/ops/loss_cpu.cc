// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ops/check.h"
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

// p = softmax(factor * z); returns log-sum-exp of factor * z.
double softmax_of(const cpu::RowKernels& kernels, const float* z, float factor, float* p, int64_t K) {
  float top = z[0];
  for (int64_t k = 1; k < K; ++k) top = std::max(top, z[k]);
  for (int64_t k = 0; k < K; ++k) p[k] = (z[k] - top) * factor;
  kernels.exp(p, p, K);
  double total = 0;
  for (int64_t k = 0; k < K; ++k) total += static_cast<double>(p[k]);
  kernels.scale(p, static_cast<float>(1.0 / total), K);
  return static_cast<double>(top) * static_cast<double>(factor) + std::log(total);
}

double softplus(double x) { return x > 0 ? x + std::log1p(std::exp(-x)) : std::log1p(std::exp(x)); }
double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

// One row's loss; its gradient, times a.scale, goes to d.
class RowLoss {
 public:
  RowLoss(const cpu::RowKernels& kernels, const CrossEntropyArgs& a) : kernels_(kernels), a_(a), K_(a.logits.cols()) {}

  double one_class(const float* z, int32_t target, const float* teacher, float* d) const {
    BRIM_CHECK(0 <= target && target < K_, "cross_entropy: target {} of {} classes", target, K_);
    const double smooth = static_cast<double>(a_.label_smoothing) / static_cast<double>(K_);
    const double on_target = (1 - static_cast<double>(a_.label_smoothing)) * weight(target),
                 hard = static_cast<double>(a_.hard_weight);
    const double lse = softmax_of(kernels_, z, 1.0f, d, K_);
    double all = on_target, loss = on_target * (lse - z[target]);
    if (smooth > 0)
      for (int64_t k = 0; k < K_; ++k) {
        all += smooth * weight(k);
        loss += smooth * weight(k) * (lse - z[k]);
      }
    for (int64_t k = 0; k < K_; ++k) {
      const double want = (k == target ? on_target : 0) + (smooth > 0 ? smooth * weight(k) : 0);
      d[k] = static_cast<float>(hard * scale() * (all * d[k] - want));
    }
    loss *= hard;
    return teacher == nullptr ? loss : loss + soft_classes(z, teacher, d);
  }

  double multi_label(const float* z, const float* target, const float* teacher, float* d) const {
    const double t = a_.temperature, hard = static_cast<double>(a_.hard_weight) / static_cast<double>(K_);
    const double soft = static_cast<double>(a_.soft_weight) / static_cast<double>(K_);
    double loss = 0;
    for (int64_t k = 0; k < K_; ++k) {
      const double x = z[k];
      loss += hard * weight(k) * (softplus(x) - x * target[k]);
      double slope = hard * weight(k) * (sigmoid(x) - target[k]);
      if (teacher != nullptr) {
        const double u = x / t, w = teacher[k] / t, q = sigmoid(w);
        loss += soft * t * t * (q * (w - u) + softplus(u) - softplus(w));
        slope += soft * t * (sigmoid(u) - q);
      }
      d[k] = static_cast<float>(scale() * slope);
    }
    return loss;
  }

 private:
  double weight(int64_t k) const {
    return a_.class_weights ? static_cast<double>(a_.class_weights.as<float>()[k]) : 1.0;
  }
  double scale() const { return static_cast<double>(a_.scale); }

  // Added to the gradient already in d. Two softmaxes at temperature t; q log(q/p) = q ((w - lse_w) - (u - lse_u)).
  double soft_classes(const float* z, const float* teacher, float* d) const {
    const double t = a_.temperature, soft = static_cast<double>(a_.soft_weight);
    double top_u = z[0], top_w = teacher[0], total_u = 0, total_w = 0, loss = 0;
    for (int64_t k = 1; k < K_; ++k) {
      top_u = std::max<double>(top_u, z[k]);
      top_w = std::max<double>(top_w, teacher[k]);
    }
    for (int64_t k = 0; k < K_; ++k) {
      total_u += std::exp((z[k] - top_u) / t);
      total_w += std::exp((teacher[k] - top_w) / t);
    }
    const double lse_u = top_u / t + std::log(total_u), lse_w = top_w / t + std::log(total_w);
    for (int64_t k = 0; k < K_; ++k) {
      const double log_p = z[k] / t - lse_u, log_q = teacher[k] / t - lse_w, q = std::exp(log_q);
      loss += q * (log_q - log_p);
      d[k] += static_cast<float>(scale() * soft * t * (std::exp(log_p) - q));
    }
    return soft * t * t * loss;
  }

  const cpu::RowKernels& kernels_;
  const CrossEntropyArgs& a_;
  int64_t K_;
};

}  // namespace

void cross_entropy_cpu(device::Stream& stream, const CrossEntropyArgs& a) {
  const int64_t rows = a.logits.rows(), K = a.logits.cols();
  check_scratch("cross_entropy", a.scratch, cross_entropy_scratch_bytes(stream, rows, threads_of(stream)));
  auto* partial = static_cast<double*>(a.scratch.data);
  const RowLoss row_loss(cpu::row_kernels_of(stream), a);
  parallel_pieces(stream, rows, kLossRows, [&](int64_t begin, int64_t end, int) {
    double sum = 0;
    for (int64_t r = begin; r < end; ++r) {
      const float* z = cpu::row_of<float>(a.logits, r);
      const float* teacher = a.soft_weight != 0 ? cpu::row_of<float>(a.teacher, r) : nullptr;
      float* d = cpu::row_of<float>(a.d_logits, r);
      if (a.multi_label) {
        sum += row_loss.multi_label(z, cpu::row_of<float>(a.targets, r), teacher, d);
      } else if (const int32_t target = a.targets.as<int32_t>()[r]; target == kIgnoredTarget) {
        std::fill_n(d, K, 0.0f);
      } else {
        sum += row_loss.one_class(z, target, teacher, d);
      }
    }
    partial[begin / kLossRows] = sum;
  });
  double sum = 0;
  for (int64_t i = 0; i * kLossRows < rows; ++i) sum += partial[i];
  float* loss = a.loss.as<float>();
  *loss = static_cast<float>(*loss + sum);
}

}  // namespace brim::ops
