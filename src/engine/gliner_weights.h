// SPDX-License-Identifier: Apache-2.0
// The matrices of a GLiNER head as read from its files, in the form in which the head is computed: products that are
// linear in words or labels alone are split off. Not packed for any device.
#pragma once
#include <cstdint>
#include <filesystem>
#include <vector>

#include "hub/gliner_config.h"

namespace brim::engine {

// y = x Wᵀ + b
struct HeadMatrix {
  int64_t N = 0, K = 0;  // 0: the model has none
  std::vector<float> values, bias;
  explicit operator bool() const { return N > 0; }
};

// Linear, ReLU, linear.
struct HeadMlp {
  HeadMatrix up, down;
};

// One direction of a layer. Rows of its matrices: input, forget, cell and output gates.
struct HeadLstm {
  HeadMatrix input, recurrent;
};

struct GlinerWeights {
  int64_t encoder_size = 0, labels_size = 0;
  HeadMatrix projection, labels_projection;  // none if encoder and head have the same size
  std::vector<HeadLstm> lstm;                // two per layer: forward, backward
  // Span models. The first product of a span is linear in its two ends.
  HeadMlp start, end, label;
  HeadMatrix span_start, span_end;
  // A score is the dot product of a label's vector p and W z + b: W is applied to p, of which there are fewer.
  HeadMatrix span_out_turned;
  std::vector<float> span_out_bias;
  // Word models.
  HeadMatrix word, word_label, mix_word, mix_label, mix_both, mix_out;
};

// Throws bad_model if tensors are missing or do not match the configuration. `encoder_size`, `labels_size`: hidden
// sizes of the encoders; the second is 0 if the model is no bi-encoder.
GlinerWeights read_gliner_weights(const std::filesystem::path& dir, const hub::GlinerConfig& config,
                                  int64_t encoder_size, int64_t labels_size);

}  // namespace brim::engine
