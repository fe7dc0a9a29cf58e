// SPDX-License-Identifier: Apache-2.0
// Reads a model's weights from model.safetensors, pytorch_model.bin, or shards of either with an index. Files stay
// open, and tensors are read on request with pread(2) into the caller's memory; this class holds none of their bytes.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "hub/safetensors.h"
#include "hub/stored_tensor.h"
#include "tensor/tensor_view.h"

namespace brim::hub {

class Adapter;

// A whole tensor that owns its memory, contiguous and aligned. A scalar has shape [1].
struct LoadedTensor : tensor::TensorView {
  std::unique_ptr<std::byte[]> storage;
};

// Thread-safe for concurrent reads.
class WeightSource {
 public:
  // Looks in `dir` for safetensors first, then for torch files. Throws Error(bad_model).
  static std::unique_ptr<WeightSource> open(const std::filesystem::path& dir);
  static std::unique_ptr<WeightSource> open_file(const std::filesystem::path& file);  // .safetensors or .bin
  ~WeightSource();
  // From now on, tensors have the values of the model with this adapter; changed ones are f32. `adapter` must have been
  // opened for this source.
  void adapt(std::unique_ptr<const Adapter> adapter);
  const Adapter* adapter() const { return adapter_.get(); }  // null if there is none

  // The legacy layer norm names (gamma, beta) are accepted as weight and bias in all of these. A prefix of all names
  // that a wrapper added (module., _orig_mod., model.) is removed.
  bool has(std::string_view name) const { return entry(name) != nullptr; }
  // Type and shape; null if absent.
  const StoredTensor* describe(std::string_view name) const;
  // The same for a tensor that read() supports. Throws if it is absent (suggesting the nearest name) or has an
  // unsupported type or rank.
  const StoredTensor& require(std::string_view name) const;
  // Reads elements [begin, end) in row-major order, in the stored type.
  void read(std::string_view name, int64_t begin, int64_t end, void* out) const;
  LoadedTensor get(std::string_view name) const;                  // throws the same errors as require()
  std::optional<LoadedTensor> find(std::string_view name) const;  // empty if absent

  // Throws if a file was modified or replaced since it was opened: the data read may be inconsistent. Call after the
  // last read().
  void check_unchanged() const;

  const std::vector<std::string>& names() const { return names_; }  // sorted
  const Metadata& metadata() const { return metadata_; }            // safetensors' __metadata__
  std::string where(std::string_view name) const;                   // "DIR/model.safetensors: tensor 'x'"
  std::string where() const { return where_; }                      // the weight file or its index
  std::vector<std::filesystem::path> files() const;
  int64_t file_bytes() const;       // size of all files
  int64_t parameter_count() const;  // elements of all tensors

 private:
  struct Entry {
    StoredTensor stored;
    size_t file = 0;
    // If changed by the adapter: the tensor in this model's files, without a type if it is not read.
    std::optional<StoredTensor> original = {};
  };

  WeightSource() = default;
  TensorTable load(const std::filesystem::path& path);  // adds one file, merges its metadata
  void add_all(TensorTable table);
  void open_index(const std::filesystem::path& index);
  void finish(const std::filesystem::path& path);
  void strip_wrapper_prefixes();
  const Entry* entry(std::string_view name) const;
  void read_stored(const StoredTensor& stored, size_t file, int64_t begin, int64_t end, void* out) const;
  void read_adapted(std::string_view name, const Entry& entry, int64_t begin, int64_t end, float* out) const;

  std::unique_ptr<const Adapter> adapter_;
  std::string where_;
  std::vector<MappedFile> files_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<std::string> names_;
  Metadata metadata_;
};

}  // namespace brim::hub
