// SPDX-License-Identifier: Apache-2.0
// lane_linear: the products of several lanes (ops/lane.h) at once, y[g] = act(x[g] w[g]ᵀ + bias[g]), and their
// gradients. A lane stride of 0 shares an operand. A lane's result does not depend on the lanes beside it: same bits
// alone and among sixteen. Weights are plain [N,K]; they change every step, so the CPU packs them as it goes.
#pragma once
#include "ops/linear.h"

namespace brim::ops {

// What is worth keeping of values between products. CUDA: the precision's type. CPU: f32, but bf16 where a kernel packs
// bf16 in its own instructions. It would round the values anyway, so results are the same bits and half the bytes.
tensor::DType lane_value_type(const device::Stream& stream, Precision precision);

struct LaneLinearArgs {
  TensorView x;        // [G,B,K] like w, or of lane_value_type
  TensorView w;        // [G,N,K] f32 on the CPU; CUDA: the precision's type
  TensorView bias;     // [G,N] f32 on the CPU; CUDA: like y; may be empty
  TensorView y;        // [G,B,N] f32, or of lane_value_type
  TensorView scratch;  // u8[lane_linear_scratch_bytes]
  Precision precision = Precision::fp32;
  bool relu = false;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, w, bias, y, scratch}) f(v);
  }
};
void lane_linear(device::Stream& stream, const LaneLinearArgs& args);
Work lane_linear_work(const LaneLinearArgs& args);
int64_t lane_linear_scratch_bytes(const device::Stream& stream, int64_t G, int64_t B, int64_t N, int64_t K,
                                  Precision precision, int threads);

// d_y is the gradient of x wᵀ + bias: what a ReLU lets through is decided where the gradient was made. Any of d_x, d_w,
// d_bias and d_x_sums may be empty (not wanted).
struct LaneLinearGradArgs {
  TensorView x;         // [G,B,K] like w, or of lane_value_type
  TensorView w;         // [G,N,K] f32 on the CPU; CUDA: the precision's type
  TensorView d_y;       // [G,B,N] as x may be; on the CPU f32 where d_bias is wanted
  TensorView d_x;       // [G,B,K] like x where gated, else f32 (CUDA: or like x)
  TensorView d_w;       // [G,N,K] f32
  TensorView d_bias;    // [G,N] f32: sums of d_y
  TensorView d_x_sums;  // [G,K] f32: sums of d_x after the gate, the bias gradient of the layer that made x
  TensorView scratch;   // u8[lane_linear_grad_scratch_bytes]
  Precision precision = Precision::fp32;
  bool x_is_relu = false;  // d_x is 0 where x is 0: x came out of a ReLU
  GradWrite d_x_write = GradWrite::overwrite;
  GradWrite write = GradWrite::overwrite;  // d_w and d_bias: accumulate where blocks share weights
  GradWrite d_x_sums_write = GradWrite::overwrite;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, w, d_y, d_x, d_w, d_bias, d_x_sums, scratch}) f(v);
  }
};
void lane_linear_grad(device::Stream& stream, const LaneLinearGradArgs& args);
Work lane_linear_grad_work(const LaneLinearGradArgs& args);
int64_t lane_linear_grad_scratch_bytes(const device::Stream& stream, int64_t G, int64_t B, int64_t N, int64_t K,
                                       Precision precision, int threads);

}  // namespace brim::ops
