// SPDX-License-Identifier: Apache-2.0
// AdamW on CUDA: one pass over each slab with the same operations as on the CPU, so both give the same bits for the
// same gradients. grad_norm sums the squares of kNormElements per block, then the block sums in order.
#include "ops/adam8_code.h"
#include "ops/cuda/elem.cuh"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

// Strides of the lanes, and the table of step constants.
struct Lanes {
  int64_t n, master, grad, m, v, copy, scale;  // strides between lanes, in elements
  const float* rows;                           // [count,lanes,kAdamWRowFloats]
  const int64_t* step;                         // null for row 0
  int64_t count;
  bool decayed;
};
__device__ __forceinline__ AdamWRow due_row(const Lanes& l, int lane) {
  const int64_t row = l.step == nullptr ? 0 : *l.step % l.count;
  const float* c = l.rows + (row * gridDim.y + lane) * kAdamWRowFloats;
  AdamWRow r;
  r.beta1 = c[0];
  r.beta2 = c[1];
  r.eps = c[2];
  r.step_size = c[3];
  r.correction = c[4];
  r.keep = l.decayed ? c[5] : 1.0f;
  return r;
}

__device__ __forceinline__ float adam_update(const AdamWRow& c, float weight, float gradient, float& m, float& v) {
  m = fmaf(m, c.beta1, __fmul_rn(1.0f - c.beta1, gradient));
  v = fmaf(v, c.beta2, __fmul_rn(1.0f - c.beta2, __fmul_rn(gradient, gradient)));
  return fmaf(-c.step_size, m / fmaf(sqrtf(v), c.correction, c.eps), __fmul_rn(weight, c.keep));
}
// A non-finite factor means that gradients overflowed: the step is skipped.
__device__ __forceinline__ bool read_factor(const float* factor, int lane, float& value) {
  value = factor == nullptr ? 1.0f : factor[lane];
  return fabsf(value) < INFINITY;
}

// Copy is the type of the compute copy; float if there is none.
template <class Copy>
__global__ void __launch_bounds__(256) adamw_kernel(float* master, const float* grad, float* m, float* v, Copy* copy,
                                                    const float* grad_factor, Lanes lanes) {
  const int lane = static_cast<int>(blockIdx.y);
  float factor;
  if (!read_factor(grad_factor, lane, factor)) return;
  const AdamWRow c = due_row(lanes, lane);
  const int64_t n = lanes.n;
  master += lane * lanes.master;
  grad += lane * lanes.grad;
  m += lane * lanes.m;
  v += lane * lanes.v;
  if constexpr (!std::is_same_v<Copy, float>) copy += lane * lanes.copy;
  const int64_t i = (static_cast<int64_t>(blockIdx.x) * 256 + threadIdx.x) * 4;
  if (i >= n) return;
  if (i + 4 <= n) {
    float4 w = *reinterpret_cast<float4*>(master + i), mm = *reinterpret_cast<float4*>(m + i),
           vv = *reinterpret_cast<float4*>(v + i);
    const float4 g = *reinterpret_cast<const float4*>(grad + i);
    w.x = adam_update(c, w.x, __fmul_rn(g.x, factor), mm.x, vv.x);
    w.y = adam_update(c, w.y, __fmul_rn(g.y, factor), mm.y, vv.y);
    w.z = adam_update(c, w.z, __fmul_rn(g.z, factor), mm.z, vv.z);
    w.w = adam_update(c, w.w, __fmul_rn(g.w, factor), mm.w, vv.w);
    *reinterpret_cast<float4*>(master + i) = w;
    *reinterpret_cast<float4*>(m + i) = mm;
    *reinterpret_cast<float4*>(v + i) = vv;
    if constexpr (!std::is_same_v<Copy, float>)
      *reinterpret_cast<uint2*>(copy + i) = make_uint2(pack2<Copy>(w.x, w.y), pack2<Copy>(w.z, w.w));
  } else {
    for (int64_t k = i; k < n; ++k) {
      const float w = adam_update(c, master[k], __fmul_rn(grad[k], factor), m[k], v[k]);
      master[k] = w;
      if constexpr (!std::is_same_v<Copy, float>) copy[k] = from_f32<Copy>(w);
    }
  }
}

// One thread block per block of moments, one thread per element.
template <class Copy>
__global__ void __launch_bounds__(kAdamBlock)
    adamw8_kernel(float* master, const float* grad, uint8_t* m8, uint8_t* v8, float* m_scale, float* v_scale,
                  Copy* copy, const float* grad_factor, Lanes lanes) {
  __shared__ float tops[2][kAdamBlock / 32];
  const int lane = static_cast<int>(blockIdx.y);
  float factor;
  if (!read_factor(grad_factor, lane, factor)) return;
  const AdamWRow c = due_row(lanes, lane);
  const int64_t n = lanes.n;
  master += lane * lanes.master;
  grad += lane * lanes.grad;
  m8 += lane * lanes.m;
  v8 += lane * lanes.v;
  m_scale += lane * lanes.scale;
  v_scale += lane * lanes.scale;
  if constexpr (!std::is_same_v<Copy, float>) copy += lane * lanes.copy;
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kAdamBlock + threadIdx.x;
  const bool valid = i < n;
  float m = 0.0f, root = 0.0f;
  if (valid) {
    m = __fmul_rn(adam8_decode_m(m8[i]), m_scale[blockIdx.x]);
    root = __fmul_rn(adam8_decode_root(v8[i]), v_scale[blockIdx.x]);
    float v = __fmul_rn(root, root);
    const float w = adam_update(c, master[i], __fmul_rn(grad[i], factor), m, v);
    root = sqrtf(v);
    master[i] = w;
    if constexpr (!std::is_same_v<Copy, float>) copy[i] = from_f32<Copy>(w);
  }
  const float m_top = warp_max(fabsf(m)), root_top = warp_max(root);
  if (threadIdx.x % 32 == 0) {
    tops[0][threadIdx.x / 32] = m_top;
    tops[1][threadIdx.x / 32] = root_top;
  }
  __syncthreads();
  float m_most = tops[0][0], root_most = tops[1][0];
#pragma unroll
  for (int k = 1; k < kAdamBlock / 32; ++k)
    m_most = fmaxf(m_most, tops[0][k]), root_most = fmaxf(root_most, tops[1][k]);
  const float new_m_scale = adam8_m_scale(m_most), new_v_scale = adam8_root_scale(root_most);
  if (valid) {
    m8[i] = adam8_encode_m(__fmul_rn(m, new_m_scale > 0.0f ? 1.0f / new_m_scale : 0.0f));
    v8[i] = adam8_encode_root(__fmul_rn(root, new_v_scale > 0.0f ? 1.0f / new_v_scale : 0.0f));
  }
  if (threadIdx.x == 0) {
    m_scale[blockIdx.x] = new_m_scale;
    v_scale[blockIdx.x] = new_v_scale;
  }
}

__device__ __forceinline__ double block_sum(double x, double (&shares)[256]) {
  shares[threadIdx.x] = x;
  __syncthreads();
  for (int half = 128; half > 0; half /= 2) {
    if (static_cast<int>(threadIdx.x) < half) shares[threadIdx.x] += shares[threadIdx.x + half];
    __syncthreads();
  }
  return shares[0];
}

__global__ void __launch_bounds__(256)
    sum_squares_kernel(const float* grad, int64_t n, int64_t lane_stride, double* partials) {
  __shared__ double shares[256];
  grad += blockIdx.y * lane_stride;
  const int64_t begin = static_cast<int64_t>(blockIdx.x) * kNormElements, end = min(n, begin + kNormElements);
  float sum[4] = {0.0f, 0.0f, 0.0f, 0.0f};  // at most 64 squares each
  for (int64_t i = begin + threadIdx.x; i < end; i += 1024) {
#pragma unroll
    for (int j = 0; j < 4; ++j)
      if (i + 256 * j < end) sum[j] = fmaf(grad[i + 256 * j], grad[i + 256 * j], sum[j]);
  }
  const double total = block_sum(static_cast<double>(sum[0]) + static_cast<double>(sum[1]) +
                                     static_cast<double>(sum[2]) + static_cast<double>(sum[3]),
                                 shares);
  if (threadIdx.x == 0) partials[static_cast<int64_t>(blockIdx.y) * gridDim.x + blockIdx.x] = total;
}
__global__ void __launch_bounds__(256)
    finish_norm_kernel(const double* partials, int count, float grad_scale, float max_norm, float* norm,
                       const int64_t* step, int64_t rows, float* factor) {
  __shared__ double shares[256];
  partials += static_cast<int64_t>(blockIdx.x) * count;
  double sum = 0;
  for (int i = threadIdx.x; i < count; i += 256) sum += partials[i];
  sum = block_sum(sum, shares);
  if (threadIdx.x != 0) return;
  const double size = sqrt(sum) * fabs(static_cast<double>(grad_scale));
  const double shrink = max_norm > 0.0f ? fmin(1.0, static_cast<double>(max_norm) / (size + 1e-6)) : 1.0;
  if (step != nullptr) norm += *step % rows * gridDim.x;
  norm[blockIdx.x] = static_cast<float>(size);
  factor[blockIdx.x] = size < INFINITY ? static_cast<float>(static_cast<double>(grad_scale) * shrink) : NAN;
}

__global__ void __launch_bounds__(128) set_step_kernel(float* rows, int64_t count, AdamWRow row) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * 128 + threadIdx.x;
  if (i >= count) return;
  rows += i * kAdamWRowFloats;
  rows[0] = row.beta1;
  rows[1] = row.beta2;
  rows[2] = row.eps;
  rows[3] = row.step_size;
  rows[4] = row.correction;
  rows[5] = row.keep;
  rows[6] = rows[7] = 0.0f;
}
__global__ void __launch_bounds__(32) advance_step_kernel(int64_t* step) {
  if (threadIdx.x == 0) ++*step;
}

}  // namespace

void adamw_cuda(device::Stream& stream, const AdamWArgs& a) {
  cuda_op(stream, "adamw", [&](device::CudaStream& s) {
    const LaneSlab slab = lane_slab(a.master);
    const int64_t n = slab.n;
    const auto stride = [](const tensor::TensorView& v) { return lane_slab(v).stride; };
    const Lanes lanes{n,
                      slab.stride,
                      stride(a.grad),
                      stride(a.m),
                      stride(a.v),
                      stride(a.copy),
                      stride(a.m_scale),
                      a.table.rows.as<float>(),
                      a.table.step.as<int64_t>(),
                      a.table.rows.rows(),
                      a.decayed};
    float* master = a.master.as<float>();
    const float *grad = a.grad.as<float>(), *factor = a.grad_factor.as<float>();
    const bool bytes = a.m.dtype == tensor::DType::u8;
    for (const tensor::TensorView& v : {a.master, a.grad, a.m, a.v, a.copy})
      BRIM_CHECK(bytes || (reinterpret_cast<uintptr_t>(v.data) % 16 == 0 && stride(v) % 4 == 0),
                 "adamw: {} must be 16-byte aligned, and so must its lanes", v.shape_text());
    const auto grid = [&](int64_t each) {
      return dim3(device::blocks_for(n, each), static_cast<unsigned>(slab.lanes));
    };
    const auto run = [&](auto tag) {
      using Copy = typename decltype(tag)::type;
      auto* copy = static_cast<Copy*>(a.copy.data);
      if (bytes)
        device::launch<adamw8_kernel<Copy>>(s, grid(kAdamBlock), dim3(kAdamBlock), master, grad, a.m.as<uint8_t>(),
                                            a.v.as<uint8_t>(), a.m_scale.as<float>(), a.v_scale.as<float>(), copy,
                                            factor, lanes);
      else
        device::launch<adamw_kernel<Copy>>(s, grid(1024), dim3(256), master, grad, a.m.as<float>(), a.v.as<float>(),
                                           copy, factor, lanes);
    };
    if (a.copy)
      dispatch_elem(a.copy.dtype, run);
    else
      run(ElemTag<float>{});
  });
}

void set_step_cuda(device::Stream& stream, const SetStepArgs& a) {
  cuda_op(stream, "set_step", [&](device::CudaStream& s) {
    const int64_t count = a.rows.elements() / kAdamWRowFloats;
    launch<set_step_kernel>(s, dim3(device::blocks_for(count, 128)), dim3(128), a.rows.as<float>(), count, a.row);
  });
}

void advance_step_cuda(device::Stream& stream, const AdvanceStepArgs& a) {
  cuda_op(stream, "advance_step",
          [&](device::CudaStream& s) { launch<advance_step_kernel>(s, dim3(1), dim3(32), a.step.as<int64_t>()); });
}

void grad_norm_cuda(device::Stream& stream, const GradNormArgs& a) {
  cuda_op(stream, "grad_norm", [&](device::CudaStream& s) {
    const LaneSlab slab = lane_slab(a.grad);
    const int64_t n = slab.n, wanted = grad_norm_scratch_bytes(n, slab.lanes);
    BRIM_CHECK(n == 0 || (a.scratch && a.scratch.bytes() >= wanted), "grad_norm: scratch has {} bytes, needs {}",
               a.scratch ? a.scratch.bytes() : 0, wanted);
    auto* partials = static_cast<double*>(a.scratch.data);
    const unsigned blocks = device::blocks_for(n, kNormElements), lanes = static_cast<unsigned>(slab.lanes);
    launch<sum_squares_kernel>(s, dim3(blocks, lanes), dim3(256), a.grad.as<float>(), n, slab.stride, partials);
    launch<finish_norm_kernel>(s, dim3(lanes), dim3(256), partials, static_cast<int>(blocks), a.grad_scale, a.max_norm,
                               a.norm.as<float>(), a.step.as<int64_t>(), a.norm.rows(), a.factor.as<float>());
  });
}

}  // namespace brim::ops
