// SPDX-License-Identifier: Apache-2.0
#include "device/stream.h"

namespace brim {

void NullStream::copy(void* dst, const void* src, size_t bytes) {
  const auto n = static_cast<int64_t>(bytes);
  sink_->on_use(TensorView(dst, DType::u8, {n}));
  sink_->on_use(TensorView(const_cast<void*>(src), DType::u8, {n}));
}
void NullStream::fill_zero(void* dst, size_t bytes) {
  sink_->on_use(TensorView(dst, DType::u8, {static_cast<int64_t>(bytes)}));
}

}  // namespace brim
