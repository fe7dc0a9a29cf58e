// SPDX-License-Identifier: Apache-2.0
// linear on the CPU: runs the kernel for the instruction set of the weights, through gemm/multiply.h.
#include <array>
#include <atomic>

#include "ops/check.h"
#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/fp8_code.h"
#include "ops/gemm/kernels.h"
#include "ops/gemm/multiply.h"
#include "ops/kernel_table.h"
#include "ops/linear_testing.h"

namespace brim::ops {
namespace {

std::atomic<const char*> last_kernel{""};

gemm::Act act_of(Activation activation, Precision precision) {
  switch (activation) {
    case Activation::none:
      return gemm::Act::none;
    case Activation::gelu:
      return precision == Precision::fp32 ? gemm::Act::gelu : gemm::Act::gelu_fast;
    case Activation::relu:
      return gemm::Act::relu;
    case Activation::tanh:
      return gemm::Act::tanh;
    case Activation::gelu_tanh:
      return gemm::Act::gelu_tanh;
    case Activation::quick_gelu:
      return gemm::Act::quick_gelu;
    case Activation::silu:
      return gemm::Act::silu;
  }
  return gemm::Act::none;
}

// Reference for comparison with GPU results; there is no fp8 training on CPUs.
void multiply_fp8(const LinearArgs& a) {
  std::array<float, 256> value;
  for (size_t code = 0; code < value.size(); ++code)
    value[code] = static_cast<float>(from_e4m3(static_cast<uint8_t>(code)));
  const float scale = *a.w.scale.as<float>() * *a.x_scale.as<float>();
  for (int64_t t = 0; t < a.x.rows(); ++t) {
    const uint8_t* x = static_cast<const uint8_t*>(a.x.data) + t * a.x.ld();
    for (int64_t n = 0; n < a.w.N; ++n) {
      const uint8_t* w = static_cast<const uint8_t*>(a.w.data.data) + n * a.w.data.ld();
      double sum = 0;
      for (int64_t k = 0; k < a.w.K; ++k) sum += static_cast<double>(value[x[k]]) * value[w[k]];
      sum *= scale;
      if (a.bias) sum += a.bias.as<float>()[n];
      if (a.residual) sum += cpu::row_of<float>(a.residual, t)[n];
      cpu::row_of<float>(a.y, t)[n] = static_cast<float>(sum);
    }
  }
}

}  // namespace

const char* linear_kernel_name(device::Isa isa, Precision precision) { return gemm::kernel_for(isa, precision).name; }
const char* linear_last_kernel() { return last_kernel.load(std::memory_order_relaxed); }

int64_t linear_scratch_bytes(const device::Stream& stream, int64_t T, int64_t, int64_t K, Precision precision,
                             int threads) {
  if (target_kind(stream) == device::DeviceKind::cuda) return kCudaLinearScratchBytes;
  if (precision == Precision::fp8) return 0;
  return gemm::multiply_scratch_bytes(gemm::kernel_for(target_isa(stream), precision), T, K, threads);
}

void linear_cpu(device::Stream& stream, const LinearArgs& args) {
  if (args.w.precision == Precision::fp8) {
    multiply_fp8(args);
    return;
  }
  const gemm::Kernel& kernel = gemm::kernel_for(args.w.isa, args.w.precision);
  check_scratch("linear", args.scratch,
                gemm::multiply_scratch_bytes(kernel, args.x.rows(), args.w.K, threads_of(stream)));
  last_kernel.store(kernel.name, std::memory_order_relaxed);
  gemm::multiply(stream, kernel,
                 {
                     .x = args.x,
                     .b = args.w.data.data,
                     .b_scale = args.w.precision == Precision::int8 ? args.w.scale.as<float>() : nullptr,
                     .b_total = args.w.total.as<float>(),
                     .bias = args.bias,
                     .residual = args.residual,
                     .y = args.y,
                     .act = act_of(args.activation, args.w.precision),
                     .scratch = args.scratch.data,
                 });
}

}  // namespace brim::ops
