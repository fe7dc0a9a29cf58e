// SPDX-License-Identifier: Apache-2.0
// Reads config.json of a Hugging Face model directory into one struct, independent of the family's key names. Defaults
// are those of transformers' config classes; contradictory or unsupported values throw Error(bad_model) naming the
// file, the key and the value, so later code does not check them again.
#pragma once
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace brim::hub {

enum class Family {
#define BRIM_FAMILY(name) name,
#include "hub/families.inc"
};
enum class HeadKind { encoder, sequence, token };
enum class HiddenAct { gelu_erf, gelu_tanh, quick_gelu, relu, silu, tanh };

const char* family_name(Family family);

// Int8 directories written by Brim. A quantization_config of another tool is rejected.
struct QuantizationConfig {
  static constexpr const char* kMethod = "brim-int8";
  int bits = 8;  // symmetric weights with one scale per row (output channel), activations quantized per row at run time
};

struct HfConfig {
  std::string where;  // the file, for messages
  std::string model_type;
  Family family = Family::bert;
  std::vector<std::string> architectures;

  int hidden_size = 0;
  int num_layers = 0;
  int num_heads = 0;
  int intermediate_size = 0;
  int vocab_size = 0;
  int max_position_embeddings = 0;
  int type_vocab_size = 0;  // 0 in DistilBERT, which has no token types
  int pad_token_id = 0;
  bool positions_after_padding = false;
  float layer_norm_eps = 1e-12f;
  float initializer_range = 0.02f;
  float hidden_dropout = 0.1f;
  float attention_dropout = 0.1f;
  float classifier_dropout = 0.1f;        // before a sequence head
  float token_classifier_dropout = 0.1f;  // before a token head
  std::string hidden_act;
  HiddenAct activation = HiddenAct::gelu_erf;
  std::string position_embedding_type;  // always "absolute"

  std::vector<std::string> id2label;    // by id, without gaps or duplicates; LABEL_0, LABEL_1 if the file has no names
  std::map<std::string, int> label2id;  // the inverse of id2label
  int num_labels = 0;                   // id2label.size()
  bool labels_given = false;            // the file has id2label or num_labels
  std::string problem_type;             // "", regression, single_label_classification, multi_label_classification
  bool raw_scores = false;              // the head's output is the score: regression, and rerankers configured this way
  std::string tokenizer_class;          // "" if absent
  std::optional<QuantizationConfig> quantization;
  std::string raw;  // the file's text

  int head_size() const { return hidden_size / num_heads; }
  // Position of a sequence's first token: RoBERTa starts at pad_token_id + 1.
  int first_position() const { return positions_after_padding ? pad_token_id + 1 : 0; }
  // Maximum number of tokens per sequence, including special tokens.
  int max_tokens() const { return max_position_embeddings - first_position(); }
};

HfConfig parse_hf_config(std::string_view json, const std::string& where);
HfConfig load_hf_config(const std::filesystem::path& dir);  // DIR/config.json

// Keys of DIR/config.json with this value, or with a half or a third of it (stacked matrices), formatted for a message:
// "vocab_size" is 96. Empty if there are none.
std::string keys_of_size(const std::filesystem::path& dir, int64_t size);

// Kind of head on the encoder: from `architectures` or, if missing, from the weights' names. Pre-training heads count
// as a plain encoder.
HeadKind head_kind(const HfConfig& config, const std::vector<std::string>& weight_names);

// Changes to a config.json; all other keys are kept.
struct ConfigUpdate {
  std::optional<std::vector<std::string>> labels;  // writes id2label, label2id; drops num_labels
  std::optional<HeadKind> head;                    // writes architectures for the family
  std::optional<int> num_layers;                   // for a student with fewer layers
  std::optional<std::string> problem_type;         // "" removes it
  std::optional<std::string> torch_dtype;          // "float32", "float16", "bfloat16"
  enum class Quantization { keep, remove, int8 } quantization = Quantization::keep;
  std::vector<std::pair<std::string, std::string>> extra;  // key and the JSON text of its value
};
std::string updated_config(const HfConfig& config, const ConfigUpdate& update);
void write_config(const HfConfig& config, const ConfigUpdate& update, const std::filesystem::path& dir);

// The tokenizer files that exist in `dir`, found by their usual names.
std::vector<std::filesystem::path> tokenizer_files(const std::filesystem::path& dir);
void copy_tokenizer_files(const std::filesystem::path& from, const std::filesystem::path& to);

}  // namespace brim::hub
