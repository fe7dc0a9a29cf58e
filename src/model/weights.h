// SPDX-License-Identifier: Apache-2.0
// A model's weights on a device: one slab, filled once at load time from a Hugging Face directory; the files are not
// read afterwards. The layout is a pure function of shape, precision, device and table types, so plans know its size
// without loading anything.
#pragma once
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "device/device.h"
#include "hub/model_files.h"
#include "memory/ledger.h"
#include "model/adapter_weights.h"
#include "model/params.h"
#include "model/shape.h"

namespace brim::model {

// Activation type of a precision on a device.
tensor::DType activation_type(ops::Precision precision, device::DeviceKind target);
// Precision of the small head matrices: int8 and fp8 models keep their heads in the wider type.
ops::Precision head_precision(ops::Precision precision, device::DeviceKind target);

// Types of the embedding tables, one per table of model_params(). Empty: the compute type, f16 on a CPU. A CPU keeps
// f32, f16 and bf16 tables in their stored type, and f64 ones as f32.
using TableTypes = std::vector<tensor::DType>;
TableTypes table_types(const hub::WeightSource& source, const ModelShape& shape, device::DeviceKind target);
TableTypes table_types(const ModelShape& shape, device::DeviceKind target);  // for weights stored in f32

struct WeightLayout {
  Params params;  // views relative to `base`
  int64_t bytes = 0;
};
WeightLayout layout_weights(const ModelShape& shape, ops::Precision precision, device::DeviceKind target,
                            device::Isa isa, const TableTypes& tables, void* base);

// Shapes for planning: views with fake addresses and the right sizes.
Params describe_weights(const ModelShape& shape, ops::Precision precision, device::DeviceKind target, device::Isa isa);

// Memory for loading on a CPU in addition to the slab: one matrix per thread, as f32.
int64_t load_bytes(const ModelShape& shape, int threads);

class Model {
 public:
  // Reads config.json and the weights; the slab is allocated on `device`, which must outlive the model.
  static std::unique_ptr<Model> load(const hub::ModelFiles& files, device::Device& device, ops::Precision precision,
                                     memory::PlannedMemory* planned = nullptr);
  using OnProgress = std::function<void(const Model& coming, const std::function<bool()>& is_filled)>;
  // Loads the head of `tagger`, which must have the same encoder (same_encoder), as a second head; empty: none. Except
  // on a CPU, `meanwhile` is called once the addresses of the weights are known; their bytes are read and copied by
  // other threads in the meantime, possibly for longer. `is_filled` waits briefly and returns whether they are
  // complete.
  static std::unique_ptr<Model> load_both(const hub::ModelFiles& files, const std::filesystem::path& tagger,
                                          device::Device& device, ops::Precision precision,
                                          memory::PlannedMemory* planned, const OnProgress& while_loading = {},
                                          bool encoder_only = false);
  // A model that uses the parameters of `encoder` (loaded with `encoder_only` from files.dir), except for the head and
  // the products of an adapter; only these are loaded. `ranks`: adapter_ranks() of the files.
  static std::unique_ptr<Model> load_adapter(std::shared_ptr<const Model> encoder, const hub::ModelFiles& files,
                                             const ModelShape& shape, const AdapterRanks& ranks, device::Device& device,
                                             memory::PlannedMemory* planned = nullptr);

  const ModelShape& shape() const { return shape_; }
  const hub::HfConfig& config() const { return config_; }
  const std::vector<std::string>& labels() const { return config_.id2label; }
  const Params& weights() const { return layout_.params; }
  ops::Precision precision() const { return precision_; }
  tensor::DType activation() const { return activation_type(precision_, device_kind_); }
  // Moves the slab to host memory and frees it on the device, or moves it back, to new addresses.
  void park(device::Device& device);
  void unpark(device::Device& device, memory::PlannedMemory* planned = nullptr);
  int64_t slab_bytes() const { return layout_.bytes; }
  const std::filesystem::path& dir() const { return dir_; }

 private:
  Model() = default;
  std::filesystem::path dir_;
  hub::HfConfig config_;
  ModelShape shape_;
  ops::Precision precision_ = ops::Precision::fp32;
  device::DeviceKind device_kind_ = device::DeviceKind::cpu;
  TableTypes table_types_;
  std::shared_ptr<const Model> encoder_;  // only for an adapter
  device::DeviceBuffer slab_;
  device::DeviceBuffer parked_;  // host memory
  WeightLayout layout_;
};

// Shape of a model, including its head, without reading the weights.
ModelShape read_shape(const hub::ModelFiles& files, hub::HfConfig* config = nullptr);

// Whether a classifier and a tagger are heads on one encoder, as trained by `task=multi`: same shape, identical encoder
// tensors and identical tokenizer files. A pass of both_heads() then serves both.
bool same_encoder(const std::filesystem::path& classifier, const std::filesystem::path& tagger);
// Checks names, shapes and types of all parameters without reading them; `with_head`: the head must be complete.
// Throws the errors of Model::load.
void check_params(const hub::WeightSource& source, const ModelShape& shape, bool with_head);
// The embedding table must have a row for every id of the tokenizer.
void check_vocabulary(const std::filesystem::path& dir, const ModelShape& shape, int64_t tokenizer_ids);
ModelShape both_heads(const ModelShape& classifier, const ModelShape& tagger);

// Reads a parameter, stacked over its names and converted to f32 (int8 directories are dequantised), for training and
// export; `out` has spec.elements(). Returns false if a head parameter is missing.
bool read_param(const hub::WeightSource& source, const ModelShape& shape, const ParamSpec& spec, float* out);

}  // namespace brim::model
