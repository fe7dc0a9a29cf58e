// SPDX-License-Identifier: Apache-2.0
// Pre-norm encoders with rotary positions and gated feed-forward: ModernBERT. Sums are passed from layer to layer; the
// first layer reads the normed embeddings directly, and the last one ends with a norm. Does not cover post-norm layers.
#pragma once
#include "model/architecture.h"

namespace brim::model {

class PreNormEncoder : public Architecture {
 public:
  explicit PreNormEncoder(const ModelShape& shape);

  // Other layers read a norm of their input, which writes the required formats.
  int64_t reader(int64_t l) const override { return l == 0 ? layer_at(0).attention.qkv.w : -1; }
  size_t kind(int64_t l) const override { return l == 0 ? 0 : 1; }
  void embed(const Pass& p, const Hidden& to, EmbeddingSaved* saved) const override;
  Hidden layer(const Pass& p, int64_t l, const Hidden& x, bool first_tokens, const Hidden& to,
               LayerTape* tape) const override;
  tensor::TensorView layer_backward(const Pass& p, int64_t l, bool first_tokens, const LayerTape& tape,
                                    const tensor::TensorView& d_y) const override;
  void embed_backward(const Pass& p, const EmbeddingSaved& saved, const tensor::TensorView& d_x) const override;

 private:
  struct LayerParams {
    NormParams norm1;  // -1 in the first layer
    AttentionParams attention;
    NormParams norm2;
    FeedForwardParams feed_forward;
  };
  const LayerParams& layer_at(int64_t l) const { return layers_[static_cast<size_t>(l)]; }
  LayerParams list_layer(int64_t l, NormParams before);
  HeadDense list_dense(const std::string& name, bool there);

  EmbeddingParams embedding_;
  std::vector<LayerParams> layers_;
  NormParams last_norm_;
};

}  // namespace brim::model
