// SPDX-License-Identifier: Apache-2.0
// A tensor as a weight file describes it: type, shape, strides and the place of its bytes. The parsers of safetensors
// and torch files both fill a TensorTable; WeightSource turns entries into TensorViews. Owns no bytes.
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
  std::optional<tensor::DType> dtype;  // none: a type Brim does not compute with, such as BOOL
  std::string dtype_text;              // as the file writes it
  std::vector<int64_t> shape;          // empty: a scalar
  std::vector<int64_t> stride;         // in elements; empty: contiguous
  int64_t elements = 0;
  const std::byte* data = nullptr;  // the first element
};

using TensorTable = std::map<std::string, StoredTensor, std::less<>>;

// Product of the dimensions; nothing if one is negative or the product does not fit.
std::optional<int64_t> count_elements(std::span<const int64_t> shape);
std::string shape_text(std::span<const int64_t> shape);  // "[128,768]"

// Says what a file that is no weight file seems to be (a Git LFS pointer, a web page …), or nothing.
std::string foreign_file_hint(std::span<const std::byte> file);

}  // namespace brim::hub
