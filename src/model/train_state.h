// SPDX-License-Identifier: Apache-2.0
// Training state except activations: slabs of master weights, gradients, optimizer moments and (on CUDA) the weights in
// the compute type. All share one layout, so the optimizer sees three long vectors: matrices, embeddings, and
// parameters without weight decay (biases and norms). Frozen parameters follow them and only have compute weights.
#pragma once
#include <array>
#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "base/mapped_file.h"
#include "device/device.h"
#include "device/event.h"
#include "hub/weights.h"
#include "memory/ledger.h"
#include "model/architecture.h"
#include "ops/adamw.h"

namespace brim::model {

enum class Optimizer : uint8_t { adamw, adamw_8bit };
const char* optimizer_name(Optimizer optimizer);

// Location of AdamW's moments. On the host (page-locked), they are streamed through the device in windows during the
// step: the same results with 1/16 GB of device memory instead of eight bytes per parameter, at the cost of the
// transfers.
enum class Moments : uint8_t { device, host };

struct SlabLayout {
  enum Range { matrices, embeddings, undecayed, ranges };
  std::vector<ParamSpec> params;
  std::vector<int64_t> offset;              // in elements, one per parameter
  std::array<int64_t, ranges + 1> begin{};  // start of each range; begin[ranges]: end of the trained parameters
  int64_t all = 0;                          // with the frozen parameters
  int64_t elements() const { return all; }
  int64_t trained() const { return begin[ranges]; }
};
SlabLayout slab_layout(const ModelShape& shape);

// Bytes by tag: master, gradients, optimizer, weights (the compute copy or the packed matrices), workspace (norms and
// class weights). In fp8, weights include the bf16 copy and both orientations of every matrix in e4m3, and the
// workspace includes the scales and their history.
memory::TagBytes train_state_bytes(const ModelShape& shape, ops::Precision precision, Optimizer optimizer,
                                   Moments moments, device::DeviceKind target, device::Isa isa);

// Params with fake addresses, for planning.
Params describe_train_params(const ModelShape& shape, ops::Precision precision, device::DeviceKind target,
                             device::Isa isa);

struct StepSettings {
  float lr = 0, beta1 = 0.9f, beta2 = 0.999f, eps = 1e-8f, weight_decay = 0, max_grad_norm = 1;
  float grad_scale = 1;  // 1 / loss scale
  int64_t step = 1;
};

// Scales of fp8 training: for matrices, then for activations and gradients. n matrices have 2n sites.
struct Fp8Table {
  tensor::TensorView w_amax, w_scale;       // [n] f32, current matrices
  tensor::TensorView amax, scale, history;  // [2n] f32, [2n,kFp8History] f32; gradients in the second half
  tensor::TensorView w_inverse, inverse;    // [n,1] and [2n,1] f32, rows kFp8ScaleBytes apart
  tensor::TensorView places;                // u8: matrix descriptors for fp8_cast_matrices
  int64_t bytes = 0;
};
// Passes until the scales of a new run have settled: one for activations, two more for gradients.
inline constexpr int kFp8CalibrationPasses = 3;

class TrainState {
 public:
  TrainState(device::Device& device, const ModelShape& shape, ops::Precision precision, Optimizer optimizer,
             Moments moments = Moments::device, memory::PlannedMemory* planned = nullptr);
  ~TrainState();

  // Uploads all parameters, in slab order, elements() values.
  void upload(device::Stream& stream, const std::vector<float>& master);
  // Parameters that LoRA freezes are zero if the device only has them in the compute type.
  std::vector<float> download(device::Stream& stream) const;
  // Same values readable by the host: the state itself on the CPU, else downloaded to `copy`. Valid until the next
  // step.
  std::span<const float> on_host(device::Stream& stream, std::vector<float>& copy) const;
  // Optimizer moments as raw bytes, for checkpoints.
  std::vector<std::span<const std::byte>> moments_on_host(device::Stream& stream, std::vector<std::byte>& copy) const;
  void upload_moments(device::Stream& stream, const MappedFile& bytes);
  size_t all_moment_bytes() const { return m_.size() + v_.size() + moment_scales_.size() + fp8_history_.size(); }

  const SlabLayout& layout() const { return layout_; }
  const Architecture& architecture() const { return *architecture_; }
  const Params& params() const { return params_; }
  Optimizer optimizer() const { return optimizer_; }

  void set_class_weights(device::Stream& stream, const std::vector<float>& weights);  // one per class
  const tensor::TensorView& class_weights() const { return class_weights_; }          // [K] f32; empty: none

  // Gradient norm, clipping, AdamW, update of the compute weights, zeroed gradients. `norm` [1] f32 and `factor` [1]
  // f32 stay on the device until read.
  void step(device::Stream& stream, const StepSettings& settings, int threads);
  void zero_grad(device::Stream& stream);
  const tensor::TensorView& norm() const { return norm_; }

  // fp8 training: computes scales for a step whose gradients are multiples of `unit` (the reciprocal of its samples)
  // from the maxima of earlier passes. step() ends it. No-op in other precisions.
  void begin_step(device::Stream& stream, float unit);
  // Records the maxima of the passes since begin_step() when no step follows: a run begins with such calibration passes
  // until the scales have settled (kFp8CalibrationPasses), and discards their gradients.
  void end_calibration(device::Stream& stream);
  bool needs_calibration() const { return !fp8_params_.empty() && !has_history_; }

 private:
  // Compute weights from the master weights, and on a CPU from the frozen ones if `frozen`.
  void refresh(device::Stream& stream, bool frozen = false);
  void refresh_fp8(device::Stream& stream);  // their e4m3 copies
  void remember_fp8(device::Stream& stream);
  void list_fp8_matrices(device::Stream& stream);
  using Bytes = std::span<std::byte>;
  tensor::TensorView slab(Bytes bytes, tensor::DType dtype, int64_t begin, int64_t end) const;
  void step_through_windows(device::Stream& stream, const ops::AdamWArgs& part, int64_t begin);

  // Three windows of both moments: one being loaded, one being updated, one being stored.
  struct Window {
    tensor::TensorView m, v;
    std::unique_ptr<device::Event> loaded, stepped, stored;
  };
  device::Device& device_;
  ModelShape shape_;
  ops::Precision precision_;
  Optimizer optimizer_;
  std::unique_ptr<Architecture> architecture_;
  SlabLayout layout_;
  device::DeviceBuffer block_;  // all device memory of the state
  std::vector<float> frozen_;   // exact values of frozen parameters, if the device only has them in the compute type
  Bytes master_, grad_, copy_, packed_, m_, v_, moment_scales_, fp8_history_;
  tensor::TensorView norm_, factor_, constants_, norm_scratch_, class_weights_;
  void* class_weights_at_ = nullptr;
  Params params_;
  // fp8 training:
  std::vector<size_t> fp8_params_;  // indices of the matrices
  Fp8Table fp8_;
  int64_t fp8_tiles_ = 0, fp8_elements_ = 0;
  float fp8_unit_ = 1;
  bool has_history_ = false;
  // With moments on the host:
  device::DeviceBuffer m_on_host_, v_on_host_;
  std::vector<Window> windows_;
  size_t next_window_ = 0;
  std::unique_ptr<device::Stream> load_stream_, store_stream_;
};

// Reads every parameter of `source` into slab order; a missing head is initialized from N(0, initializer_range) with
// `seed`. With `new_classes`, the class matrices are always reinitialized; the pooler or dense layer before them does
// not depend on the classes and is kept. Returns the names of initialized tensors.
std::vector<std::string> load_master(const hub::WeightSource& source, const ModelShape& shape, float initializer_range,
                                     uint64_t seed, std::vector<float>& master, bool new_classes = false);

}  // namespace brim::model
