// SPDX-License-Identifier: Apache-2.0
// linear on the CPU: the kernel of the weights' own instruction set, through gemm/multiply.h.
#include <atomic>

#include "ops/check.h"
#include "ops/cpu/parallel.h"
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

}  // namespace

const char* linear_kernel_name(device::Isa isa, Precision precision) { return gemm::kernel_for(isa, precision).name; }
const char* linear_last_kernel() { return last_kernel.load(std::memory_order_relaxed); }

int64_t linear_scratch_bytes(const device::Stream& stream, int64_t T, int64_t, int64_t K, Precision precision,
                             int threads) {
  if (target_kind(stream) == device::DeviceKind::cuda) return kCudaLinearScratchBytes;
  return gemm::multiply_scratch_bytes(gemm::kernel_for(target_isa(stream), precision), T, K, threads);
}

void linear_cpu(device::Stream& stream, const LinearArgs& args) {
  const gemm::Kernel& kernel = gemm::kernel_for(args.w.isa, args.w.precision);
  check_scratch("linear", args.scratch,
                gemm::multiply_scratch_bytes(kernel, args.x.rows(), args.w.K, threads_of(stream)));
  last_kernel.store(kernel.name, std::memory_order_relaxed);
  gemm::multiply(stream, kernel,
                 {
                     .x = args.x,
                     .b = args.w.data.data,
                     .b_scale = args.w.precision == Precision::int8 ? args.w.scale.as<float>() : nullptr,
                     .bias = args.bias,
                     .residual = args.residual,
                     .y = args.y,
                     .act = act_of(args.activation, args.w.precision),
                     .scratch = args.scratch.data,
                 });
}

}  // namespace brim::ops
