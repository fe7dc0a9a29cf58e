// SPDX-License-Identifier: Apache-2.0
// linear: y = activation(x Wᵀ + bias) [+ residual]. Weights are packed once per device (`linear_pack`), because the CPU
// kernels need tiles specific to their instruction set. Backward: two more GEMMs, `linear_grad`.
#pragma once
#include "ops/op.h"

namespace brim::ops {

using tensor::TensorView;

// Arithmetic of a model's matrix products.
enum class Precision : uint8_t { fp32, tf32, bf16, fp16, fp8, int8 };
const char* precision_name(Precision precision);
std::optional<Precision> precision_from_name(std::string_view name);

// A weight matrix [N,K] (row n holds the weights of output n, as in PyTorch), prepared for one device and precision.
struct LinearWeight {
  int64_t N = 0, K = 0;
  Precision precision = Precision::fp32;
  TensorView data;   // CUDA: [N,K] f32/f16/bf16/f8e4m3/i8. CPU: u8[packed bytes], laid out for `isa`.
  TensorView scale;  // int8: [N] f32 per output. fp8: [1] f32. Else empty.
  device::Isa isa = device::Isa::generic;
  TensorView total;  // int8 on the CPU: [N] f32, sum of the weights; rows of x are then packed around their centres
};

// Purpose of an fp8 product. Gradients accumulate in fp32, whereas the forward pass uses the faster 14-bit
// accumulation of the tensor cores; sums of weight gradients run over tokens (K is their number).
enum class LinearRole : uint8_t { forward, input_gradient, weight_gradient };

struct LinearArgs {
  // [T,K], rows may be strided. CPU: f32, or bf16 (except in fp32). CUDA: activation type (or f8e4m3, i8).
  TensorView x;
  LinearWeight w;
  TensorView bias;      // [N] f32 on the CPU, activation type on CUDA; may be empty
  TensorView residual;  // [T,N] f32 on the CPU, like y on CUDA; may be empty; may alias y of the same type
  TensorView y;         // [T,N], rows may be strided. CPU: f32 or bf16. CUDA: activation type (or f8e4m3 with y_scale).
  TensorView scratch;   // u8[linear_scratch_bytes]
  TensorView x_scale;   // fp8: [1] f32 on the device, dequantises x; int8: [T] or [int8_blocks(K),T] f32; else empty
  TensorView y_scale;   // fp8 output: [1] f32, quantises y; int8 output: [int8_blocks(N),T] f32, written; else empty
  Activation activation = Activation::none;
  LinearRole role = LinearRole::forward;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, w.data, w.scale, w.total, bias, residual, y, scratch, x_scale, y_scale}) f(v);
  }
};

void linear(device::Stream& stream, const LinearArgs& args);
Work linear_work(const LinearArgs& args);
// Scratch for one call with up to T rows on this device. On the CPU it covers the stream's own threads
// (`threads` = pool size, 1 for a worker).
constexpr int64_t kCudaLinearScratchBytes = 32 << 20;  // enough for cuBLASLt to choose from all its algorithms
int64_t linear_scratch_bytes(const device::Stream& stream, int64_t T, int64_t N, int64_t K, Precision precision,
                             int threads);

// Packing for the CPU. `source` is [N,K] in f32, f16, bf16 on the host, or i8 with per-row scales.
int64_t linear_packed_bytes(int64_t N, int64_t K, Precision precision, device::Isa isa);
// Writes to `packed` (linear_packed_bytes) and, for int8, `scale` [N] f32 and, unless null, `total` [N] f32.
// `source_scale` [N] f32 only for an i8 source.
void linear_pack(const TensorView& source, const TensorView& source_scale, Precision precision, device::Isa isa,
                 void* packed, float* scale, float* total = nullptr);

// Gradients of y = x Wᵀ + b, with unpacked weights w_plain [N,K]. Each of d_x, d_w, d_bias may be empty.
struct LinearGradArgs {
  TensorView x;        // [T,K]
  TensorView w_plain;  // [N,K]
  TensorView d_y;      // [T,N]
  TensorView d_x;      // [T,K]
  TensorView d_w;      // [N,K] f32
  TensorView d_bias;   // [N] f32
  TensorView scratch;  // u8[linear_grad_scratch_bytes]
  Precision precision = Precision::fp32;
  GradWrite d_x_write = GradWrite::overwrite, d_w_write = GradWrite::accumulate;

  template <class F>
  void views(F&& f) const {
    for (const TensorView& v : {x, w_plain, d_y, d_x, d_w, d_bias, scratch}) f(v);
  }
};
void linear_grad(device::Stream& stream, const LinearGradArgs& args);
Work linear_grad_work(const LinearGradArgs& args);
int64_t linear_grad_scratch_bytes(const device::Stream& stream, int64_t T, int64_t N, int64_t K, Precision precision,
                                  int threads);

}  // namespace brim::ops
