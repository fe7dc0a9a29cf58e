// SPDX-License-Identifier: Apache-2.0
// Post-norm encoders: BERT and the families that differ from it in names, heads and embedding width. Does not cover
// pre-norm layers (see pre_norm.h).
#pragma once
#include "model/architecture.h"

namespace brim::model {

// Tensor names of a family, with BERT's as defaults. Names in layers follow PREFIX LAYER NUMBER; the number is that of
// the group if layers share parameters.
struct PostNormNames {
  std::string prefix;
  std::string word = "embeddings.word_embeddings.weight", position = "embeddings.position_embeddings.weight",
              type = "embeddings.token_type_embeddings.weight", norm = "embeddings.LayerNorm";
  std::string project;   // from the embedding width to the model's
  std::string relative;  // attention biases by distance bucket, one table for all layers
  std::string distances = "encoder.rel_embeddings.weight", distance_norm = "encoder.LayerNorm",
              distance_query = "attention.self.pos_query_proj", distance_key = "attention.self.pos_key_proj",
              convolution = "encoder.conv.conv", convolution_norm = "encoder.conv.LayerNorm";
  std::string layer = "encoder.layer.", q = "attention.self.query", k = "attention.self.key",
              v = "attention.self.value", out = "attention.output.dense", norm1 = "attention.output.LayerNorm",
              up = "intermediate.dense", down = "output.dense", norm2 = "output.LayerNorm";
  std::string dense, sequence = "classifier", token = "classifier";
};

struct PostNormOptions {
  ops::Activation head_activation = ops::Activation::tanh;
  bool head_dropout_first = false;
  bool always_project = false;  // even if the embeddings have the model's width
  bool feed_forward_dropout = true;
};

class PostNormEncoder : public Architecture {
 public:
  PostNormEncoder(const ModelShape& shape, const PostNormNames& names, const PostNormOptions& options);

  int64_t reader(int64_t l) const override { return layer_at(l).attention.qkv.w; }
  size_t kind(int64_t l) const override { return shape_.convolution > 0 && l > 0 ? 1 : 0; }
  void embed(const Pass& p, const Hidden& to, EmbeddingSaved* saved) const override;
  Hidden layer(const Pass& p, int64_t l, const Hidden& x, bool first_tokens, const Hidden& to,
               LayerTape* tape) const override;
  tensor::TensorView layer_backward(const Pass& p, int64_t l, bool first_tokens, const LayerTape& tape,
                                    const tensor::TensorView& d_y) const override;
  void embed_backward(const Pass& p, const EmbeddingSaved& saved, const tensor::TensorView& d_x) const override;

 private:
  struct LayerParams {
    AttentionParams attention;
    NormParams norm1;
    FeedForwardParams feed_forward;
    NormParams norm2;
  };
  const LayerParams& layer_at(int64_t l) const { return layers_[static_cast<size_t>(l)]; }
  ops::Dropout feed_forward_dropout(const Pass& p, int64_t l) const {
    return drops_feed_forward_ ? p.layer_dropout(l, DropoutSite::feed_forward_out) : ops::Dropout();
  }
  LayerParams list_layer(const PostNormNames& names, int64_t l, bool is_last, const InputBound& input);
  void list_distances(const PostNormNames& names);
  void list_groups(const PostNormNames& names);

  EmbeddingParams embedding_;
  int64_t relative_ = -1;
  DistanceParams distances_;  // without the layers' own matrices
  ConvolutionParams convolution_;
  std::vector<LayerParams> layers_;
  bool drops_feed_forward_ = true;
};

}  // namespace brim::model
