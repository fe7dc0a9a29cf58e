// SPDX-License-Identifier: Apache-2.0
#include "device/stream.h"

namespace brim::device {

void NullStream::copy(void* dst, const void* src, size_t bytes) {
  const auto n = static_cast<int64_t>(bytes);
  sink_->on_use(tensor::TensorView(dst, tensor::DType::u8, {n}));
  sink_->on_use(tensor::TensorView(const_cast<void*>(src), tensor::DType::u8, {n}));
}
void NullStream::fill_zero(void* dst, size_t bytes) {
  sink_->on_use(tensor::TensorView(dst, tensor::DType::u8, {static_cast<int64_t>(bytes)}));
}

}  // namespace brim::device
