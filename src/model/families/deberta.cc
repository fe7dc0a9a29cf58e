// SPDX-License-Identifier: Apache-2.0
// DeBERTa v2 and v3: attention scores with terms by distance between query and key, optionally a convolution beside the
// first layer; dropout, dense, gelu, dropout, out.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "io/quote_text.h"
#include "model/blocks/post_norm.h"
#include "ops/unfold.h"

namespace brim::model {
namespace {

using nlohmann::json;

// The lower-case parts of "a|b", without spaces around them.
std::vector<std::string> split_parts(const std::string& text) {
  std::vector<std::string> parts{""};
  for (const char c : text) {
    if (c == '|')
      parts.emplace_back();
    else if (c != ' ')
      parts.back() += c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c;
  }
  return parts;
}

void read_terms(const hub::ConfigKeys& keys, ModelShape& shape) {
  constexpr const char* key = "pos_att_type";
  const json* value = keys.get(key);
  if (value == nullptr) keys.contradiction("\"{}\" is missing: must name c2p, p2c or both", key);
  std::vector<std::string> terms;
  if (value->is_string()) {
    terms = split_parts(value->get<std::string>());
  } else {
    if (!value->is_array()) keys.refuse(key, *value, "must be a list or a string with c2p, p2c or both");
    for (const json& term : *value) {
      if (!term.is_string()) keys.refuse(key, *value, "must be a list or a string with c2p, p2c or both");
      terms.push_back(term.get<std::string>());
    }
  }
  for (const std::string& term : terms) {
    if (term != "c2p" && term != "p2c") keys.refuse(key, *value, "only c2p and p2c are supported");
    (term == "c2p" ? shape.distance_keys : shape.distance_queries) = true;
  }
  if (terms.empty()) keys.refuse(key, *value, "must name c2p, p2c or both");
}

void read_distances(const hub::ConfigKeys& keys, ModelShape& shape) {
  if (!keys.flag("relative_attention"))
    keys.contradiction("\"relative_attention\" is {}: only true is supported",
                       keys.has("relative_attention") ? "false" : "missing");
  const int positions = static_cast<int>(shape.positions);
  int farthest = keys.integer("max_relative_positions", -1, -hub::ConfigKeys::kMaxSize);
  if (farthest < 1) farthest = positions;
  const int buckets = keys.integer("position_buckets", -1, -hub::ConfigKeys::kMaxSize);
  shape.distances = {.span = buckets > 0 ? buckets : farthest, .buckets = std::max(0, buckets), .farthest = farthest};
  if (buckets > 0 && (buckets < 2 || farthest - 1 <= buckets / 2))
    keys.contradiction("\"position_buckets\" is {} with {} positions: must be at least 2 and below {}", buckets,
                       farthest, 2 * farthest - 2);
  read_terms(keys, shape);
  shape.shared_distances = keys.flag("share_att_key");
  for (const std::string& part : split_parts(keys.text("norm_rel_ebd", "none"))) {
    if (part != "none" && part != "layer_norm")
      keys.contradiction("\"norm_rel_ebd\" is {}: only none and layer_norm are supported", io::quote_text(part));
    shape.distance_norm |= part == "layer_norm";
  }
}

void read_convolution(const hub::ConfigKeys& keys, ModelShape& shape) {
  const int width = keys.integer("conv_kernel_size", 0, 0);
  if (width == 0) return;
  if (width % 2 == 0 || width > ops::kMaxUnfold)
    keys.contradiction("\"conv_kernel_size\" is {}: must be odd and at most {}", width, ops::kMaxUnfold);
  if (const int groups = keys.integer("conv_groups", 1, 1); groups != 1)
    keys.contradiction("\"conv_groups\" is {}: only 1 is supported", groups);
  if (shape.layers < 2)
    keys.contradiction("\"conv_kernel_size\" is {} with {} layer: at least 2 layers are required", width, shape.layers);
  shape.convolution = width;
  shape.convolution_activation = activation_of(keys.activation("conv_act", "tanh"));
}

void read_deberta(const hub::ConfigKeys& keys, ModelShape& shape) {
  read_distances(keys, shape);
  read_convolution(keys, shape);
  shape.position_table = keys.get("position_biased_input") == nullptr || keys.flag("position_biased_input");
  shape.pooler_dropout = keys.number("pooler_dropout", 0, 0, 1);
  shape.head_activation = activation_of(keys.activation("pooler_hidden_act", "gelu"));
  const struct {
    const char *key, *other;
    int64_t wanted;
  } sizes[] = {{"embedding_size", "\"hidden_size\"", shape.hidden},
               {"pooler_hidden_size", "\"hidden_size\"", shape.hidden},
               {"attention_head_size", "\"hidden_size\" over \"num_attention_heads\"", shape.head_size()}};
  for (const auto& [key, other, wanted] : sizes)
    if (const int size = keys.integer(key, static_cast<int>(wanted), 1); size != wanted)
      keys.contradiction("\"{}\" is {} but {} is {}: only equal sizes are supported", key, size, other, wanted);
}

std::unique_ptr<Architecture> make_deberta(const ModelShape& shape) {
  PostNormNames n;
  n.prefix = "deberta.";
  n.q = "attention.self.query_proj";
  n.k = "attention.self.key_proj";
  n.v = "attention.self.value_proj";
  n.dense = "pooler.dense";
  return std::make_unique<PostNormEncoder>(shape, n, PostNormOptions{.head_activation = shape.head_activation});
}

}  // namespace

FamilyEntry deberta_family() { return {make_deberta, read_deberta}; }

}  // namespace brim::model
