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
double x_log_x(double x) { return x > 0 ? x * std::log(x) : 0; }

// Logits of all teachers for one row.
struct TeacherRow {
  const float* first = nullptr;  // null if there are none
  int64_t next = 0;              // stride between teachers in elements
  int count = 0;
  const float* operator[](int i) const { return first + i * next; }
};

// Computes the loss of one row and writes its gradient, times a.scale, to d.
class RowLoss {
 public:
  RowLoss(const cpu::RowKernels& kernels, const CrossEntropyArgs& a) : kernels_(kernels), a_(a), K_(a.logits.cols()) {}

  double one_class(const float* z, int32_t target, const TeacherRow& teacher, float* d) const {
    if (target == kNoLabel) {
      std::fill_n(d, K_, 0.0f);
      return teacher.count == 0 ? 0 : soft_classes(z, teacher, d);
    }
    BRIM_CHECK(0 <= target && target < K_, "cross_entropy: target {} is out of range for {} classes", target, K_);
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
    return teacher.count == 0 ? loss : loss + soft_classes(z, teacher, d);
  }

  double multi_label(const float* z, const float* target, const TeacherRow& teacher, float* d) const {
    const double t = a_.temperature, hard = static_cast<double>(a_.hard_weight) / static_cast<double>(K_);
    const double soft = static_cast<double>(a_.soft_weight) / static_cast<double>(K_);
    double loss = 0;
    for (int64_t k = 0; k < K_; ++k) {
      const double x = z[k];
      double slope = 0;
      if (target[k] >= 0) {
        loss += hard * weight(k) * (softplus(x) - x * target[k]);
        slope = hard * weight(k) * (sigmoid(x) - target[k]);
      }
      if (teacher.count > 0) {
        const double u = x / t;
        double q = 0;
        for (int i = 0; i < teacher.count; ++i) q += sigmoid(teacher[i][k] / t);
        q /= teacher.count;
        loss += soft * t * t * (x_log_x(q) + x_log_x(1 - q) + softplus(u) - q * u);
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

  // Log-sum-exp of x / t.
  double log_sum_exp(const float* x, double t) const {
    const double top = *std::max_element(x, x + K_);
    double total = 0;
    for (int64_t k = 0; k < K_; ++k) total += std::exp((x[k] - top) / t);
    return top / t + std::log(total);
  }

  // Accumulates into the gradient in d.
  double soft_classes(const float* z, const TeacherRow& teacher, float* d) const {
    const double t = a_.temperature, soft = static_cast<double>(a_.soft_weight), lse = log_sum_exp(z, t);
    double lse_of[kMostTeachers], loss = 0;
    for (int i = 0; i < teacher.count; ++i) lse_of[i] = log_sum_exp(teacher[i], t);
    for (int64_t k = 0; k < K_; ++k) {
      const double log_p = z[k] / t - lse;
      double q = 0;
      for (int i = 0; i < teacher.count; ++i) q += std::exp(teacher[i][k] / t - lse_of[i]);
      q /= teacher.count;
      loss += x_log_x(q) - q * log_p;
      d[k] += static_cast<float>(scale() * soft * t * (std::exp(log_p) - q));
    }
    return soft * t * t * loss;
  }

  const cpu::RowKernels& kernels_;
  const CrossEntropyArgs& a_;
  int64_t K_;
};

void add_partials(const double* partial, int64_t rows, const tensor::TensorView& to) {
  double sum = 0;
  for (int64_t i = 0; i * kLossRows < rows; ++i) sum += partial[i];
  float* loss = to.as<float>();
  *loss = static_cast<float>(*loss + sum);
}

}  // namespace

void cross_entropy_cpu(device::Stream& stream, const CrossEntropyArgs& a) {
  const int64_t rows = a.logits.rows(), K = a.logits.cols();
  check_scratch("cross_entropy", a.scratch, cross_entropy_scratch_bytes(stream, rows, threads_of(stream)));
  auto* partial = static_cast<double*>(a.scratch.data);
  const RowLoss row_loss(cpu::row_kernels_of(stream), a);
  const int teachers = a.soft_weight != 0 ? a.teachers() : 0;
  parallel_pieces(stream, rows, kLossRows, [&](int64_t begin, int64_t end, int) {
    double sum = 0;
    for (int64_t r = begin; r < end; ++r) {
      const float* z = cpu::row_of<float>(a.logits, r);
      const TeacherRow teacher = {teachers > 0 ? cpu::row_of<float>(a.teacher, r) : nullptr, rows * a.teacher.ld(),
                                  teachers};
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
  add_partials(partial, rows, a.loss);
}

void squared_error_cpu(device::Stream& stream, const SquaredErrorArgs& a) {
  const int64_t rows = a.logits.rows(), K = a.logits.cols();
  check_scratch("squared_error", a.scratch, cross_entropy_scratch_bytes(stream, rows, threads_of(stream)));
  auto* partial = static_cast<double*>(a.scratch.data);
  parallel_pieces(stream, rows, kLossRows, [&](int64_t begin, int64_t end, int) {
    double sum = 0;
    for (int64_t r = begin; r < end; ++r) {
      const float *z = cpu::row_of<float>(a.logits, r), *target = cpu::row_of<float>(a.targets, r);
      float* d = cpu::row_of<float>(a.d_logits, r);
      for (int64_t k = 0; k < K; ++k) {
        const double off = static_cast<double>(z[k]) - static_cast<double>(target[k]);
        sum += off * off / static_cast<double>(K);
        d[k] = static_cast<float>(2 * static_cast<double>(a.scale) * off / static_cast<double>(K));
      }
    }
    partial[begin / kLossRows] = sum;
  });
  add_partials(partial, rows, a.loss);
}

}  // namespace brim::ops
