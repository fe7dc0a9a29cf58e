// SPDX-License-Identifier: Apache-2.0
// Reads and writes the safetensors format: eight bytes of header length, a JSON header, the tensors' bytes back to
// back. The reader works on mapped, untrusted bytes: lengths, types, shapes and offsets are checked against each other
// and against the file, as in the reference implementation. The writer streams and produces the same bytes as the
// reference.
#pragma once
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "hub/stored_tensor.h"
#include "io/atomic_file.h"
#include "tensor/tensor_view.h"

namespace brim::hub {

using Metadata = std::map<std::string, std::string>;

struct SafetensorsContents {
  TensorTable tensors;  // point into the input bytes
  Metadata metadata;    // the header's __metadata__
};

// `where` names the file in errors, which are Error(bad_model).
SafetensorsContents parse_safetensors(std::span<const std::byte> file, const std::string& where);

struct SafetensorsSpec {
  std::string name;
  tensor::DType dtype;
  std::vector<int64_t> shape;
};

// Declares all tensors first, then takes their bytes in order(), in pieces of any size. The final file does not exist
// before commit(), and a failed write leaves nothing behind.
class SafetensorsWriter {
 public:
  SafetensorsWriter(const std::filesystem::path& path, std::vector<SafetensorsSpec> specs,
                    const Metadata& metadata = {{"format", "pt"}});

  const std::vector<SafetensorsSpec>& order() const { return specs_; }  // wide types first, then by name
  void append(std::string_view name, const void* data, size_t bytes);   // `name` must be the next tensor in order()
  void commit();

 private:
  void skip_complete();

  io::AtomicFile file_;
  std::vector<SafetensorsSpec> specs_;
  size_t current_ = 0;
  size_t written_ = 0;  // bytes of the current tensor
};

// Writes all tensors at once; the views must be contiguous.
void write_safetensors(const std::filesystem::path& path, const std::map<std::string, tensor::TensorView>& tensors,
                       const Metadata& metadata = {{"format", "pt"}});

}  // namespace brim::hub
