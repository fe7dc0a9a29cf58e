// SPDX-License-Identifier: Apache-2.0
// Reads gliner_config.json of a GLiNER directory: an encoder with a head that scores spans of words for labels given as
// text. Unsupported variants throw Error(bad_model) naming the file, the key and the value. Does not read weights.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "hub/hf_config.h"

namespace brim::hub {

// Prefixes of the encoders' tensors in the weight file: of texts, and of labels in a bi-encoder.
inline constexpr const char* kGlinerEncoder = "token_rep_layer.bert_layer.model.";
inline constexpr const char* kGlinerLabelsEncoder = "token_rep_layer.labels_encoder.model.";

struct GlinerConfig {
  enum class Pooling : uint8_t { first, last, mean, max };  // combines a word's tokens
  std::string where;                                        // the file, for messages
  bool token_level = false;                                 // scores words instead of spans
  int max_width = 12;                                       // words per span; not with token_level
  int hidden_size = 512;                                    // width of the head
  int rnn_layers = 1;                                       // bidirectional LSTM over the words; 0: none
  int max_words = 384;                                      // per window
  Pooling pooling = Pooling::first;
  bool embed_marker = true;  // a label's vector is that of its marker; false: of the token after it
  std::string label_marker, text_marker;
  int label_marker_id = -1;  // -1: looked up in the tokenizer
  std::string encoder;       // name on the hub or directory
  std::string encoder_json;  // the encoder's config.json; empty: in the directory of `encoder`
  // Bi-encoders: the same of the encoder that reads the labels. Empty: `encoder` reads them with each text.
  std::string labels_encoder, labels_encoder_json;
};

bool is_gliner(const std::filesystem::path& dir);
GlinerConfig load_gliner_config(const std::filesystem::path& dir);  // DIR/gliner_config.json

// A bi-encoder's encoder of labels is opened like a model directory, with this path, which need not exist: its
// configuration, weights and tokenizer are read from the files of `dir`.
std::filesystem::path labels_encoder_dir(const std::filesystem::path& dir);
bool is_labels_encoder(const std::filesystem::path& dir);

// The encoder's configuration: from gliner_config.json, or from the directory of the encoder it names, which must exist
// here (bad_model, with the command to download it). `dir` may be a labels_encoder_dir().
HfConfig load_gliner_encoder(const std::filesystem::path& dir);
// Directory of the tokenizer files: `dir` or that of the encoder it names. `dir` may be any model directory.
std::filesystem::path tokenizer_dir(const std::filesystem::path& dir);
// Directories besides `dir` whose tokenizer or configuration a GLiNER model reads, if they are here.
std::vector<std::filesystem::path> directories_read_by(const std::filesystem::path& dir);

}  // namespace brim::hub
