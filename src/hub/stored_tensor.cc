// SPDX-License-Identifier: Apache-2.0
#include "hub/stored_tensor.h"

#include <fmt/ranges.h>

namespace brim::hub {

std::optional<int64_t> count_elements(std::span<const int64_t> shape) {
  int64_t n = 1;
  bool empty = false;
  for (const int64_t d : shape) {
    if (d < 0) return std::nullopt;
    empty |= d == 0;
    // Zero dimensions do not make an overflowing shape valid: the product of the others must fit too.
    if (d > 0 && __builtin_mul_overflow(n, d, &n)) return std::nullopt;
  }
  return empty ? 0 : n;
}

std::string shape_text(std::span<const int64_t> shape) { return fmt::format("[{}]", fmt::join(shape, ",")); }

std::string foreign_file_hint(std::span<const std::byte> file) {
  const std::string_view text(reinterpret_cast<const char*>(file.data()), std::min<size_t>(file.size(), 64));
  if (text.starts_with("version https://git-lfs"))
    return "; it is a Git LFS pointer: run `git lfs pull` or download the file";
  if (text.starts_with("<!DOCTYPE") || text.starts_with("<html") || text.starts_with("<!doctype"))
    return "; it is a web page, not weights: download it again";
  if (text.starts_with("PK\x03\x04")) return "; it is a zip archive, possibly a renamed pytorch_model.bin";
  if (text.starts_with("GGUF")) return "; it is a GGUF file (llama.cpp), which is not supported";
  if (text.starts_with("\x89HDF")) return "; it is an HDF5 file (TensorFlow weights), which is not supported";
  return "";
}

}  // namespace brim::hub
