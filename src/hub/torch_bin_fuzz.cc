// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: parses arbitrary bytes as a torch.save file. Every element of an accepted tensor must lie inside the
// file.
#include <cstdlib>

#include "base/error.h"
#include "hub/torch_bin.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    for (const auto& [name, tensor] : brim::hub::parse_torch_bin(file, "fuzz")) {
      if (!tensor.dtype || tensor.elements == 0) continue;
      int64_t last = tensor.elements - 1;
      if (!tensor.stride.empty()) {
        last = 0;
        for (size_t d = 0; d < tensor.shape.size(); ++d) last += (tensor.shape[d] - 1) * tensor.stride[d];
      }
      const auto offset = static_cast<size_t>(tensor.data - file.data());
      const auto bytes = static_cast<size_t>((last + 1) * brim::tensor::dtype_bytes(*tensor.dtype));
      if (offset > size || bytes > size - offset) std::abort();
    }
  } catch (const brim::Error& error) {
    if (error.code() != brim::ErrorCode::bad_model) std::abort();
  }
  return 0;
}
