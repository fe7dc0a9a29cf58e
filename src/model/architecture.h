// SPDX-License-Identifier: Apache-2.0
// Interface of a model family: a list of parameters and the parts of a pass. Runners order the parts (whole batches,
// chunk by chunk, segment by segment under recomputation). Planner, trainer and export do not depend on a family.
#pragma once
#include <memory>

#include "hub/config_keys.h"
#include "model/blocks/attention.h"
#include "model/blocks/convolution.h"
#include "model/blocks/embeddings.h"
#include "model/blocks/feed_forward.h"
#include "model/blocks/heads.h"
#include "model/blocks/norm.h"
#include "model/param_list.h"
#include "model/training_pass.h"

namespace brim::model {

// Tensors that a layer's backward pass reads.
struct LayerTape {
  bool keep_cheap = true;  // also keep values that are cheap to recompute
  tensor::TensorView x;    // [T,H] the layer's input
  AttentionSaved attention;
  FeedForwardSaved feed_forward;
  NormSaved norm1, norm2;
  // Pre-norm: inputs of attention and feed-forward; empty: recomputed.
  tensor::TensorView normed, attended;
  NormSaved last_norm;           // pre-norm: the final norm, last layer only
  ConvolutionSaved convolution;  // first layer only
};

class Architecture {
 public:
  virtual ~Architecture() = default;
  const ModelShape& shape() const { return shape_; }
  const std::vector<ParamSpec>& params() const { return list_.specs(); }
  // Lowest layer with a gradient: -1 includes the embeddings, the number of layers means the head only.
  int64_t lowest_trained() const { return lowest_trained_; }
  void apply_freeze();  // marks the parameters that shape().freeze names
  void apply_lora();    // adds the matrices of shape().lora and freezes everything but them and the heads

  // Index of the matrix that reads layer l's input, which determines the formats of that input; -1: none.
  virtual int64_t reader(int64_t l) const = 0;
  // Layers of the same kind make the same allocations in the same order; the last layer is always a separate kind.
  virtual size_t kind(int64_t) const { return 0; }
  // Scale of the narrow copy that layer l needs of its input; empty: no copy.
  int64_t reader_of(int64_t l) const { return l < shape_.layers ? reader(l) : -1; }
  Fp8Scale wanted_by(const Params& params, int64_t l) const {
    const int64_t place = reader_of(l);
    return place >= 0 ? params[static_cast<size_t>(place)].input : Fp8Scale();
  }

  // Each writes to `to`; training passes a tape.
  virtual void embed(const Pass& p, const Hidden& to, EmbeddingSaved* saved) const = 0;
  // Empty views in `to` are allocated. With first_tokens, the result is [B,H].
  virtual Hidden layer(const Pass& p, int64_t l, const Hidden& x, bool first_tokens, const Hidden& to,
                       LayerTape* tape) const = 0;
  tensor::TensorView finish(const Pass& p, const tensor::TensorView& x, bool first_tokens, Output output) const {
    return model::finish(p, heads_, x, first_tokens, output);
  }

  // Backward: accumulates parameter gradients and returns the gradient of the input.
  tensor::TensorView finish_training(const Pass& p, const tensor::TensorView& x, bool first_tokens,
                                     const LossSettings& loss, const TrainTargets& targets, TrainResult& result) const {
    return model::finish_training(p, heads_, x, first_tokens, loss, targets, result);
  }
  virtual tensor::TensorView layer_backward(const Pass& p, int64_t l, bool first_tokens, const LayerTape& tape,
                                            const tensor::TensorView& d_y) const = 0;
  virtual void embed_backward(const Pass& p, const EmbeddingSaved& saved, const tensor::TensorView& d_x) const = 0;

 protected:
  explicit Architecture(const ModelShape& shape) : shape_(shape) {}
  ModelShape shape_;
  ParamList list_;
  HeadParams heads_;

 private:
  void adapt(int64_t index);
  int64_t lowest_trained_ = -1;
};

// Each family's file (model/families/NAME.cc) defines NAME_family(); hub/families.inc lists them.
struct FamilyEntry {
  std::unique_ptr<Architecture> (*make)(const ModelShape& shape);
  void (*read)(const hub::ConfigKeys& keys, ModelShape& shape) = nullptr;  // keys that only this family has
};
#define BRIM_FAMILY(name) FamilyEntry name##_family();
#include "hub/families.inc"

const FamilyEntry& family_entry(hub::Family family);
std::unique_ptr<Architecture> make_architecture(const ModelShape& shape);

}  // namespace brim::model
