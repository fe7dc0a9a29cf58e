// SPDX-License-Identifier: Apache-2.0
// The one door to a model's weights, whatever files hold them: model.safetensors, pytorch_model.bin, or either in
// shards behind an index. Tensors are views into the mapped files; only what cannot be viewed as it lies (misaligned,
// strided) is copied, when first asked for.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "base/mapped_file.h"
#include "hub/safetensors.h"
#include "hub/stored_tensor.h"
#include "tensor/tensor_view.h"

namespace brim::hub {

class WeightSource {
 public:
  // Looks in `dir` for safetensors first, then for torch files. Errors are Error(bad_model).
  static std::unique_ptr<WeightSource> open(const std::filesystem::path& dir);
  static std::unique_ptr<WeightSource> open_file(const std::filesystem::path& file);  // .safetensors or .bin
  ~WeightSource();

  // The tensor, valid as long as this object and never to be written; null if there is none of that name. A layer
  // norm's old names (gamma, beta) answer to weight and bias. A scalar has shape [1]. Threads may call it at once.
  const tensor::TensorView* find(std::string_view name) const;
  const tensor::TensorView& get(std::string_view name) const;  // absent: Error naming the file and the nearest name
  bool has(std::string_view name) const { return entry(name) != nullptr; }
  // Its bytes were read and are not needed soon: memory that holds them is given back.
  void release(std::string_view name) const;
  // Type and shape without touching the tensor's bytes; null if absent.
  const StoredTensor* describe(std::string_view name) const;

  const std::vector<std::string>& names() const { return names_; }  // sorted
  const Metadata& metadata() const { return metadata_; }            // safetensors' __metadata__
  std::string where(std::string_view name) const;                   // "DIR/model.safetensors: tensor 'x'"
  std::string where() const { return where_; }                      // the weight file or its index
  std::vector<std::filesystem::path> files() const;
  int64_t mapped_bytes() const;
  int64_t parameter_count() const;  // elements of all tensors

 private:
  struct Entry {
    StoredTensor stored;
    size_t file = 0;
    tensor::TensorView view;  // made on first use
    bool ready = false;
  };

  WeightSource() = default;
  TensorTable load(const std::filesystem::path& path);  // adds one file, merges its metadata
  void add_all(TensorTable table);
  void open_index(const std::filesystem::path& index);
  void finish(const std::filesystem::path& path);
  const Entry* entry(std::string_view name) const;
  void make_view(std::string_view name, Entry& entry) const;

  std::string where_;
  std::vector<MappedFile> files_;
  std::map<std::string, Entry, std::less<>> entries_;
  std::vector<std::string> names_;
  Metadata metadata_;
  mutable std::mutex mutex_;  // guards the making of views
  mutable std::vector<std::unique_ptr<std::byte[]>> copies_;
};

}  // namespace brim::hub
