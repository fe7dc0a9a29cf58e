// SPDX-License-Identifier: Apache-2.0
#include "ops/kernel_table.h"

namespace brim::ops {

void relative_bias_cpu(device::Stream&, const RelativeBiasArgs& a) {
  const auto fill = [&](const auto* table) {
    for (int64_t i = 0; i < kRelativeWidth; ++i) {
      const auto* row = table + relative_bucket(i - kRelativeReach) * a.table.ld();
      for (int64_t head = 0; head < a.table.cols(); ++head) {
        float& to = a.bias.as<float>()[head * a.bias.ld() + i];
        if constexpr (std::is_same_v<decltype(row), const float*>)
          to = row[head];
        else
          to = tensor::to_float(row[head]);
      }
    }
  };
  if (a.table.dtype == tensor::DType::f32)
    fill(a.table.as<float>());
  else if (a.table.dtype == tensor::DType::f16)
    fill(a.table.as<tensor::f16_t>());
  else
    fill(a.table.as<tensor::bf16_t>());
}

void relative_bias_grad_cpu(device::Stream&, const RelativeBiasGradArgs& a) {
  for (int64_t head = 0; head < a.d_table.cols(); ++head) {
    double sum[kRelativeBuckets] = {};
    for (int64_t i = 0; i < kRelativeWidth; ++i)
      sum[relative_bucket(i - kRelativeReach)] += static_cast<double>(a.d_bias.as<float>()[head * a.d_bias.ld() + i]);
    for (int64_t bucket = 0; bucket < kRelativeBuckets; ++bucket) {
      float& to = a.d_table.as<float>()[bucket * a.d_table.ld() + head];
      to = static_cast<float>(static_cast<double>(to) + sum[bucket]);
    }
  }
}

}  // namespace brim::ops
