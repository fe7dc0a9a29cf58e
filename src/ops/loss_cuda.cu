// SPDX-License-Identifier: Apache-2.0
// cross_entropy on CUDA: one warp per row; the losses of kLossRows rows form one partial sum, and one block adds them
// in order.
#include "ops/cuda/elem.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

struct LossArgs {
  const float *logits, *class_weights, *teacher, *target_values;
  const int32_t* targets;
  double* partials;
  int64_t ld_logits, ld_targets, ld_teacher, ld_d;
  int rows, K, teachers;
  float scale, smoothing, hard, soft, temperature;
  bool multi_label;
};

__device__ __forceinline__ float softplus(float x) { return x > 0.0f ? x + log1pf(expf(-x)) : log1pf(expf(x)); }
__device__ __forceinline__ float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }
__device__ __forceinline__ float x_log_x(float x) { return x > 0.0f ? x * logf(x) : 0.0f; }

__device__ __forceinline__ float log_sum_exp(const float* z, float factor, int K, int lane) {
  float top = -INFINITY, sum = 0.0f;
  for (int k = lane; k < K; k += 32) top = fmaxf(top, z[k] * factor);
  top = warp_max(top);
  for (int k = lane; k < K; k += 32) sum += expf(z[k] * factor - top);
  return top + logf(warp_sum(sum));
}

template <class Elem>
__device__ float one_class(const LossArgs& a, const float* z, const float* teacher, int target, Elem* d, int lane) {
  const auto weight = [&](int k) { return a.class_weights == nullptr ? 1.0f : a.class_weights[k]; };
  if (target != kNoLabel && (target < 0 || target >= a.K)) {  // invalid: make the loss NaN instead of hiding it
    for (int k = lane; k < a.K; k += 32) d[k] = from_f32<Elem>(NAN);
    return NAN;
  }
  const bool labelled = target != kNoLabel;
  const float hard = labelled ? a.hard : 0.0f, smooth = a.smoothing / static_cast<float>(a.K),
              on_target = labelled ? (1.0f - a.smoothing) * weight(target) : 0.0f,
              lse = log_sum_exp(z, 1.0f, a.K, lane);
  float weights = 0.0f, smooth_loss = 0.0f, soft_loss = 0.0f;
  for (int k = lane; k < a.K; k += 32) {
    weights += weight(k);
    smooth_loss += weight(k) * (lse - z[k]);
  }
  weights = warp_sum(weights);
  smooth_loss = warp_sum(smooth_loss);
  const float all = on_target + smooth * weights, inverse_t = 1.0f / a.temperature;
  const int64_t next = static_cast<int64_t>(a.rows) * a.ld_teacher;  // stride between teachers
  const float lse_z = a.teachers == 0 ? 0.0f : log_sum_exp(z, inverse_t, a.K, lane);
  float lse_of[kMostTeachers];
#pragma unroll
  for (int i = 0; i < kMostTeachers; ++i)
    if (i < a.teachers) lse_of[i] = log_sum_exp(teacher + i * next, inverse_t, a.K, lane);
  for (int k = lane; k < a.K; k += 32) {
    float slope = hard * (all * expf(z[k] - lse) - (k == target ? on_target : 0.0f) - smooth * weight(k));
    if (a.teachers > 0) {
      const float log_p = z[k] * inverse_t - lse_z;
      float q = 0.0f;
#pragma unroll
      for (int i = 0; i < kMostTeachers; ++i)
        if (i < a.teachers) q += expf(teacher[i * next + k] * inverse_t - lse_of[i]);
      q /= static_cast<float>(a.teachers);
      soft_loss += x_log_x(q) - q * log_p;
      slope += a.soft * a.temperature * (expf(log_p) - q);
    }
    d[k] = from_f32<Elem>(a.scale * slope);
  }
  return (labelled ? hard * (on_target * (lse - z[target]) + smooth * smooth_loss) : 0.0f) +
         a.soft * a.temperature * a.temperature * warp_sum(soft_loss);
}

template <class Elem>
__device__ float many_labels(const LossArgs& a, const float* z, const float* teacher, const float* target, Elem* d,
                             int lane) {
  const float hard = a.hard / static_cast<float>(a.K), soft = a.soft / static_cast<float>(a.K), t = a.temperature;
  const int64_t next = static_cast<int64_t>(a.rows) * a.ld_teacher;
  float loss = 0.0f;
  for (int k = lane; k < a.K; k += 32) {
    const float x = z[k], weight = a.class_weights == nullptr ? 1.0f : a.class_weights[k];
    float slope = 0.0f;
    if (target[k] >= 0.0f) {
      loss += hard * weight * (softplus(x) - x * target[k]);
      slope = hard * weight * (sigmoid(x) - target[k]);
    }
    if (a.teachers > 0) {
      const float u = x / t;
      float q = 0.0f;
      for (int i = 0; i < a.teachers; ++i) q += sigmoid(teacher[i * next + k] / t);
      q /= static_cast<float>(a.teachers);
      loss += soft * t * t * (x_log_x(q) + x_log_x(1.0f - q) + softplus(u) - q * u);
      slope += soft * t * (sigmoid(u) - q);
    }
    d[k] = from_f32<Elem>(a.scale * slope);
  }
  return warp_sum(loss);
}

template <class Elem>
__global__ void __launch_bounds__(32 * kLossRows) cross_entropy_kernel(const LossArgs a, Elem* d_logits) {
  __shared__ double losses[kLossRows];
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kLossRows + warp;
  float loss = 0.0f;
  if (r < a.rows) {
    const float *z = a.logits + r * a.ld_logits,
                *teacher = a.teacher == nullptr ? nullptr : a.teacher + r * a.ld_teacher;
    Elem* d = d_logits + r * a.ld_d;
    if (a.multi_label) {
      loss = many_labels(a, z, teacher, a.target_values + r * a.ld_targets, d, lane);
    } else if (a.targets[r] == kIgnoredTarget) {
      for (int k = lane; k < a.K; k += 32) d[k] = from_f32<Elem>(0.0f);
    } else {
      loss = one_class(a, z, teacher, a.targets[r], d, lane);
    }
  }
  if (lane == 0) losses[warp] = static_cast<double>(loss);
  __syncthreads();
  if (threadIdx.x == 0) {
    double sum = 0;
    for (int i = 0; i < kLossRows; ++i) sum += losses[i];
    a.partials[blockIdx.x] = sum;
  }
}

// One thread per row and half a warp per block, because rows have few values.
template <class Elem>
__global__ void __launch_bounds__(32)
    squared_error_kernel(const float* logits, int64_t ld, const float* targets, int64_t ld_targets, int rows, int K,
                         float scale, double* partials, Elem* d_logits, int64_t ld_d) {
  __shared__ double losses[kLossRows];
  const bool takes = threadIdx.x < kLossRows;
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kLossRows + threadIdx.x;
  const float inverse = 1.0f / static_cast<float>(K);
  double loss = 0;
  if (takes && r < rows)
    for (int k = 0; k < K; ++k) {
      const float off = logits[r * ld + k] - targets[r * ld_targets + k];
      loss += static_cast<double>(off * off * inverse);
      d_logits[r * ld_d + k] = from_f32<Elem>(2.0f * scale * off * inverse);
    }
  if (takes) losses[threadIdx.x] = loss;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kLossRows; ++i) loss += losses[i];
    partials[blockIdx.x] = loss;
  }
}

__global__ void __launch_bounds__(256) add_losses_kernel(const double* partials, int count, float* loss) {
  __shared__ double shares[256];
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += 256) sum += partials[i];
  shares[threadIdx.x] = sum;
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < 256; ++i) sum += shares[i];
    *loss = static_cast<float>(static_cast<double>(*loss) + sum);
  }
}

}  // namespace

void cross_entropy_cuda(device::Stream& stream, const CrossEntropyArgs& a) {
  cuda_op(stream, "cross_entropy", [&](device::CudaStream& s) {
    const int64_t rows = a.logits.rows(), wanted = cross_entropy_scratch_bytes(stream, rows, 1);
    BRIM_CHECK(a.scratch && a.scratch.bytes() >= wanted, "cross_entropy: scratch has {} bytes, needs {}",
               a.scratch ? a.scratch.bytes() : 0, wanted);
    LossArgs args{};
    args.logits = a.logits.as<float>();
    args.class_weights = a.class_weights.as<float>();
    args.teachers = a.soft_weight != 0 ? a.teachers() : 0;
    args.teacher = args.teachers > 0 ? a.teacher.as<float>() : nullptr;
    if (a.multi_label)
      args.target_values = a.targets.as<float>();
    else
      args.targets = a.targets.as<int32_t>();
    args.partials = static_cast<double*>(a.scratch.data);
    args.ld_logits = a.logits.ld();
    args.ld_targets = a.targets.ld();
    args.ld_teacher = a.teacher.ld();
    args.ld_d = a.d_logits.ld();
    args.rows = static_cast<int>(rows);
    args.K = static_cast<int>(a.logits.cols());
    args.scale = a.scale;
    args.smoothing = a.label_smoothing;
    args.hard = a.hard_weight;
    args.soft = a.soft_weight;
    args.temperature = a.temperature;
    args.multi_label = a.multi_label;
    const unsigned blocks = device::blocks_for(rows, kLossRows);
    dispatch_elem(a.d_logits.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<cross_entropy_kernel<Elem>>(s, dim3(blocks), dim3(32 * kLossRows), args,
                                                 static_cast<Elem*>(a.d_logits.data));
    });
    launch<add_losses_kernel>(s, dim3(1), dim3(256), args.partials, static_cast<int>(blocks), a.loss.as<float>());
  });
}

void squared_error_cuda(device::Stream& stream, const SquaredErrorArgs& a) {
  cuda_op(stream, "squared_error", [&](device::CudaStream& s) {
    const int64_t rows = a.logits.rows(), wanted = cross_entropy_scratch_bytes(stream, rows, 1);
    BRIM_CHECK(a.scratch && a.scratch.bytes() >= wanted, "squared_error: scratch has {} bytes, needs {}",
               a.scratch ? a.scratch.bytes() : 0, wanted);
    auto* partials = static_cast<double*>(a.scratch.data);
    const unsigned blocks = device::blocks_for(rows, kLossRows);
    dispatch_elem(a.d_logits.dtype, [&](auto tag) {
      using Elem = typename decltype(tag)::type;
      device::launch<squared_error_kernel<Elem>>(s, dim3(blocks), dim3(32), a.logits.as<float>(), a.logits.ld(),
                                                 a.targets.as<float>(), a.targets.ld(), static_cast<int>(rows),
                                                 static_cast<int>(a.logits.cols()), a.scale, partials,
                                                 static_cast<Elem*>(a.d_logits.data), a.d_logits.ld());
    });
    launch<add_losses_kernel>(s, dim3(1), dim3(256), partials, static_cast<int>(blocks), a.loss.as<float>());
  });
}

}  // namespace brim::ops
