// SPDX-License-Identifier: Apache-2.0
// lane_linear: batched products of several lanes (ops/lane.h), y[g] = act(x[g] w[g]ᵀ + bias[g]), and their gradients. A
// lane stride of 0 shares an operand. A lane's result does not depend on the other lanes: same bits alone and among
// sixteen. Weights are unpacked [N,K]; they change every step, so the CPU packs them in each call.
#pragma once
#include "ops/linear.h"

namespace brim::ops {

// Type for storing values between products. CUDA: the type of the precision. CPU: f32, or bf16 if the kernel packs bf16
// natively. Such a kernel would round the values anyway, so the result has the same bits with half the memory.
tensor::DType lane_value_type(const device::Stream& stream, Precision precision);

struct LaneLinearArgs {
  TensorView x;        // [G,B,K], type of w or lane_value_type
  TensorView w;        // [G,N,K] f32 on the CPU; CUDA: type of the precision
  TensorView bias;     // [G,N] f32 on the CPU; CUDA: type of y; may be empty
  TensorView y;        // [G,B,N] f32 or lane_value_type
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

// d_y is the gradient of x wᵀ + bias, with the ReLU gate already applied. Each of d_x, d_w, d_bias and d_x_sums may be
// empty.
struct LaneLinearGradArgs {
  TensorView x;         // [G,B,K], type of w or lane_value_type
  TensorView w;         // [G,N,K] f32 on the CPU; CUDA: type of the precision
  TensorView d_y;       // [G,B,N], same types as x; f32 on the CPU if d_bias is given
  TensorView d_x;       // [G,B,K], type of x if gated, else f32 (CUDA: or type of x)
  TensorView d_w;       // [G,N,K] f32
  TensorView d_bias;    // [G,N] f32: sums of d_y
  TensorView d_x_sums;  // [G,K] f32: sums of d_x after the gate, the bias gradient of the layer that produced x
  TensorView scratch;   // u8[lane_linear_grad_scratch_bytes]
  Precision precision = Precision::fp32;
  bool x_is_relu = false;  // x is the output of a ReLU: d_x is 0 where x is 0
  GradWrite d_x_write = GradWrite::overwrite;
  GradWrite write = GradWrite::overwrite;  // for d_w and d_bias: accumulate if blocks share weights
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
