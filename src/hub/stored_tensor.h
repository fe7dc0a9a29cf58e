// SPDX-License-Identifier: Apache-2.0
// A tensor as described by a weight file: type, shape, strides and the location of its bytes. The parsers of
// safetensors and torch files both fill a TensorTable; WeightSource turns entries into TensorViews. Owns no bytes.
#pragma once
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "tensor/dtype.h"

namespace brim::hub {

struct StoredTensor {
  std::optional<tensor::DType> dtype;  // empty for types without compute support, such as BOOL
  std::string dtype_text;              // as written in the file
  std::vector<int64_t> shape;          // empty for a scalar
  std::vector<int64_t> stride;         // in elements; empty if contiguous
  int64_t elements = 0;
  const std::byte* data = nullptr;  // the first element
};

using TensorTable = std::map<std::string, StoredTensor, std::less<>>;

// Product of the dimensions; nullopt if one is negative or the product overflows.
std::optional<int64_t> count_elements(std::span<const int64_t> shape);
std::string shape_text(std::span<const int64_t> shape);  // "[128,768]"

// Describes a file that is not a weight file (a Git LFS pointer, a web page …); empty if unknown.
std::string foreign_file_hint(std::span<const std::byte> file);

}  // namespace brim::hub
