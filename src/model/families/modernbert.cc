// SPDX-License-Identifier: Apache-2.0
// ModernBERT: pre-norm layers with rotary positions, two in three with a local attention window; dense, activation,
// norm, out on the first token or on the mean of all tokens.
#include <nlohmann/json.hpp>

#include "io/quote_text.h"
#include "model/blocks/pre_norm.h"

namespace brim::model {
namespace {

using nlohmann::json;

// RoPE base from the block of this kind of layer if present, else from the older key.
float read_theta(const hub::ConfigKeys& keys, const char* kind, const char* older, float fallback) {
  const json* all = keys.get("rope_parameters");
  if (all != nullptr && !all->is_object()) keys.refuse("rope_parameters", *all, "must be an object");
  const json* block = all != nullptr && all->contains(kind) && !(*all)[kind].is_null() ? &(*all)[kind] : nullptr;
  if (block == nullptr) return keys.number(older, fallback, 1, 1e12);
  if (!block->is_object()) keys.refuse("rope_parameters", *block, "must have one object per layer type");
  const hub::ConfigKeys inner(*block, "rope_parameters of " + std::string(kind));
  if (const std::string type = inner.text("rope_type", "default"); type != "default")
    keys.contradiction("\"rope_type\" of {} is {}: only default is supported", kind, io::quote_text(type));
  return inner.get("rope_theta") != nullptr ? inner.number("rope_theta", fallback, 1, 1e12)
                                            : keys.number(older, fallback, 1, 1e12);
}

uint64_t read_local_layers(const hub::ConfigKeys& keys, int64_t layers) {
  if (layers > 64) keys.contradiction("\"num_hidden_layers\" is {}: at most 64 are supported", layers);
  uint64_t local = 0;
  const json* types = keys.get("layer_types");
  if (types == nullptr) {
    const int every = keys.integer("global_attn_every_n_layers", 3, 1);
    for (int64_t l = 0; l < layers; ++l) local |= static_cast<uint64_t>(l % every != 0) << l;
    return local;
  }
  if (!types->is_array()) keys.refuse("layer_types", *types, "must be a list");
  if (static_cast<int64_t>(types->size()) < layers)
    keys.contradiction("\"layer_types\" has {} entries but \"num_hidden_layers\" is {}: they must be equal",
                       types->size(), layers);
  for (int64_t l = 0; l < layers; ++l) {
    const json& type = (*types)[static_cast<size_t>(l)];
    if (type != "full_attention" && type != "sliding_attention")
      keys.refuse("layer_types", type, "only full_attention and sliding_attention are supported");
    local |= static_cast<uint64_t>(type == "sliding_attention") << l;
  }
  return local;
}

void read_modernbert(const hub::ConfigKeys& keys, ModelShape& shape) {
  shape.gated = true;
  shape.attention_bias = keys.flag("attention_bias");
  shape.feed_forward_bias = keys.flag("mlp_bias");
  shape.norm_bias = keys.flag("norm_bias");
  shape.head_bias = keys.flag("classifier_bias");
  shape.feed_forward_dropout = keys.number("mlp_dropout", 0, 0, 1);
  shape.head_activation = activation_of(keys.activation("classifier_activation", "gelu"));
  const std::string pooling = keys.text("classifier_pooling", "cls");
  if (pooling != "cls" && pooling != "mean")
    keys.contradiction("\"classifier_pooling\" is {}: it must be cls or mean", io::quote_text(pooling));
  shape.mean_pooling = pooling == "mean";
  for (const char* key : {"is_causal", "causal_mask"})
    if (keys.flag(key)) keys.contradiction("\"{}\" is true: only encoders are supported", key);
  if (const json* scaling = keys.get("rope_scaling"))
    keys.refuse("rope_scaling", *scaling, "RoPE scaling is not supported");
  if (const int size = keys.integer("head_dim", static_cast<int>(shape.head_size()), 1); size != shape.head_size())
    keys.contradiction("\"head_dim\" is {} but \"hidden_size\" over \"num_attention_heads\" is {}: they must be equal",
                       size, shape.head_size());
  if (shape.head_size() % 2 != 0 || shape.head_size() > 128)
    keys.contradiction(
        "\"hidden_size\" {} over \"num_attention_heads\" {} gives heads of {}: they must be even and at "
        "most 128",
        shape.hidden, shape.heads, shape.head_size());
  shape.rope_theta = read_theta(keys, "full_attention", "global_rope_theta", 160000);
  // Null in older files: local layers use the global base.
  shape.local_rope_theta = read_theta(keys, "sliding_attention", "local_rope_theta",
                                      keys.has("local_rope_theta") ? shape.rope_theta : 10000);
  shape.local_layers = read_local_layers(keys, shape.layers);
  // The window counts both sides: 128 means 64 keys before a query and 64 after it.
  shape.window = keys.integer("local_attention", 128, 2) / 2;
}

std::unique_ptr<Architecture> make_modernbert(const ModelShape& shape) {
  return std::make_unique<PreNormEncoder>(shape);
}

}  // namespace

FamilyEntry modernbert_family() { return {make_modernbert, read_modernbert}; }

}  // namespace brim::model
