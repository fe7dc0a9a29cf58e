// SPDX-License-Identifier: Apache-2.0
#include "engine/gliner_head.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>

#include "base/error.h"
#include "device/stream.h"
#include "ops/linear.h"
#include "tensor/dtype.h"

namespace brim::engine {
namespace {

using tensor::DType;
using tensor::TensorView;

constexpr size_t kAlignment = 64;
constexpr int64_t kSpansPerBlock = 64;  // spans scored by one product

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

// Reads a tensor of this shape ({n} or {n, m}) as fp32.
std::vector<float> read_tensor(const hub::WeightSource& source, const std::string& name, std::vector<int64_t> shape) {
  const hub::StoredTensor& stored = source.require(name);
  if (!std::equal(stored.shape.begin(), stored.shape.end(), shape.begin(), shape.end()))
    fail(ErrorCode::bad_model, "{}: has shape {}, gliner_config.json requires {}", source.where(name),
         hub::shape_text(stored.shape), hub::shape_text(shape));
  const hub::LoadedTensor tensor = source.get(name);
  if (tensor.dtype != DType::f32 && tensor.dtype != DType::f16 && tensor.dtype != DType::bf16)
    fail(ErrorCode::bad_model, "{}: type {} cannot be used as a weight", source.where(name),
         tensor::dtype_name(tensor.dtype));
  std::vector<float> values(static_cast<size_t>(stored.elements));
  tensor::convert_elements(tensor.data, tensor.dtype, values.data(), DType::f32, stored.elements);
  for (const float value : values)
    if (!std::isfinite(value)) fail(ErrorCode::bad_model, "{}: contains NaN or infinity", source.where(name));
  return values;
}

TensorView matrix_view(const float* data, int64_t rows, int64_t cols) {
  return TensorView(const_cast<float*>(data), DType::f32, {rows, cols});
}

struct AlignedDelete {
  void operator()(std::byte* p) const { ::operator delete[](p, std::align_val_t(kAlignment)); }
};
using AlignedBytes = std::unique_ptr<std::byte[], AlignedDelete>;
AlignedBytes aligned_bytes(int64_t bytes) {
  const auto size = static_cast<size_t>(std::max<int64_t>(bytes, 1));
  return AlignedBytes(static_cast<std::byte*>(::operator new[](size, std::align_val_t(kAlignment))));
}

}  // namespace

// Rows of fp32 vectors.
struct GlinerHead::Rows {
  int64_t count = 0, size = 0;
  std::vector<float> data;
  Rows() = default;
  Rows(int64_t n, int64_t width) : count(n), size(width), data(static_cast<size_t>(n * width)) {}
  float* row(int64_t i) { return data.data() + i * size; }
  const float* row(int64_t i) const { return data.data() + i * size; }
};

// y = act(x Wᵀ + b), packed for this CPU.
struct GlinerHead::Matrix {
  ops::LinearWeight w;
  AlignedBytes packed;
  std::vector<float> bias;  // may be empty

  Matrix(const float* values, int64_t N, int64_t K, std::vector<float> b) : bias(std::move(b)) {
    w.N = N;
    w.K = K;
    w.isa = device::best_isa();
    const int64_t bytes = ops::linear_packed_bytes(N, K, w.precision, w.isa);
    packed = aligned_bytes(bytes);
    ops::linear_pack(matrix_view(values, N, K), {}, w.precision, w.isa, packed.get(), nullptr);
    w.data = TensorView(packed.get(), DType::u8, {bytes});
  }
  int64_t bytes() const { return w.data.bytes() + static_cast<int64_t>(bias.size() * sizeof(float)); }

  void apply(const float* x, int64_t rows, float* y, ops::Activation act = ops::Activation::none,
             const float* residual = nullptr) const {
    if (rows == 0) return;
    device::CpuStream stream(nullptr, w.isa);
    ops::LinearArgs args;
    args.x = matrix_view(x, rows, w.K);
    args.w = w;
    if (!bias.empty()) args.bias = TensorView(const_cast<float*>(bias.data()), DType::f32, {w.N});
    if (residual != nullptr) args.residual = matrix_view(residual, rows, w.N);
    args.y = matrix_view(y, rows, w.N);
    args.activation = act;
    const int64_t bytes = ops::linear_scratch_bytes(stream, rows, w.N, w.K, w.precision, 1);
    const AlignedBytes scratch = aligned_bytes(bytes);
    if (bytes > 0) args.scratch = TensorView(scratch.get(), DType::u8, {bytes});
    ops::linear(stream, args);
  }
  Rows apply(const Rows& x, ops::Activation act = ops::Activation::none) const {
    Rows y(x.count, w.N);
    apply(x.data.data(), x.count, y.data.data(), act);
    return y;
  }
};

// Linear, ReLU, linear.
struct GlinerHead::Mlp {
  Matrix up, down;
  Rows apply(const Rows& x) const { return down.apply(up.apply(x, ops::Activation::relu)); }
  static std::unique_ptr<Mlp> load(const hub::WeightSource& source, const std::string& name, int64_t size) {
    const auto part = [&](const char* index, int64_t N, int64_t K) {
      return Matrix(read_tensor(source, name + index + ".weight", {N, K}).data(), N, K,
                    read_tensor(source, name + index + ".bias", {N}));
    };
    return std::make_unique<Mlp>(Mlp{part(".0", 4 * size, size), part(".3", size, 4 * size)});
  }
};

// One direction of a layer. Rows of its matrices: input, forget, cell and output gates.
struct GlinerHead::Lstm {
  Matrix input, recurrent;
};

GlinerHead::GlinerHead(const hub::GlinerConfig& config) : config_(config) {}
GlinerHead::~GlinerHead() = default;

std::unique_ptr<const GlinerHead> GlinerHead::load(const std::filesystem::path& dir, const hub::GlinerConfig& config,
                                                   int64_t encoder_size) {
  const auto source = hub::WeightSource::open(dir);
  std::unique_ptr<GlinerHead> head(new GlinerHead(config));
  head->encoder_size_ = encoder_size;
  const int64_t D = config.hidden_size;
  const auto count = [&](const auto& matrix) { head->bytes_ += matrix.bytes(); };
  if (encoder_size != D) {
    const std::string name = "token_rep_layer.projection.";
    head->projection_ = std::make_unique<Matrix>(read_tensor(*source, name + "weight", {D, encoder_size}).data(), D,
                                                 encoder_size, read_tensor(*source, name + "bias", {D}));
    count(*head->projection_);
  }
  for (int layer = 0; layer < config.rnn_layers; ++layer) {
    for (const char* direction : {"", "_reverse"}) {
      const int64_t h = D / 2;
      const auto read = [&](const char* kind, std::vector<int64_t> shape) {
        return read_tensor(*source, fmt::format("rnn.lstm.{}_l{}{}", kind, layer, direction), std::move(shape));
      };
      std::vector<float> bias = read("bias_ih", {4 * h});
      const std::vector<float> more = read("bias_hh", {4 * h});
      for (size_t i = 0; i < bias.size(); ++i) bias[i] += more[i];
      head->lstm_.push_back({Matrix(read("weight_ih", {4 * h, D}).data(), 4 * h, D, std::move(bias)),
                             Matrix(read("weight_hh", {4 * h, h}).data(), 4 * h, h, {})});
      count(head->lstm_.back().input);
      count(head->lstm_.back().recurrent);
    }
  }
  if (config.token_level)
    head->load_words(*source);
  else
    head->load_spans(*source);
  source->check_unchanged();
  return head;
}

void GlinerHead::load_spans(const hub::WeightSource& source) {
  const int64_t D = config_.hidden_size, F = 4 * D;
  const std::string spans = "span_rep_layer.span_rep_layer.";
  start_ = Mlp::load(source, spans + "project_start", D);
  end_ = Mlp::load(source, spans + "project_end", D);
  label_ = Mlp::load(source, "prompt_rep_layer", D);
  const std::vector<float> both = read_tensor(source, spans + "out_project.0.weight", {F, 2 * D});
  std::vector<float> first(static_cast<size_t>(F * D)), second(first.size());
  for (int64_t n = 0; n < F; ++n) {
    std::copy_n(both.data() + n * 2 * D, D, first.data() + n * D);
    std::copy_n(both.data() + n * 2 * D + D, D, second.data() + n * D);
  }
  span_start_ = std::make_unique<Matrix>(first.data(), F, D, read_tensor(source, spans + "out_project.0.bias", {F}));
  span_end_ = std::make_unique<Matrix>(second.data(), F, D, std::vector<float>());
  // A score is the dot product of a label's vector p and W z + b: W is applied to p, of which there are fewer.
  const std::vector<float> out = read_tensor(source, spans + "out_project.3.weight", {D, F});
  std::vector<float> turned(out.size());
  for (int64_t d = 0; d < D; ++d)
    for (int64_t n = 0; n < F; ++n) turned[static_cast<size_t>(n * D + d)] = out[static_cast<size_t>(d * F + n)];
  span_out_turned_ = std::make_unique<Matrix>(turned.data(), F, D, std::vector<float>());
  span_out_bias_ = read_tensor(source, spans + "out_project.3.bias", {D});
  for (const auto* mlp : {&start_, &end_, &label_}) bytes_ += (*mlp)->up.bytes() + (*mlp)->down.bytes();
  for (const auto* matrix : {&span_start_, &span_end_, &span_out_turned_}) bytes_ += (*matrix)->bytes();
}

void GlinerHead::load_words(const hub::WeightSource& source) {
  const int64_t D = config_.hidden_size, F = 4 * D;
  const auto matrix = [&](const std::string& name, int64_t N, int64_t K) {
    return std::make_unique<Matrix>(read_tensor(source, name + ".weight", {N, K}).data(), N, K,
                                    read_tensor(source, name + ".bias", {N}));
  };
  word_ = matrix("scorer.proj_token", 2 * D, D);
  word_label_ = matrix("scorer.proj_label", 2 * D, D);
  // Columns of this matrix: word, label, product of both.
  const std::vector<float> all = read_tensor(source, "scorer.out_mlp.0.weight", {F, 3 * D});
  std::vector<float> part(static_cast<size_t>(F * D));
  const auto columns = [&](int64_t first) {
    for (int64_t n = 0; n < F; ++n) std::copy_n(all.data() + n * 3 * D + first, D, part.data() + n * D);
    return part.data();
  };
  mix_word_ = std::make_unique<Matrix>(columns(0), F, D, read_tensor(source, "scorer.out_mlp.0.bias", {F}));
  mix_label_ = std::make_unique<Matrix>(columns(D), F, D, std::vector<float>());
  mix_both_ = std::make_unique<Matrix>(columns(2 * D), F, D, std::vector<float>());
  mix_out_ = matrix("scorer.out_mlp.3", 3, F);
  for (const auto* one : {&word_, &word_label_, &mix_word_, &mix_label_, &mix_both_, &mix_out_})
    bytes_ += (*one)->bytes();
}

int64_t GlinerHead::scratch_bytes(const hub::GlinerConfig& config, int64_t encoder_size, int64_t words,
                                  int64_t labels) {
  const int64_t D = config.hidden_size, F = 4 * D;
  const int64_t tokens = config.pooling == hub::GlinerConfig::Pooling::first ? words : 2 * words;
  int64_t floats = tokens * (encoder_size + D) + words * (config.rnn_layers > 0 ? 6 * D : 0);
  floats += words * (2 * F + 4 * D + F) + labels * (2 * F + 4 * D);
  floats += config.token_level ? kSpansPerBlock * (2 * F + D) + 3 * words * labels : kSpansPerBlock * (F + labels);
  return static_cast<int64_t>(sizeof(float)) * floats * 2;  // and packed copies of the products' inputs
}

GlinerHead::Rows GlinerHead::project(const std::vector<const float*>& rows) const {
  Rows gathered(static_cast<int64_t>(rows.size()), encoder_size_);
  for (size_t i = 0; i < rows.size(); ++i) std::copy_n(rows[i], encoder_size_, gathered.row(static_cast<int64_t>(i)));
  return projection_ ? projection_->apply(gathered) : gathered;
}

GlinerHead::Rows GlinerHead::label_rows(const HeadWindow& window) const {
  std::vector<const float*> rows;
  for (const int32_t token : window.labels) rows.push_back(window.hidden + token * encoder_size_);
  return project(rows);
}

// Pooled vectors of all words; zero for words without tokens, as in the reference.
GlinerHead::Rows GlinerHead::word_rows(std::span<const HeadWindow> windows) const {
  using Pooling = hub::GlinerConfig::Pooling;
  std::vector<const float*> rows;
  std::vector<int64_t> ends;  // one past the last row of each word
  for (const HeadWindow& window : windows) {
    for (const WordTokens& word : window.words) {
      const bool all = config_.pooling == Pooling::mean || config_.pooling == Pooling::max;
      const int32_t used = all ? word.count : std::min(word.count, 1);
      const int32_t first = config_.pooling == Pooling::last ? word.first + word.count - used : word.first;
      for (int32_t i = 0; i < used; ++i) rows.push_back(window.hidden + (first + i) * encoder_size_);
      ends.push_back(static_cast<int64_t>(rows.size()));
    }
  }
  const Rows tokens = project(rows);
  Rows words(static_cast<int64_t>(ends.size()), tokens.size);
  for (int64_t w = 0; w < words.count; ++w) {
    const int64_t begin = w == 0 ? 0 : ends[static_cast<size_t>(w) - 1], end = ends[static_cast<size_t>(w)];
    float* out = words.row(w);
    for (int64_t t = begin; t < end; ++t)
      for (int64_t d = 0; d < words.size; ++d) {
        const float value = tokens.row(t)[d];
        out[d] = t == begin ? value : config_.pooling == Pooling::max ? std::max(out[d], value) : out[d] + value;
      }
    if (config_.pooling == Pooling::mean && end > begin)
      for (int64_t d = 0; d < words.size; ++d) out[d] /= static_cast<float>(end - begin);
  }
  return words;
}

// All windows advance together, the longest first, so that a step is one product for those not finished.
void GlinerHead::run_lstm(std::span<const HeadWindow> windows, Rows& words) const {
  const int64_t h = config_.hidden_size / 2;
  std::vector<int64_t> first(windows.size());
  for (size_t i = 1; i < windows.size(); ++i)
    first[i] = first[i - 1] + static_cast<int64_t>(windows[i - 1].words.size());
  std::vector<size_t> order(windows.size());
  std::iota(order.begin(), order.end(), size_t{0});
  const auto length = [&](size_t i) { return static_cast<int64_t>(windows[i].words.size()); };
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return length(a) > length(b); });
  const auto n = static_cast<int64_t>(order.size());
  const int64_t steps = n == 0 ? 0 : length(order[0]);
  for (size_t l = 0; l < lstm_.size(); l += 2) {
    Rows next(words.count, words.size);
    for (size_t direction = 0; direction < 2; ++direction) {
      const Lstm& lstm = lstm_[l + direction];
      const Rows inputs = lstm.input.apply(words);
      Rows state(n, h), cell(n, h), gates(n, 4 * h);
      int64_t active = n;
      for (int64_t step = 0; step < steps; ++step) {
        while (length(order[static_cast<size_t>(active) - 1]) <= step) --active;
        lstm.recurrent.apply(state.data.data(), active, gates.data.data());
        for (int64_t i = 0; i < active; ++i) {
          const size_t window = order[static_cast<size_t>(i)];
          const int64_t word = first[window] + (direction == 0 ? step : length(window) - 1 - step);
          const float *in = inputs.row(word), *g = gates.row(i);
          float *c = cell.row(i), *s = state.row(i);
          for (int64_t k = 0; k < h; ++k) {
            c[k] =
                sigmoid(g[h + k] + in[h + k]) * c[k] + sigmoid(g[k] + in[k]) * std::tanh(g[2 * h + k] + in[2 * h + k]);
            s[k] = sigmoid(g[3 * h + k] + in[3 * h + k]) * std::tanh(c[k]);
          }
          std::copy_n(s, h, next.row(word) + static_cast<int64_t>(direction) * h);
        }
      }
    }
    words = std::move(next);
  }
}

void GlinerHead::score(std::span<const HeadWindow> windows, float threshold,
                       std::vector<std::vector<SpanScore>>& found) const {
  found.resize(windows.size());
  Rows words = word_rows(windows);
  if (words.count == 0) return;
  run_lstm(windows, words);
  if (config_.token_level)
    score_words(windows, words, threshold, found);
  else
    score_spans(windows, words, threshold, found);
}

void GlinerHead::score_spans(std::span<const HeadWindow> windows, const Rows& words, float threshold,
                             std::vector<std::vector<SpanScore>>& found) const {
  const Rows starts = [&] {
    Rows rows = start_->apply(words);
    for (float& value : rows.data) value = std::max(value, 0.0f);
    return span_start_->apply(rows);
  }();
  const Rows ends = [&] {
    Rows rows = end_->apply(words);
    for (float& value : rows.data) value = std::max(value, 0.0f);
    return span_end_->apply(rows);
  }();
  const int64_t F = starts.size;
  Rows block(kSpansPerBlock, F), scores;
  std::vector<std::pair<int32_t, int32_t>> spans;
  int64_t base = 0;
  for (size_t i = 0; i < windows.size(); ++i) {
    const auto W = static_cast<int32_t>(windows[i].words.size());
    const Rows labels = label_->apply(label_rows(windows[i])), turned = span_out_turned_->apply(labels);
    std::vector<float> bias(static_cast<size_t>(labels.count));
    for (int64_t c = 0; c < labels.count; ++c)
      bias[static_cast<size_t>(c)] =
          std::inner_product(labels.row(c), labels.row(c) + labels.size, span_out_bias_.begin(), 0.0f);
    const Matrix by_label(turned.data.data(), labels.count, F, std::move(bias));
    scores = Rows(kSpansPerBlock, labels.count);
    const auto flush = [&] {
      by_label.apply(block.data.data(), static_cast<int64_t>(spans.size()), scores.data.data());
      for (size_t s = 0; s < spans.size(); ++s)
        for (int64_t c = 0; c < labels.count; ++c)
          if (const float score = sigmoid(scores.row(static_cast<int64_t>(s))[c]); score > threshold)
            found[i].push_back({spans[s].first, spans[s].second, static_cast<int32_t>(c), score});
      spans.clear();
    };
    for (int32_t w = 0; w < W; ++w)
      for (int32_t last = w; last < std::min(W, w + config_.max_width); ++last) {
        const float *a = starts.row(base + w), *b = ends.row(base + last);
        float* z = block.row(static_cast<int64_t>(spans.size()));
        for (int64_t k = 0; k < F; ++k) z[k] = std::max(a[k] + b[k], 0.0f);
        spans.emplace_back(w, last);
        if (static_cast<int64_t>(spans.size()) == kSpansPerBlock) flush();
      }
    flush();
    base += W;
  }
}

void GlinerHead::score_words(std::span<const HeadWindow> windows, const Rows& words, float threshold,
                             std::vector<std::vector<SpanScore>>& found) const {
  const int64_t D = config_.hidden_size, F = 4 * D;
  const Rows both = word_->apply(words);  // [words, 2 D]: alone, and multiplied with the label
  Rows alone(words.count, D);
  for (int64_t w = 0; w < words.count; ++w) std::copy_n(both.row(w), D, alone.row(w));
  const Rows of_words = mix_word_->apply(alone);
  Rows products(kSpansPerBlock, D), rest(kSpansPerBlock, F), hidden(kSpansPerBlock, F), out(kSpansPerBlock, 3);
  int64_t base = 0;
  for (size_t i = 0; i < windows.size(); ++i) {
    const Rows label = word_label_->apply(label_rows(windows[i]));
    Rows label_alone(label.count, D);
    for (int64_t c = 0; c < label.count; ++c) std::copy_n(label.row(c), D, label_alone.row(c));
    const Rows of_labels = mix_label_->apply(label_alone);
    const auto W = static_cast<int64_t>(windows[i].words.size()), C = label.count, all = W * C;
    std::vector<float> scores(static_cast<size_t>(3 * all));
    for (int64_t at = 0; at < all; at += kSpansPerBlock) {
      const int64_t n = std::min(kSpansPerBlock, all - at);
      for (int64_t r = 0; r < n; ++r) {
        const int64_t w = base + (at + r) / C, c = (at + r) % C;
        const float *x = both.row(w) + D, *y = label.row(c) + D, *a = of_words.row(w), *b = of_labels.row(c);
        for (int64_t d = 0; d < D; ++d) products.row(r)[d] = x[d] * y[d];
        for (int64_t k = 0; k < F; ++k) rest.row(r)[k] = a[k] + b[k];
      }
      mix_both_->apply(products.data.data(), n, hidden.data.data(), ops::Activation::none, rest.data.data());
      for (int64_t k = 0; k < n * F; ++k)
        hidden.data[static_cast<size_t>(k)] = std::max(hidden.data[static_cast<size_t>(k)], 0.0f);
      mix_out_->apply(hidden.data.data(), n, out.data.data());
      for (int64_t k = 0; k < 3 * n; ++k)
        scores[static_cast<size_t>(3 * at + k)] = sigmoid(out.data[static_cast<size_t>(k)]);
    }
    join_words(scores, static_cast<size_t>(W), static_cast<size_t>(C), threshold, found[i]);
    base += W;
  }
}

// `scores`: [words, labels, 3] for start, end and inside. A span's score is the lowest of its start, its end and all
// words inside.
void GlinerHead::join_words(std::span<const float> scores, size_t words, size_t labels, float threshold,
                            std::vector<SpanScore>& found) const {
  const auto at = [&](size_t word, size_t label, size_t kind) { return scores[(word * labels + label) * 3 + kind]; };
  for (size_t first = 0; first < words; ++first)
    for (size_t label = 0; label < labels; ++label) {
      float score = at(first, label, 0);
      if (!(score > threshold)) continue;
      for (size_t last = first; last < words; ++last) {
        const float inside = at(last, label, 2), end = at(last, label, 1);
        if (inside < threshold) break;
        score = std::min(score, inside);
        if (end > threshold)
          found.push_back({static_cast<int32_t>(first), static_cast<int32_t>(last), static_cast<int32_t>(label),
                           std::min(score, end)});
      }
    }
}

}  // namespace brim::engine
