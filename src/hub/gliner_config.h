// SPDX-License-Identifier: Apache-2.0
// Reads gliner_config.json of a GLiNER directory: an encoder with a head that scores spans of words for labels given as
// text. Unsupported variants throw Error(bad_model) naming the file, the key and the value. Does not read weights.
#pragma once
#include <cstdint>
#include <filesystem>
#include <string>

#include "hub/hf_config.h"

namespace brim::hub {

// Prefix of the encoder's tensors in the weight file.
inline constexpr const char* kGlinerEncoder = "token_rep_layer.bert_layer.model.";

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
};

bool is_gliner(const std::filesystem::path& dir);
GlinerConfig load_gliner_config(const std::filesystem::path& dir);  // DIR/gliner_config.json

// The encoder's configuration: from gliner_config.json, or from the directory of the encoder it names, which must exist
// here (bad_model, with the command to download it).
HfConfig load_gliner_encoder(const std::filesystem::path& dir);
// Directory of the tokenizer files: `dir` or that of the encoder it names. `dir` may be any model directory.
std::filesystem::path tokenizer_dir(const std::filesystem::path& dir);

}  // namespace brim::hub
