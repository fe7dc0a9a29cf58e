// SPDX-License-Identifier: Apache-2.0
#include "engine/gliner_weights.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "base/error.h"
#include "hub/weights.h"
#include "tensor/dtype.h"

namespace brim::engine {
namespace {

using tensor::DType;

class HeadReader {
 public:
  explicit HeadReader(const hub::WeightSource& source) : source_(source) {}

  // Reads a tensor of this shape ({n} or {n, m}) as fp32.
  std::vector<float> read(const std::string& name, std::vector<int64_t> shape) const {
    const hub::StoredTensor& stored = source_.require(name);
    if (!std::equal(stored.shape.begin(), stored.shape.end(), shape.begin(), shape.end()))
      fail(ErrorCode::bad_model, "{}: has shape {}, gliner_config.json requires {}", source_.where(name),
           hub::shape_text(stored.shape), hub::shape_text(shape));
    const hub::LoadedTensor tensor = source_.get(name);
    if (tensor.dtype != DType::f32 && tensor.dtype != DType::f16 && tensor.dtype != DType::bf16)
      fail(ErrorCode::bad_model, "{}: type {} cannot be used as a weight", source_.where(name),
           tensor::dtype_name(tensor.dtype));
    std::vector<float> values(static_cast<size_t>(stored.elements));
    tensor::convert_elements(tensor.data, tensor.dtype, values.data(), DType::f32, stored.elements);
    for (const float value : values)
      if (!std::isfinite(value)) fail(ErrorCode::bad_model, "{}: contains NaN or infinity", source_.where(name));
    return values;
  }
  HeadMatrix linear(const std::string& name, int64_t N, int64_t K) const {
    return {N, K, read(name + ".weight", {N, K}), read(name + ".bias", {N})};
  }
  HeadMlp mlp(const std::string& name, int64_t size) const {
    return {linear(name + ".0", 4 * size, size), linear(name + ".3", size, 4 * size)};
  }
  // Columns [first, first + count) of a matrix [N, K].
  static HeadMatrix columns(const std::vector<float>& all, int64_t N, int64_t K, int64_t first, int64_t count,
                            std::vector<float> bias = {}) {
    HeadMatrix part{N, count, std::vector<float>(static_cast<size_t>(N * count)), std::move(bias)};
    for (int64_t n = 0; n < N; ++n) std::copy_n(all.data() + n * K + first, count, part.values.data() + n * count);
    return part;
  }

 private:
  const hub::WeightSource& source_;
};

void read_lstm(const HeadReader& reader, const hub::GlinerConfig& config, GlinerWeights& weights) {
  const int64_t D = config.hidden_size, h = D / 2;
  for (int layer = 0; layer < config.rnn_layers; ++layer)
    for (const char* direction : {"", "_reverse"}) {
      const auto read = [&](const char* kind, std::vector<int64_t> shape) {
        return reader.read(fmt::format("rnn.lstm.{}_l{}{}", kind, layer, direction), std::move(shape));
      };
      std::vector<float> bias = read("bias_ih", {4 * h});
      const std::vector<float> more = read("bias_hh", {4 * h});
      for (size_t i = 0; i < bias.size(); ++i) bias[i] += more[i];
      weights.lstm.push_back(
          {{4 * h, D, read("weight_ih", {4 * h, D}), std::move(bias)}, {4 * h, h, read("weight_hh", {4 * h, h}), {}}});
    }
}

void read_spans(const HeadReader& reader, int64_t D, GlinerWeights& weights) {
  const int64_t F = 4 * D;
  const std::string spans = "span_rep_layer.span_rep_layer.";
  weights.start = reader.mlp(spans + "project_start", D);
  weights.end = reader.mlp(spans + "project_end", D);
  weights.label = reader.mlp("prompt_rep_layer", D);
  const std::vector<float> both = reader.read(spans + "out_project.0.weight", {F, 2 * D});
  weights.span_start = HeadReader::columns(both, F, 2 * D, 0, D, reader.read(spans + "out_project.0.bias", {F}));
  weights.span_end = HeadReader::columns(both, F, 2 * D, D, D);
  const std::vector<float> out = reader.read(spans + "out_project.3.weight", {D, F});
  std::vector<float> turned(out.size());
  for (int64_t d = 0; d < D; ++d)
    for (int64_t n = 0; n < F; ++n) turned[static_cast<size_t>(n * D + d)] = out[static_cast<size_t>(d * F + n)];
  weights.span_out_turned = {F, D, std::move(turned), {}};
  weights.span_out_bias = reader.read(spans + "out_project.3.bias", {D});
}

void read_words(const HeadReader& reader, int64_t D, GlinerWeights& weights) {
  const int64_t F = 4 * D;
  weights.word = reader.linear("scorer.proj_token", 2 * D, D);
  weights.word_label = reader.linear("scorer.proj_label", 2 * D, D);
  // Columns of this matrix: word, label, product of both.
  const std::vector<float> all = reader.read("scorer.out_mlp.0.weight", {F, 3 * D});
  weights.mix_word = HeadReader::columns(all, F, 3 * D, 0, D, reader.read("scorer.out_mlp.0.bias", {F}));
  weights.mix_label = HeadReader::columns(all, F, 3 * D, D, D);
  weights.mix_both = HeadReader::columns(all, F, 3 * D, 2 * D, D);
  weights.mix_out = reader.linear("scorer.out_mlp.3", 3, F);
}

}  // namespace

GlinerWeights read_gliner_weights(const std::filesystem::path& dir, const hub::GlinerConfig& config,
                                  int64_t encoder_size, int64_t labels_size) {
  const auto source = hub::WeightSource::open(dir);
  const HeadReader reader(*source);
  GlinerWeights weights;
  weights.encoder_size = encoder_size;
  weights.labels_size = labels_size;
  const int64_t D = config.hidden_size;
  if (encoder_size != D) weights.projection = reader.linear("token_rep_layer.projection", D, encoder_size);
  if (labels_size > 0 && labels_size != D)
    weights.labels_projection = reader.linear("token_rep_layer.labels_projection", D, labels_size);
  if (labels_size == 0) read_lstm(reader, config, weights);  // the reference does not use that of bi-encoders
  if (config.token_level)
    read_words(reader, D, weights);
  else
    read_spans(reader, D, weights);
  source->check_unchanged();
  return weights;
}

}  // namespace brim::engine
