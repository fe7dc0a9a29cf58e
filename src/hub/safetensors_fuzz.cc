// SPDX-License-Identifier: Apache-2.0
// Fuzz entry: parses arbitrary bytes as a safetensors file. Accepted files must describe only existing bytes.
#include <cstdlib>

#include "base/error.h"
#include "hub/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> file(reinterpret_cast<const std::byte*>(data), size);
  try {
    for (const auto& [name, tensor] : brim::hub::parse_safetensors(file, "fuzz").tensors) {
      if (!tensor.dtype || tensor.elements == 0) continue;
      const size_t bytes = static_cast<size_t>(tensor.elements * brim::tensor::dtype_bytes(*tensor.dtype));
      const size_t offset = static_cast<size_t>(tensor.data - file.data());
      if (offset > size || bytes > size - offset) std::abort();
    }
  } catch (const brim::Error& error) {
    if (error.code() != brim::ErrorCode::bad_model) std::abort();
  }
  return 0;
}
