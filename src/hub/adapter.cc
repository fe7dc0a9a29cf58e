// SPDX-License-Identifier: Apache-2.0
#include "hub/adapter.h"

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <span>

#include "base/error.h"
#include "base/mapped_file.h"
#include "hub/config_keys.h"
#include "io/json_text.h"
#include "io/quote_text.h"

namespace brim::hub {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr size_t kMaxAdapterConfigBytes = size_t{1} << 20;
constexpr int kLargestRank = 1 << 16;
constexpr double kLargestAlpha = 1e9;

json read_config(const fs::path& path) {
  const MappedFile file(path);
  if (file.size() > kMaxAdapterConfigBytes)
    fail(ErrorCode::bad_model, "{}: {} bytes are too large for a config", path.string(), file.size());
  json config = io::parse_json(file.text(), path.string());
  if (!config.is_object()) fail(ErrorCode::bad_model, "{}: must be an object", path.string());
  return config;
}

bool is_unset(const json& value) {
  return value.is_null() || value == false ||
         ((value.is_object() || value.is_array() || value.is_string()) && value.empty());
}

// Keys that do not affect the result, or that are read elsewhere in this file. The adapted modules are those with
// tensors in the file, so patterns that select them need not be evaluated.
const std::set<std::string, std::less<>>& known_keys() {
  static const std::set<std::string, std::less<>> keys = {"alpha_pattern",
                                                          "auto_mapping",
                                                          "base_model_name_or_path",
                                                          "bias",
                                                          "corda_config",
                                                          "ensure_weight_tying",
                                                          "eva_config",
                                                          "exclude_modules",
                                                          "fan_in_fan_out",
                                                          "inference_mode",
                                                          "init_lora_weights",
                                                          "layers_pattern",
                                                          "layers_to_transform",
                                                          "loftq_config",
                                                          "lora_alpha",
                                                          "lora_dropout",
                                                          "megatron_core",
                                                          "modules_to_save",
                                                          "peft_type",
                                                          "peft_version",
                                                          "qalora_group_size",
                                                          "r",
                                                          "rank_pattern",
                                                          "revision",
                                                          "runtime_config",
                                                          "target_modules",
                                                          "task_type",
                                                          "use_rslora"};
  return keys;
}

const char* reason_against(std::string_view key) {
  if (key == "use_dora") return "DoRA is not supported";
  if (key == "lora_bias") return "biases of LoRA matrices are not supported";
  if (key == "trainable_token_indices") return "adapted embedding rows are not supported";
  return "not supported";
}

void check_keys(const json& config, const ConfigKeys& keys) {
  if (const std::string type = keys.text("peft_type", "LORA"); type != "LORA")
    keys.contradiction("\"peft_type\" is {}: only LORA is supported", io::quote_text(type));
  for (const auto& [key, value] : config.items())
    if (!known_keys().contains(key) && !is_unset(value)) keys.refuse(key.c_str(), value, reason_against(key));
  if (keys.flag("fan_in_fan_out"))
    keys.contradiction("\"fan_in_fan_out\" is true: transposed weights are not supported");
  const json* start = keys.get("init_lora_weights");
  for (const char* method : {"pissa", "olora", "corda", "loftq"})  // they also change the base model's weights
    if (start != nullptr && start->is_string() && start->get<std::string>().starts_with(method))
      keys.refuse("init_lora_weights", *start, "convert the adapter to plain LoRA");
  const std::string bias = keys.text("bias", "none");
  if (bias != "none" && bias != "all" && bias != "lora_only")
    keys.contradiction("\"bias\" is {}: must be none, all or lora_only", io::quote_text(bias));
}

// The value of a pattern that matches the module, as PEFT selects it: a name, or the end of one.
std::optional<double> value_for(const ConfigKeys& keys, const char* key, const std::string& module, double least,
                                double most) {
  const json* patterns = keys.get(key);
  if (patterns == nullptr) return std::nullopt;
  if (!patterns->is_object()) keys.refuse(key, *patterns, "must be an object");
  for (const auto& [pattern, value] : patterns->items()) {
    std::string_view name = pattern;
    const bool whole = name.starts_with('^');
    if (whole) name.remove_prefix(1);
    if (name.ends_with('$')) name.remove_suffix(1);
    if (name.find_first_of("\\*+?|()[]{}^$") != std::string_view::npos)
      keys.contradiction("\"{}\" has the pattern {}: only names are supported", key, io::quote_text(pattern));
    if (!value.is_number() || value.get<double>() < least || value.get<double>() > most)
      keys.refuse(key, value, fmt::format("must be a number from {:g} to {:g}", least, most).c_str());
    const bool ends = module.ends_with(name) &&
                      (module.size() == name.size() || (!whole && module[module.size() - name.size() - 1] == '.'));
    if (ends) return value.get<double>();
  }
  return std::nullopt;
}

// Parts of names that PEFT's wrappers add.
std::string unwrapped(std::string name) {
  for (const std::string_view part : {".modules_to_save.default", ".modules_to_save", ".base_layer"})
    if (const size_t at = name.find(part); at != std::string::npos) name.erase(at, part.size());
  return name;
}

// Whether a tensor has a row per class; heads have other layers too, such as "pre_classifier" and "classifier.dense".
bool is_output_layer(std::string_view name) {
  return name == "classifier.weight" || name.ends_with(".classifier.weight") ||
         name.ends_with("classifier.out_proj.weight");
}

void check_finite(std::span<const float> values, const std::string& where) {
  if (std::all_of(values.begin(), values.end(), [](float value) { return std::isfinite(value); })) return;
  fail(ErrorCode::bad_model, Remedy{"check the training run that wrote the adapter"}, "{}: NaN or infinity", where);
}

// Name of a tensor in the base model: models saved alone lack the family prefix, or an adapter of such a model does.
std::string name_in(const WeightSource& base, const std::string& name) {
  if (base.has(name)) return name;
  if (const std::string alone = name.substr(name.find('.') + 1); base.has(alone)) return alone;
  for (const std::string& other : base.names())
    if (const size_t dot = other.find('.'); dot != std::string::npos && std::string_view(other).substr(dot + 1) == name)
      return other;
  return "";
}

}  // namespace

bool is_adapter(const fs::path& dir) {
  std::error_code ignored;
  return fs::exists(fs::symlink_status(dir / kAdapterConfig, ignored));
}

void require_float_weights(const WeightSource& base) {
  for (const std::string& name : base.names()) {
    if (base.require(name).dtype != tensor::DType::i8) continue;
    fail(ErrorCode::bad_model, Remedy{"convert the model with `brim models export precision=fp32` and use the result"},
         "{}: LoRA adapters cannot be added to int8 weights", base.where(name));
  }
}

Adapter::Adapter(const fs::path& dir, const WeightSource& base) : dir_(dir), base_(base.where()) {
  if (!is_adapter(dir)) fail(ErrorCode::bad_model, "{}: no {}", dir.string(), kAdapterConfig);
  require_float_weights(base);
  const json config = read_config(dir / kAdapterConfig);
  const ConfigKeys keys(config, (dir / kAdapterConfig).string());
  check_keys(config, keys);
  std::error_code ignored;
  const fs::path torch = dir / "adapter_model.bin";
  const bool old = !fs::exists(dir / kAdapterWeights, ignored) && fs::exists(torch, ignored);
  source_ = WeightSource::open_file(old ? torch : dir / kAdapterWeights);
  tags_ = keys.text("task_type", "") == "TOKEN_CLS";
  const int rank = keys.integer("r", 8, 1, kLargestRank);
  const double alpha = static_cast<double>(keys.number("lora_alpha", 8, -1e9, 1e9));
  config_.rank = rank;
  config_.alpha = alpha;
  (void)keys.number("lora_dropout", 0, 0, 1);
  if (const json* dropout = keys.get("lora_dropout")) config_.dropout = dropout->get<double>();  // not rounded to float
  config_.by_root = keys.flag("use_rslora");
  bias_ = keys.text("bias", "none");
  for (const std::string& stored : source_->names()) {
    if (!stored.starts_with(kAdapterPrefix)) fail(ErrorCode::bad_model, "{}: unexpected name", source_->where(stored));
    std::string name = unwrapped(stored.substr(std::string_view(kAdapterPrefix).size()));
    if (name.find(".original_module.") != std::string::npos) continue;
    for (const char* part : {"lora_embedding_", "lora_magnitude_vector", "lora_B.bias"})
      if (name.find(part) != std::string::npos)
        fail(ErrorCode::bad_model, "{}: {} tensors are not supported", source_->where(stored), part);
    constexpr std::string_view kA = ".lora_A.weight", kB = ".lora_B.weight";
    if (name.ends_with(kB)) continue;  // read with its other half
    if (!name.ends_with(kA)) {
      add_other(stored, name, base);
      continue;
    }
    const std::string module = name.substr(0, name.size() - kA.size());
    add_pair(module, stored, base,
             value_for(keys, "alpha_pattern", module, -kLargestAlpha, kLargestAlpha).value_or(alpha),
             keys.flag("use_rslora"));
    const auto wanted = static_cast<int64_t>(value_for(keys, "rank_pattern", module, 1, kLargestRank).value_or(rank));
    if (const int64_t made = source_->require(stored).shape[0]; made != wanted)
      fail(ErrorCode::bad_model, "{}: has rank {}, {} requires {}", source_->where(stored), made, kAdapterConfig,
           wanted);
  }
  if (pairs_.empty()) fail(ErrorCode::bad_model, "{}: no LoRA matrices", source_->where());
}

void Adapter::add_pair(const std::string& module, const std::string& a, const WeightSource& base, double alpha,
                       bool by_root) {
  Pair pair{a, a, module, 0, alpha, 0};
  pair.b.replace(a.size() - std::string_view("A.weight").size(), 1, "B");
  const StoredTensor &down = source_->require(a), &up = source_->require(pair.b);
  if (down.shape.size() != 2 || up.shape.size() != 2 || up.shape[1] != down.shape[0])
    fail(ErrorCode::bad_model, "{}: shapes {} and {} are not those of a LoRA matrix", source_->where(a),
         shape_text(down.shape), shape_text(up.shape));
  const std::string name = name_in(base, module + ".weight");
  if (name.empty())
    fail(ErrorCode::bad_model, "{}: {} has no module {}; the adapter belongs to another base model", source_->where(a),
         base_, io::quote_text(module));
  const StoredTensor& matrix = base.require(name);
  if (matrix.shape != std::vector<int64_t>{up.shape[0], down.shape[1]})
    fail(ErrorCode::bad_model, "{}: is for a matrix of {}, {} has {}; the adapter belongs to another base model",
         source_->where(a), shape_text(std::vector<int64_t>{up.shape[0], down.shape[1]}), base_,
         shape_text(matrix.shape));
  pair.rank = down.shape[0];
  pair.scale = static_cast<float>(
      alpha / (by_root ? std::sqrt(static_cast<double>(pair.rank)) : static_cast<double>(pair.rank)));
  pairs_[name] = pair;
}

void Adapter::add_other(const std::string& stored, const std::string& name, const WeightSource& base) {
  const StoredTensor& t = source_->require(stored);
  const std::string known = name_in(base, name);
  if (known.empty() && name.find(".encoder.") == std::string::npos && name.find(".layers.") == std::string::npos) {
    created_[name] = stored;
    added_[name] = t.shape;
    return;
  }
  if (known.empty())
    fail(ErrorCode::bad_model, "{}: {} has no such tensor; the adapter belongs to another base model",
         source_->where(stored), base_);
  replaced_[known] = stored;
  if (base.require(known).shape != t.shape) {  // a new head with other classes
    created_[known] = stored;
    added_[known] = t.shape;
  }
}

void Adapter::read(const std::string& stored, int64_t begin, int64_t end, float* out) const {
  const tensor::DType type = *source_->require(stored).dtype;
  using tensor::DType;
  if (type != DType::f32 && type != DType::f16 && type != DType::bf16 && type != DType::f64)
    fail(ErrorCode::bad_model, "{}: unsupported type {}", source_->where(stored), dtype_name(type));
  if (type == DType::f32) {
    source_->read(stored, begin, end, out);
  } else {
    std::vector<std::byte> raw(static_cast<size_t>((end - begin) * dtype_bytes(type)));
    source_->read(stored, begin, end, raw.data());
    convert_elements(raw.data(), type, out, DType::f32, end - begin);
  }
  check_finite({out, static_cast<size_t>(end - begin)}, source_->where(stored));
}

std::vector<float> Adapter::read(const std::string& stored) const {
  const int64_t elements = source_->require(stored).elements;
  std::vector<float> wide(static_cast<size_t>(elements));
  read(stored, 0, elements, wide.data());
  return wide;
}

std::vector<float> Adapter::values_of_added(const std::string& name) const { return read(created_.at(name)); }

LoraConfig Adapter::lora(const std::vector<std::string>& head) const {
  const std::string where = (dir_ / kAdapterConfig).string();
  if (bias_ != "none")
    fail(ErrorCode::bad_model, Remedy{"merge it with `brim models merge` and train the result"},
         "{}: \"bias\" is {}: training of biases is not supported", where, io::quote_text(bias_));
  for (const auto& [name, stored] : replaced_)
    if (std::none_of(head.begin(), head.end(),
                     [&, name = name](const std::string& h) { return h == name || h.substr(h.find('.') + 1) == name; }))
      fail(ErrorCode::bad_model, Remedy{"merge it with `brim models merge` and train the result"},
           "{}: replaces a tensor that is not part of the head, which training with LoRA does not support",
           source_->where(stored));
  LoraConfig config = config_;
  for (const auto& [name, pair] : pairs_) {
    config.targets.push_back(pair.module);
    if (pair.rank != config.rank) config.ranks[pair.module] = static_cast<double>(pair.rank);
    if (pair.alpha != config.alpha) config.alphas[pair.module] = pair.alpha;
  }
  return config;
}

std::optional<Adapter::OwnTensor> Adapter::own_tensor(std::string_view name) const {
  for (const auto* files : {&replaced_, &created_})
    if (const auto found = files->find(name); found != files->end())
      return OwnTensor{source_->where(found->second), source_->require(found->second).shape, read(found->second)};
  return std::nullopt;
}

std::set<std::string> Adapter::changed() const {
  std::set<std::string> names;
  for (const auto& [name, pair] : pairs_) names.insert(name);
  for (const auto* map : {&replaced_, &created_})
    for (const auto& [name, stored] : *map) names.insert(name);
  return names;
}

std::optional<int64_t> Adapter::rank_of(std::string_view name) const {
  const auto found = pairs_.find(name);
  return found == pairs_.end() ? std::nullopt : std::optional(found->second.rank);
}

std::optional<Adapter::Product> Adapter::product(std::string_view name) const {
  const auto found = pairs_.find(name);
  if (found == pairs_.end()) return std::nullopt;
  const Pair& pair = found->second;
  return Product{pair.rank, pair.scale, read(pair.a), read(pair.b)};
}

void Adapter::apply(std::string_view name, std::vector<float>& values) const {
  apply(name, 0, static_cast<int64_t>(values.size()), values.data());
}

void Adapter::apply(std::string_view name, int64_t begin, int64_t end, float* values) const {
  for (const auto* map : {&created_, &replaced_})
    if (const auto other = map->find(name); other != map->end()) return read(other->second, begin, end, values);
  const auto found = pairs_.find(name);
  if (found == pairs_.end() || begin >= end) return;
  const Pair& pair = found->second;
  const std::vector<float> a = read(pair.a);
  const int64_t rank = pair.rank, cols = static_cast<int64_t>(a.size()) / rank;
  const int64_t first = begin / cols, last = (end + cols - 1) / cols;
  std::vector<float> b(static_cast<size_t>((last - first) * rank)), row(static_cast<size_t>(cols));
  read(pair.b, first * rank, last * rank, b.data());
  for (int64_t n = first; n < last; ++n) {
    std::fill(row.begin(), row.end(), 0.0f);
    const int64_t from = std::max<int64_t>(0, begin - n * cols), to = std::min(cols, end - n * cols);
    for (int64_t r = 0; r < rank; ++r) {
      const float factor = b[static_cast<size_t>((n - first) * rank + r)];
      const float* const down = a.data() + r * cols;
      for (int64_t k = from; k < to; ++k) row[static_cast<size_t>(k)] += factor * down[k];
    }
    for (int64_t k = from; k < to; ++k) values[n * cols + k - begin] += pair.scale * row[static_cast<size_t>(k)];
  }
  check_finite({values, static_cast<size_t>(end - begin)}, source_->where(pair.a));
}

// A head that the base model lacks or that has other classes.
ConfigUpdate Adapter::new_head(const HfConfig& base) const {
  int64_t classes = 0;
  for (const auto& [name, shape] : added_)
    if (is_output_layer(name) && !shape.empty()) classes = shape[0];
  ConfigUpdate update;
  if (classes == 0) return update;
  update.head = tags_ ? HeadKind::token : HeadKind::sequence;
  if (base.num_labels == classes) return update;
  update.labels.emplace();
  for (int64_t i = 0; i < classes; ++i) update.labels->push_back(fmt::format("LABEL_{}", i));
  return update;
}

HfConfig Adapter::config_with_head(const HfConfig& base, ConfigUpdate* out) const {
  std::error_code ignored;
  if (fs::exists(dir_ / "config.json", ignored)) {
    HfConfig own = load_hf_config(dir_);
    const auto require = [&](const char* key, const auto& adapters, const auto& bases) {
      if (adapters != bases)
        fail(ErrorCode::bad_model, "{}: \"{}\" is {}, that of {} is {}; the adapter belongs to another base model",
             own.where, key, adapters, base.where, bases);
    };
    require("model_type", own.model_type, base.model_type);
    require("hidden_size", own.hidden_size, base.hidden_size);
    require("num_hidden_layers", own.num_layers, base.num_layers);
    require("vocab_size", own.vocab_size, base.vocab_size);
    return own;
  }
  const ConfigUpdate update = new_head(base);
  if (out != nullptr) *out = update;
  return update.head ? parse_hf_config(updated_config(base, update), base.where) : base;
}

}  // namespace brim::hub
