// SPDX-License-Identifier: Apache-2.0
#include "hub/hf_config.h"

#include <algorithm>
#include <charconv>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/mapped_file.h"
#include "base/units.h"
#include "hub/config_keys.h"
#include "hub/foreign_model.h"
#include "hub/gliner_config.h"
#include "io/atomic_file.h"
#include "io/json_text.h"
#include "io/quote_text.h"

namespace brim::hub {
namespace fs = std::filesystem;
namespace {

using nlohmann::json;

constexpr int kMaxLabels = 1 << 20;
constexpr size_t kMaxConfigBytes = size_t{64} << 20;

struct FamilyTraits {
  const char* model_type;
  Family family;
  const char* class_prefix;  // prefix of its transformers classes
  int vocab_size, pad_token_id, hidden_size, num_layers, num_heads, intermediate_size;
  bool positions_after_padding;
};
constexpr FamilyTraits kFamilies[] = {
#define BRIM_MODEL_TYPE(type, family, ...) {type, Family::family, __VA_ARGS__},
#include "hub/families.inc"
};

std::string supported() {
  std::string text = "supported are ";
  for (size_t i = 0; i < std::size(kFamilies); ++i)
    text += std::string(i == 0 ? "" : i + 1 < std::size(kFamilies) ? ", " : " and ") + kFamilies[i].model_type;
  return text;
}

// The supported choice for a part of an unsupported model_type; the first match applies.
struct NearestFamily {
  const char* part;
  const char* nearest;
};
constexpr NearestFamily kNearest[] = {
    {"modernbert", "modernbert (an encoder such as ModernBERT, Ettin or mmBERT)"},
    {"deberta", "deberta-v2"},
    {"eurobert", "modernbert (such as mmBERT)"},
    {"xlm", "xlm-roberta"},
    {"ernie_m", "xlm-roberta"},
    {"rembert", "xlm-roberta"},
    {"mbart", "xlm-roberta"},
    {"mt5", "xlm-roberta"},
    {"flaubert", "camembert"},
    {"longformer", "modernbert (up to 8,192 tokens)"},
    {"big_bird", "modernbert (up to 8,192 tokens)"},
    {"nystrom", "modernbert (up to 8,192 tokens)"},
    {"neobert", "modernbert"},
    {"nomic", "modernbert"},
    {"new", "modernbert (such as gte-modernbert)"},
    {"mobilebert", "distilbert"},
    {"squeezebert", "distilbert"},
    {"tinybert", "bert"},
    {"convbert", "electra"},
    {"funnel", "deberta-v2"},
    {"xlnet", "deberta-v2"},
    {"roberta", "roberta"},
    {"data2vec", "roberta"},
    {"luke", "roberta"},
    {"bart", "roberta"},
    {"ibert", "roberta"},
    {"bert", "bert"},
    {"ernie", "bert"},
    {"layoutlm", "bert"},
};

std::string nearest_to(std::string_view type) {
  for (const auto& [part, nearest] : kNearest)
    if (type.find(part) != std::string_view::npos) return nearest;
  std::vector<std::string> known;
  for (const FamilyTraits& traits : kFamilies) known.emplace_back(traits.model_type);
  const std::string near = nearest_name(type, known, 1);   // a misspelt name
  return near.empty() ? "modernbert (an encoder)" : near;  // decoders, models for images and sound
}

constexpr std::pair<const char*, HiddenAct> kActivations[] = {
    {"gelu", HiddenAct::gelu_erf},
    {"gelu_python", HiddenAct::gelu_erf},
    {"gelu_new", HiddenAct::gelu_tanh},
    {"gelu_fast", HiddenAct::gelu_tanh},
    {"gelu_pytorch_tanh", HiddenAct::gelu_tanh},
    {"gelu_python_tanh", HiddenAct::gelu_tanh},
    {"gelu_accurate", HiddenAct::gelu_tanh},
    {"quick_gelu", HiddenAct::quick_gelu},
    {"relu", HiddenAct::relu},
    {"silu", HiddenAct::silu},
    {"swish", HiddenAct::silu},
    {"tanh", HiddenAct::tanh},
};

std::string shown(const json& value) {
  return io::quote_text(value.dump(-1, ' ', false, json::error_handler_t::replace), 60);
}

}  // namespace

ConfigKeys::ConfigKeys(const json& object, const std::string& where) : object_(object), where_(where) {}

ConfigKeys::ConfigKeys(const HfConfig& config)
    : owned_(std::make_shared<const json>(io::parse_json(config.raw, config.where))),
      object_(*owned_),
      where_(config.where) {}

const json* ConfigKeys::get(const char* key) const {
  const auto found = object_.find(key);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

bool ConfigKeys::has(const char* key) const { return object_.contains(key); }

int ConfigKeys::integer(const char* key, int fallback, int least, int most) const {
  const json* value = get(key);
  if (value == nullptr) return fallback;
  if (!value->is_number_integer()) refuse(key, *value, "must be an integer");
  if (value->is_number_unsigned() ? value->get<uint64_t>() > static_cast<uint64_t>(most) : value->get<int64_t>() > most)
    refuse(key, *value, fmt::format("must be at most {}", most));
  if (value->get<int64_t>() < least) refuse(key, *value, fmt::format("must be at least {}", least));
  return value->get<int>();
}

float ConfigKeys::number(const char* key, float fallback, double least, double below) const {
  const json* value = get(key);
  if (value == nullptr) return fallback;
  if (!value->is_number()) refuse(key, *value, "must be a number");
  const double number = value->get<double>();
  if (!(number >= least && number < below)) refuse(key, *value, fmt::format("must be in [{}, {})", least, below));
  return static_cast<float>(number);
}

float ConfigKeys::positive(const char* key, float fallback, double below) const {
  const float number = this->number(key, fallback, 0, below);
  if (!(number > 0)) refuse(key, *get(key), fmt::format("must be above 0 and below {}", below));
  return number;
}

std::string ConfigKeys::text(const char* key, const char* fallback) const {
  const json* value = get(key);
  if (value == nullptr) return fallback;
  if (!value->is_string()) refuse(key, *value, "must be a string");
  return value->get<std::string>();
}

bool ConfigKeys::flag(const char* key) const {
  const json* value = get(key);
  if (value == nullptr) return false;
  if (!value->is_boolean()) refuse(key, *value, "must be true or false");
  return value->get<bool>();
}

HiddenAct ConfigKeys::activation(const char* key, const char* fallback) const {
  const std::string name = text(key, fallback);
  for (const auto& [known, activation] : kActivations)
    if (name == known) return activation;
  contradiction(
      "\"{}\" is {}: supported are gelu, gelu_new, gelu_pytorch_tanh, gelu_fast, quick_gelu, relu, silu and tanh", key,
      io::quote_text(name));
}

void ConfigKeys::refuse(const char* key, const json& value, std::string_view why) const {
  fail(ErrorCode::bad_model, "{}: \"{}\" is {}: {}", where_, key, shown(value), why);
}

void ConfigKeys::refuse(const std::string& what) const { fail(ErrorCode::bad_model, "{}: {}", where_, what); }

namespace {

const FamilyTraits* traits_of_class(std::string_view architecture) {
  for (const FamilyTraits& traits : kFamilies)
    for (const char* suffix : {"For", "Model", "LMHead"})
      if (architecture.starts_with(std::string(traits.class_prefix) + suffix)) return &traits;
  return nullptr;
}

const FamilyTraits& find_family(const ConfigKeys& keys, const std::vector<std::string>& architectures) {
  const std::string type = keys.text("model_type", "");
  const FamilyTraits* from_class = architectures.empty() ? nullptr : traits_of_class(architectures[0]);
  if (type.empty()) {
    if (from_class == nullptr) keys.contradiction("\"model_type\" is missing: {}", supported());
    return *from_class;
  }
  for (const FamilyTraits& traits : kFamilies) {
    if (type != traits.model_type) continue;
    if (from_class != nullptr && from_class->family != traits.family)
      keys.contradiction("\"model_type\" is {} but \"architectures\" names {}: they must agree", io::quote_text(type),
                         io::quote_text(architectures[0]));
    return traits;
  }
  if (type == "deberta")
    keys.contradiction("\"model_type\" is {}: DeBERTa v1 is not supported; use a v2 or v3 model (deberta-v2)",
                       io::quote_text(type));
  for (const auto& [other, name] : {std::pair("GLiClass", "GLiClass"), std::pair("extractor", "GLiNER2")})
    if (type == other)
      keys.contradiction("\"model_type\" is {}: {} is not supported; use a GLiNER model or an NLI model with labels",
                         io::quote_text(type), name);
  keys.contradiction("\"model_type\" is {}: {}; the nearest is {}", io::quote_text(type), supported(),
                     nearest_to(type));
}

std::vector<std::string> read_architectures(const ConfigKeys& keys) {
  std::vector<std::string> names;
  const json* value = keys.get("architectures");
  if (value == nullptr) return names;
  if (!value->is_array()) keys.refuse("architectures", *value, "must be a list of class names");
  for (const json& name : *value) {
    if (!name.is_string()) keys.refuse("architectures", name, "must be a list of class names");
    names.push_back(name.get<std::string>());
  }
  return names;
}

int label_id(const ConfigKeys& keys, const std::string& text, size_t count) {
  int id = -1;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), id);
  if (error != std::errc() || end != text.data() + text.size() || id < 0)
    keys.contradiction("\"id2label\" has the key {}: keys must be label numbers 0, 1, 2 …", io::quote_text(text));
  if (static_cast<size_t>(id) >= count)
    keys.contradiction("\"id2label\" has {} labels but one numbered {}: numbers must be contiguous from 0", count, id);
  return id;
}

void read_labels(const ConfigKeys& keys, HfConfig& config) {
  const json* given = keys.get("id2label");
  const int declared = keys.integer("num_labels", -1, 1, kMaxLabels);
  config.labels_given = given != nullptr || declared > 0;
  if (given == nullptr) {
    for (int i = 0; i < (declared > 0 ? declared : 2); ++i) config.id2label.push_back(fmt::format("LABEL_{}", i));
  } else {
    if (!given->is_object()) keys.refuse("id2label", *given, "must be an object from label number to label");
    if (given->empty()) keys.refuse("id2label", *given, "a classifier needs at least one label");
    if (declared > 0 && given->size() != static_cast<size_t>(declared))
      keys.contradiction("\"num_labels\" is {} but \"id2label\" has {} labels: they must agree", declared,
                         given->size());
    config.id2label.resize(given->size());
    std::vector<bool> seen(given->size());
    for (const auto& [key, value] : given->items()) {
      const auto id = static_cast<size_t>(label_id(keys, key, given->size()));
      if (seen[id]) keys.contradiction("\"id2label\" numbers {} twice", id);
      seen[id] = true;
      if (!value.is_string()) keys.refuse("id2label", value, fmt::format("label {} must be a string", id));
      config.id2label[id] = value.get<std::string>();
    }
  }
  config.num_labels = static_cast<int>(config.id2label.size());
  for (int i = 0; i < config.num_labels; ++i) {
    const auto [at, fresh] = config.label2id.emplace(config.id2label[static_cast<size_t>(i)], i);
    if (!fresh)
      keys.contradiction("\"id2label\" maps both {1} and {2} to {0}: labels must differ", io::quote_text(at->first),
                         at->second, i);
  }
}

// label2id must be the inverse of id2label. Leftover default names (LABEL_0) are common and harmless; the same name
// with another number is an error, because labels would differ between training and scoring.
void check_label2id(const ConfigKeys& keys, const HfConfig& config) {
  const json* given = keys.get("label2id");
  if (given == nullptr || !config.labels_given) return;
  if (!given->is_object()) keys.refuse("label2id", *given, "must be an object from label to label number");
  for (const auto& [label, value] : given->items()) {
    const auto known = config.label2id.find(label);
    if (known == config.label2id.end()) {
      log_warning("{}: \"label2id\" has {}, which is missing from \"id2label\"; using id2label", config.where,
                  io::quote_text(label));
      return;
    }
    // Some files store numbers as strings.
    const std::string number = value.is_string() ? value.get<std::string>() : value.dump();
    if (number != std::to_string(known->second))
      keys.contradiction("\"label2id\" maps {1} to {0} but \"id2label\" maps it to {2}: they must agree", shown(value),
                         io::quote_text(label), known->second);
  }
}

void read_quantization(const ConfigKeys& keys, HfConfig& config) {
  const json* given = keys.get("quantization_config");
  if (given == nullptr) return;
  if (!given->is_object()) keys.refuse("quantization_config", *given, "must be an object");
  const ConfigKeys inner(*given, config.where);
  const std::string method = inner.text("quant_method", "");
  if (method != QuantizationConfig::kMethod)
    keys.contradiction(
        "\"quantization_config\" has the unsupported method {} (supported: {}); use the unquantized model",
        io::quote_text(method), io::quote_text(QuantizationConfig::kMethod));
  QuantizationConfig quantization;
  quantization.bits = inner.integer("bits", 8, 8, 8);
  config.quantization = quantization;
}

void read_sizes(const ConfigKeys& keys, const FamilyTraits& traits, HfConfig& config) {
  const bool distil = traits.family == Family::distilbert, modern = traits.family == Family::modernbert,
             deberta = traits.family == Family::deberta;
  // DistilBERT has its own key names, and accepts BERT's as well.
  auto either = [&](const char* own, const char* common) { return distil && !keys.get(common) ? own : common; };
  const char* hidden_key = either("dim", "hidden_size");
  const char* heads_key = either("n_heads", "num_attention_heads");
  config.hidden_size = keys.integer(hidden_key, traits.hidden_size, 1);
  config.num_layers = keys.integer(either("n_layers", "num_hidden_layers"), traits.num_layers, 1, 10000);
  config.num_heads = keys.integer(heads_key, traits.num_heads, 1);
  config.intermediate_size = keys.integer(distil ? "hidden_dim" : "intermediate_size", traits.intermediate_size, 1);
  config.vocab_size = keys.integer("vocab_size", traits.vocab_size, 1);
  config.max_position_embeddings = keys.integer("max_position_embeddings", modern ? 8192 : 512, 1);
  config.type_vocab_size = distil || modern ? 0 : keys.integer("type_vocab_size", deberta ? 0 : 2, deberta ? 0 : 1);
  config.pad_token_id = keys.integer("pad_token_id", traits.pad_token_id, 0);
  config.positions_after_padding = traits.positions_after_padding;
  if (config.hidden_size % config.num_heads != 0)
    keys.contradiction("\"{}\" {} is not divisible by \"{}\" {}", hidden_key, config.hidden_size, heads_key,
                       config.num_heads);
  if (config.pad_token_id >= config.vocab_size)
    keys.contradiction("\"pad_token_id\" {} is not in the vocabulary of {} (\"vocab_size\")", config.pad_token_id,
                       config.vocab_size);
  if (config.max_tokens() < 1)
    keys.contradiction("\"max_position_embeddings\" {} must be greater than \"pad_token_id\" {} + 1",
                       config.max_position_embeddings, config.pad_token_id);
}

void read_numerics(const ConfigKeys& keys, HfConfig& config) {
  const bool distil = config.family == Family::distilbert, modern = config.family == Family::modernbert,
             deberta = config.family == Family::deberta;
  config.layer_norm_eps = distil   ? 1e-12f
                          : modern ? keys.positive("norm_eps", 1e-5f, 1)
                                   : keys.positive("layer_norm_eps", deberta ? 1e-7f : 1e-12f, 1);
  config.initializer_range = keys.number("initializer_range", 0.02f, 0, 1e3);
  config.hidden_dropout = keys.number(distil ? "dropout" : "hidden_dropout_prob", 0.1f, 0, 1);
  config.attention_dropout = keys.number(distil ? "attention_dropout" : "attention_probs_dropout_prob", 0.1f, 0, 1);
  if (modern) {
    config.hidden_dropout = keys.number("embedding_dropout", 0, 0, 1);
    config.attention_dropout = keys.number("attention_dropout", 0, 0, 1);
    config.classifier_dropout = config.token_classifier_dropout = keys.number("classifier_dropout", 0, 0, 1);
  } else if (distil) {
    config.classifier_dropout = keys.number("seq_classif_dropout", 0.2f, 0, 1);
    config.token_classifier_dropout = config.hidden_dropout;
  } else if (deberta) {
    config.classifier_dropout = keys.number("cls_dropout", config.hidden_dropout, 0, 1);
    config.token_classifier_dropout = config.hidden_dropout;
  } else {
    config.classifier_dropout = keys.number("classifier_dropout", config.hidden_dropout, 0, 1);
    config.token_classifier_dropout = config.classifier_dropout;
  }
  const char* act_key = distil ? "activation" : modern ? "hidden_activation" : "hidden_act";
  config.hidden_act = keys.text(act_key, "gelu");
  config.activation = keys.activation(act_key, "gelu");
}

void refuse_unsupported(const ConfigKeys& keys, HfConfig& config) {
  const std::string positions = keys.text("position_embedding_type", "absolute");
  // mmBERT and Ettin state that they have no table of positions, which holds for all of their family.
  const bool stated = config.family == Family::modernbert && positions == "sans_pos";
  if (positions != "absolute" && !stated)
    keys.contradiction("\"position_embedding_type\" is {}: only absolute positions are supported",
                       io::quote_text(positions));
  config.position_embedding_type = "absolute";
  for (const char* key : {"is_decoder", "add_cross_attention"})
    if (keys.flag(key)) keys.contradiction("\"{}\" is true: only encoders are supported", key);
  const json* pruned = keys.get("pruned_heads");
  if (pruned != nullptr && !pruned->empty()) keys.refuse("pruned_heads", *pruned, "pruned heads are not supported");
  config.problem_type = keys.text("problem_type", "");
  constexpr const char* known[] = {"", "regression", "single_label_classification", "multi_label_classification"};
  if (std::find(std::begin(known), std::end(known), config.problem_type) == std::end(known))
    keys.contradiction(
        "\"problem_type\" is {}: must be regression, single_label_classification or multi_label_classification",
        io::quote_text(config.problem_type));
}

// Cross-encoders of sentence-transformers name the activation for their single logit; the default is the sigmoid.
bool gives_raw_scores(const ConfigKeys& keys, const HfConfig& config) {
  if (config.problem_type == "regression") return true;
  if (config.num_labels != 1) return false;
  std::string named = keys.text("sbert_ce_default_activation_function", "");
  if (const json* block = keys.get("sentence_transformers"); block != nullptr && block->is_object()) {
    const auto found = block->find("activation_fn");
    if (found != block->end() && found->is_string()) named = found->get<std::string>();
  }
  if (named.empty() || named.ends_with(".Sigmoid")) return false;
  if (named.ends_with(".Identity")) return true;
  keys.contradiction("unsupported activation {} of the cross-encoder (supported: Sigmoid, Identity)",
                     io::quote_text(named));
}

}  // namespace

const char* family_name(Family family) {
  static const char* const names[] = {
#define BRIM_FAMILY(name) #name,
#include "hub/families.inc"
  };
  return names[static_cast<size_t>(family)];
}

HfConfig parse_hf_config(std::string_view text, const std::string& where) {
  if (text.size() > kMaxConfigBytes)
    fail(ErrorCode::bad_model, "{}: {} bytes are too large for a config.json", where, text.size());
  const json object = io::parse_json(text, where);
  if (!object.is_object())
    fail(ErrorCode::bad_model, "{}: must contain a JSON object, not {}", where, object.type_name());
  HfConfig config;
  config.where = where;
  config.raw = text;
  const ConfigKeys keys(object, config.where);
  config.architectures = read_architectures(keys);
  const FamilyTraits& traits = find_family(keys, config.architectures);
  config.family = traits.family;
  config.model_type = traits.model_type;
  read_sizes(keys, traits, config);
  read_numerics(keys, config);
  refuse_unsupported(keys, config);
  read_labels(keys, config);
  config.raw_scores = gives_raw_scores(keys, config);
  check_label2id(keys, config);
  config.tokenizer_class = keys.text("tokenizer_class", "");
  read_quantization(keys, config);
  return config;
}

HfConfig load_hf_config(const fs::path& dir) {
  if (is_gliner(dir) || is_labels_encoder(dir)) return load_gliner_encoder(dir);
  const fs::path path = dir / "config.json";
  std::error_code unknown;  // such as a missing permission for the directory
  if (fs::status(path, unknown).type() == fs::file_type::none)
    fail(ErrorCode::bad_model, "{}: cannot open: {}", path.string(), unknown.message());
  if (!fs::exists(path, unknown)) {
    if (const std::string cause = foreign_model(dir); !cause.empty())
      fail(ErrorCode::bad_model, "{}: {}", dir.string(), cause);
    fail(ErrorCode::bad_model, "{}: no config.json; give a Hugging Face model directory", dir.string());
  }
  return parse_hf_config(MappedFile(path).text(), path.string());
}

std::string keys_of_size(const fs::path& dir, int64_t size) {
  const json object = io::parse_json(load_hf_config(dir).raw, "config.json");
  std::string found;
  for (const int64_t times : {1, 2, 3}) {
    for (const auto& [key, value] : object.items()) {
      const bool counts = key == "id2label" && value.is_object();
      if (key.ends_with("_id") || !(value.is_number_integer() || counts)) continue;
      const int64_t number = counts ? static_cast<int64_t>(value.size()) : value.get<int64_t>();
      if (number <= 0 || size % times != 0 || number != size / times) continue;
      found += fmt::format("{}\"{}\" {} {}", found.empty() ? "" : ", ", key, counts ? "has" : "is", number);
    }
    if (!found.empty()) break;
  }
  return found;
}

HeadKind head_kind(const HfConfig& config, const std::vector<std::string>& weight_names) {
  if (!config.architectures.empty()) {
    const std::string& name = config.architectures[0];
    if (name.ends_with("ForSequenceClassification")) return HeadKind::sequence;
    if (name.ends_with("ForTokenClassification")) return HeadKind::token;
    return HeadKind::encoder;
  }
  bool classifier = false, pooler = false, sequence_only = false;
  for (const std::string& name : weight_names) {
    classifier |= name == "classifier.weight";
    pooler |= name.ends_with("pooler.dense.weight") || name.ends_with("pooler.weight");
    sequence_only |= name == "classifier.out_proj.weight" || name == "pre_classifier.weight";
  }
  // ModernBERT's two heads use the same names; most models saved without an architecture are sequence classifiers.
  if (sequence_only || (classifier && config.family == Family::modernbert)) return HeadKind::sequence;
  if (!classifier) return HeadKind::encoder;
  // Token classifiers of these families have no pooler, which their sequence classifiers need.
  const bool pooled =
      config.family == Family::bert || config.family == Family::albert || config.family == Family::deberta;
  return pooled && pooler ? HeadKind::sequence : HeadKind::token;
}

std::string updated_config(const HfConfig& config, const ConfigUpdate& update) {
  json object = io::parse_json(config.raw, config.where);
  const bool distil = config.family == Family::distilbert;
  if (update.head) {
    static const char* const suffix[] = {"Model", "ForSequenceClassification", "ForTokenClassification"};
    const auto* traits = std::find_if(std::begin(kFamilies), std::end(kFamilies),
                                      [&](const auto& t) { return config.model_type == t.model_type; });
    object["architectures"] = {std::string(traits->class_prefix) + suffix[static_cast<int>(*update.head)]};
  }
  object["model_type"] = config.model_type;
  if (update.num_layers) {
    object[distil ? "n_layers" : "num_hidden_layers"] = *update.num_layers;
    json& types = object["layer_types"];
    if (types.is_array() && types.size() > static_cast<size_t>(*update.num_layers))
      types.erase(types.begin() + *update.num_layers, types.end());
    if (types.is_null()) object.erase("layer_types");
  }
  if (update.problem_type) {
    if (update.problem_type->empty())
      object.erase("problem_type");
    else
      object["problem_type"] = *update.problem_type;
  }
  if (update.torch_dtype) {
    // transformers 5 writes "dtype"; keep the name that the file uses.
    object[object.contains("dtype") ? "dtype" : "torch_dtype"] = *update.torch_dtype;
  }
  if (update.quantization == ConfigUpdate::Quantization::remove) object.erase("quantization_config");
  if (update.quantization == ConfigUpdate::Quantization::int8)
    object["quantization_config"] = {{"quant_method", QuantizationConfig::kMethod},
                                     {"bits", 8},
                                     {"weights", "symmetric, one scale a row, in NAME_scale"},
                                     {"activations", "symmetric, one scale a row, at run time"}};
  for (const auto& [key, text] : update.extra) object[key] = io::parse_json(text, config.where + ": new key " + key);
  if (!update.labels) return object.dump(2) + "\n";

  // Sorted like transformers does, but with labels in numeric order rather than "0", "1", "10", "2".
  object.erase("num_labels");
  object["id2label"] = object["label2id"] = nullptr;
  nlohmann::ordered_json ordered(object);
  ordered["id2label"] = ordered["label2id"] = nlohmann::ordered_json::object();
  for (size_t i = 0; i < update.labels->size(); ++i) {
    ordered["id2label"][std::to_string(i)] = (*update.labels)[i];
    ordered["label2id"][(*update.labels)[i]] = i;
  }
  return ordered.dump(2) + "\n";
}

void write_config(const HfConfig& config, const ConfigUpdate& update, const fs::path& dir) {
  const fs::path path = dir / "config.json";
  const std::string text = updated_config(config, update);
  parse_hf_config(text, path.string());  // the written file must be readable
  io::write_file_atomically(path, text);
}

std::vector<fs::path> tokenizer_files(const fs::path& dir) {
  static const char* const names[] = {
      "tokenizer.json",
      "tokenizer_config.json",
      "special_tokens_map.json",
      "added_tokens.json",
      "vocab.txt",
      "vocab.json",
      "merges.txt",
      "bpe.codes",
      "dict.txt",
      "sentencepiece.bpe.model",
      "spiece.model",
      "spm.model",
      "tokenizer.model",
      "unigram.json",
      "emoji.txt",
  };
  std::vector<fs::path> found;
  std::error_code ignored;
  for (const char* name : names)
    if (fs::is_regular_file(dir / name, ignored)) found.push_back(dir / name);
  return found;
}

void copy_tokenizer_files(const fs::path& from, const fs::path& to) {
  for (const fs::path& file : tokenizer_files(from)) {
    std::error_code ignored;
    if (fs::equivalent(file, to / file.filename(), ignored)) continue;
    io::write_file_atomically(to / file.filename(), MappedFile(file).text());
  }
}

}  // namespace brim::hub
