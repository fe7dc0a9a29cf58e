// SPDX-License-Identifier: Apache-2.0
#include "hub/gliner_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/mapped_file.h"
#include "hub/config_keys.h"
#include "hub/model_dir.h"
#include "hub/weights.h"
#include "io/json_text.h"
#include "io/quote_text.h"

namespace brim::hub {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr const char* kFile = "gliner_config.json";
constexpr const char *kLabelsEncoder = "labels_encoder", *kLabelsTokenizer = "labels_tokenizer";
constexpr size_t kMaxBytes = size_t{1} << 20;
constexpr int kMaxWidth = 64, kMaxRnnLayers = 8, kMaxWords = 1 << 16;

bool is_set(const json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.is_null();
}

void refuse_variants(const ConfigKeys& keys) {
  constexpr std::pair<const char*, const char*> kVariants[] = {
      {"labels_decoder", "GLiNER models that generate labels are not supported; use a uni-encoder model"},
      {"relations_layer", "GLiNER models for relations are not supported; use a model for entities"},
      {"decoder_config", "streaming GLiNER models are not supported; use a uni-encoder model"},
      {"post_fusion_schema", "fused label and text layers are not supported"},
      {"fuse_layers", "fused encoder layers are not supported"},
      {"represent_spans", "span vectors of token models are not supported"},
      {"span_encoder_config", "a second encoder of words is not supported"},
      {"precomputed_prompts_mode", "precomputed labels are not supported"},
  };
  for (const auto& [key, why] : kVariants)
    if (const json* value = keys.get(key); value != nullptr && is_set(*value)) keys.refuse(key, *value, why);
  if (const std::string type = keys.text("words_splitter_type", "whitespace"); type != "whitespace")
    keys.contradiction("\"words_splitter_type\" is {}: only whitespace is supported", io::quote_text(type));
}

bool is_token_level(const ConfigKeys& keys) {
  const std::string mode = keys.text("span_mode", "markerV0");
  if (mode == "markerV0") return false;
  if (mode == "token_level" || mode == "token-level") return true;
  keys.contradiction("\"span_mode\" is {}: only markerV0 and token_level are supported", io::quote_text(mode));
}

GlinerConfig::Pooling pooling_of(const ConfigKeys& keys) {
  using Pooling = GlinerConfig::Pooling;
  constexpr std::pair<const char*, Pooling> kPoolings[] = {
      {"first", Pooling::first}, {"last", Pooling::last}, {"mean", Pooling::mean}, {"max", Pooling::max}};
  const std::string name = keys.text("subtoken_pooling", "first");
  for (const auto& [known, pooling] : kPoolings)
    if (name == known) return pooling;
  keys.contradiction("\"subtoken_pooling\" is {}: must be first, last, mean or max", io::quote_text(name));
}

std::string marker_of(const ConfigKeys& keys, const char* key, const char* fallback) {
  const std::string marker = keys.text(key, fallback);
  if (marker.empty()) keys.contradiction("\"{}\" is empty: must be a token of the tokenizer", key);
  return marker;
}

std::string encoder_json(const ConfigKeys& keys, const char* key) {
  const json* given = keys.get(key);
  if (given == nullptr) return "";
  if (!given->is_object()) keys.refuse(key, *given, "must be an object");
  json config = *given;
  if (!config.contains("model_type")) config["model_type"] = "deberta-v2";
  config["architectures"] = nullptr;  // the head is not the encoder's own
  return config.dump();
}

// One of the two encoders, by its keys in the file.
struct EncoderKeys {
  const char *name_key, *config_key, *missing;
  std::string name;
};
EncoderKeys text_encoder(const GlinerConfig& config) {
  return {"model_name", "encoder_config", "\"encoder_config\"", config.encoder};
}
EncoderKeys labels_encoder(const GlinerConfig& config) {
  return {kLabelsEncoder, "labels_encoder_config", "\"labels_encoder_config\" or no labels_tokenizer",
          config.labels_encoder};
}

// Directory of the encoder on this machine.
fs::path encoder_dir(const GlinerConfig& config, const EncoderKeys& encoder) {
  if (encoder.name.empty())
    fail(ErrorCode::bad_model, "{}: \"{}\" is missing and \"{}\" is empty", config.where, encoder.config_key,
         encoder.name_key);
  try {
    return resolve_model(encoder.name, model_search_path(model_roots()));
  } catch (const Error& error) {
    fail(error.code() == ErrorCode::usage ? ErrorCode::bad_model : error.code(),
         Remedy{fmt::format("brim pull {}", hub_name(encoder.name))},
         "{}: \"{}\" {} is not on this machine, and the model has no {}", config.where, encoder.name_key,
         io::quote_text(encoder.name), encoder.missing);
  }
}

bool has_tokenizer(const fs::path& dir) {
  for (const fs::path& file : tokenizer_files(dir))
    if (file.filename() != "tokenizer_config.json" && file.filename() != "special_tokens_map.json" &&
        file.filename() != "added_tokens.json")
      return true;
  return false;
}

}  // namespace

bool is_gliner(const fs::path& dir) {
  std::error_code ignored;
  return fs::exists(dir / kFile, ignored);
}

GlinerConfig load_gliner_config(const fs::path& dir) {
  const MappedFile file(dir / kFile);
  GlinerConfig config;
  config.where = (dir / kFile).string();
  if (file.size() > kMaxBytes)
    fail(ErrorCode::bad_model, "{}: {} bytes are too large for a gliner_config.json", config.where, file.size());
  const json object = io::parse_json(file.text(), config.where);
  if (!object.is_object())
    fail(ErrorCode::bad_model, "{}: must contain a JSON object, not {}", config.where, object.type_name());
  const ConfigKeys keys(object, config.where);
  refuse_variants(keys);
  config.token_level = is_token_level(keys);
  config.max_width = keys.integer("max_width", 12, 1, kMaxWidth);
  config.hidden_size = keys.integer("hidden_size", 512, 1);
  config.rnn_layers = keys.integer("num_rnn_layers", 1, -1, kMaxRnnLayers);
  if (config.rnn_layers > 0 && config.hidden_size % 2 != 0)
    keys.contradiction("\"hidden_size\" {} is odd, but \"num_rnn_layers\" is {}: it must be even", config.hidden_size,
                       config.rnn_layers);
  config.max_words = keys.integer("max_len", 384, 1, kMaxWords);
  config.pooling = pooling_of(keys);
  config.embed_marker = keys.get("embed_ent_token") == nullptr || keys.flag("embed_ent_token");
  config.label_marker = marker_of(keys, "ent_token", "<<ENT>>");
  config.text_marker = marker_of(keys, "sep_token", "<<SEP>>");
  config.label_marker_id = keys.integer("class_token_index", -1, -1);
  config.encoder = keys.text("model_name", "");
  config.encoder_json = encoder_json(keys, "encoder_config");
  config.labels_encoder = keys.text(kLabelsEncoder, "");
  if (!config.labels_encoder.empty()) config.labels_encoder_json = encoder_json(keys, "labels_encoder_config");
  return config;
}

fs::path labels_encoder_dir(const fs::path& dir) { return dir / kLabelsEncoder; }

bool is_labels_encoder(const fs::path& dir) { return dir.filename() == kLabelsEncoder && is_gliner(dir.parent_path()); }

HfConfig load_gliner_encoder(const fs::path& dir) {
  const bool labels = is_labels_encoder(dir);
  const GlinerConfig gliner = load_gliner_config(labels ? dir.parent_path() : dir);
  const EncoderKeys encoder = labels ? labels_encoder(gliner) : text_encoder(gliner);
  const std::string& given = labels ? gliner.labels_encoder_json : gliner.encoder_json;
  HfConfig config;
  if (given.empty()) {
    config = load_hf_config(encoder_dir(gliner, encoder));
    json object = io::parse_json(config.raw, config.where);
    // The head's marker tokens were added to the vocabulary after the encoder's configuration was written.
    const auto weights = WeightSource::open(dir);
    for (const char* name : {"embeddings.word_embeddings.weight", "embeddings.tok_embeddings.weight"})
      if (const StoredTensor* table = weights->describe(name); table != nullptr && !table->shape.empty())
        object["vocab_size"] = table->shape[0];
    object["architectures"] = nullptr;
    config = parse_hf_config(object.dump(), gliner.where);
  } else {
    config = parse_hf_config(given, fmt::format("{} (\"{}\")", gliner.where, encoder.config_key));
  }
  config.architectures = {"GLiNER"};
  return config;
}

fs::path tokenizer_dir(const fs::path& dir) {
  if (is_labels_encoder(dir)) {
    const fs::path model = dir.parent_path();
    if (has_tokenizer(model / kLabelsTokenizer)) return model / kLabelsTokenizer;
    const GlinerConfig config = load_gliner_config(model);
    return encoder_dir(config, labels_encoder(config));
  }
  if (!is_gliner(dir) || has_tokenizer(dir)) return dir;
  const GlinerConfig config = load_gliner_config(dir);
  return encoder_dir(config, text_encoder(config));
}

std::vector<fs::path> directories_read_by(const fs::path& dir) {
  std::vector<fs::path> dirs;
  if (!is_gliner(dir)) return dirs;
  const auto add = [&](const fs::path& other) {
    if (std::find(dirs.begin(), dirs.end(), other) == dirs.end()) dirs.push_back(other);
  };
  try {
    const GlinerConfig config = load_gliner_config(dir);
    if (config.encoder_json.empty() || !has_tokenizer(dir)) add(encoder_dir(config, text_encoder(config)));
    if (config.labels_encoder.empty()) return dirs;
    const bool own_tokenizer = has_tokenizer(dir / kLabelsTokenizer);
    if (own_tokenizer) add(dir / kLabelsTokenizer);
    if (config.labels_encoder_json.empty() || !own_tokenizer) add(encoder_dir(config, labels_encoder(config)));
  } catch (const Error&) {  // opening the model reports it
  }
  return dirs;
}

}  // namespace brim::hub
