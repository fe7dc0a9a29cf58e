// SPDX-License-Identifier: Apache-2.0
#include <cmath>

#include "ops/cpu/convert_args.h"
#include "ops/cpu/parallel.h"
#include "ops/kernel_table.h"

namespace brim::ops {
namespace {

void turn(float* x, const float* cos, const float* sin, int64_t half) {
  for (int64_t j = 0; j < half; ++j) {
    const float a = x[j], b = x[half + j];
    x[j] = a * cos[j] - b * sin[j];
    x[half + j] = b * cos[j] + a * sin[j];
  }
}

}  // namespace

void rope_cpu(device::Stream& stream, const RopeArgs& a) {
  const int64_t D = a.head_size, half = D / 2, W = a.x.cols();
  const RopeFrequencies frequencies = rope_frequencies(a.theta, D);
  const int32_t* positions = a.positions.as<int32_t>();
  const cpu::RowKernels& kernels = cpu::row_kernels_of(stream);
  parallel_pieces(stream, a.x.rows(), rows_per_piece(W), [&](int64_t begin, int64_t end, int) {
    float cos[kRopeMaxHeadSize / 2], sin[kRopeMaxHeadSize / 2], head[kRopeMaxHeadSize];
    for (int64_t t = begin; t < end; ++t) {
      for (int64_t j = 0; j < half; ++j) {
        const float angle = static_cast<float>(positions[t]) * frequencies.of[j];
        cos[j] = std::cos(angle);
        sin[j] = a.back ? -std::sin(angle) : std::sin(angle);
      }
      if (a.x.dtype == tensor::DType::f32) {
        for (int64_t i = 0; i < W; i += D) turn(cpu::row_of<float>(a.x, t) + i, cos, sin, half);
        continue;
      }
      for (int64_t i = 0; i < W; i += D) {
        auto* x = static_cast<uint16_t*>(a.x.data) + t * a.x.ld() + i;
        kernels.widen(x, cpu::Elem::bf16, head, D);
        turn(head, cos, sin, half);
        kernels.narrow(head, x, cpu::Elem::bf16, D);
      }
    }
  });
}

}  // namespace brim::ops
