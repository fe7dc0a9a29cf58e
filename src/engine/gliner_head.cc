// SPDX-License-Identifier: Apache-2.0
#include "engine/gliner_head.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <new>
#include <numeric>
#include <utility>

#include "device/stream.h"
#include "ops/cpu/row_kernels.h"
#include "ops/linear.h"
#include "tensor/dtype.h"

namespace brim::engine {
namespace {

using tensor::DType;
using tensor::TensorView;

constexpr size_t kAlignment = 64;
constexpr int64_t kSpansPerBlock = 64;    // spans scored by one product
constexpr int64_t kPackedRows = 64;       // packed matrices are padded to at most as many rows
constexpr int64_t kLabelsPerBlock = 128;  // labels of several windows multiplied together, unless a window has more

float sigmoid(float x) { return 1 / (1 + std::exp(-x)); }

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

  Matrix(const float* values, int64_t N, int64_t K, std::vector<float> b, ops::Precision precision)
      : bias(std::move(b)) {
    w.N = N;
    w.K = K;
    w.precision = precision;
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

struct GlinerHead::Mlp {
  Matrix up, down;
  Rows apply(const Rows& x) const { return down.apply(up.apply(x, ops::Activation::relu)); }
};

// One direction of a layer.
struct GlinerHead::Lstm {
  Matrix input, recurrent;
};

// Products of labels for scores. Span models: `first` is multiplied with the vectors of spans, and `bias` is added.
// Word models: `first` is multiplied with the vectors of words, and `second` is added.
struct GlinerHead::LabelRows {
  Rows first, second;
  std::vector<float> bias;
};

struct GlinerHead::Labels {
  LabelRows rows;
  std::unique_ptr<const Matrix> by_label;  // span models
  DeviceLabels vectors;                    // if the head runs on a device, and no other member
};
const DeviceLabels& GlinerHead::vectors_of(const Labels& labels) { return labels.vectors; }

// The labels of one window.
struct GlinerHead::LabelSlice {
  const LabelRows& rows;
  int64_t first, count;
  const Matrix* by_label;  // null: made of the rows
};

// Products of words for scores. Span models: as first and as last words. Word models: as for labels.
struct GlinerHead::WordProducts {
  Rows first, second;
};

GlinerHead::Rows GlinerHead::gather(const std::vector<const float*>& rows, int64_t size, const Matrix* projection) {
  Rows gathered(static_cast<int64_t>(rows.size()), size);
  for (size_t i = 0; i < rows.size(); ++i) std::copy_n(rows[i], size, gathered.row(static_cast<int64_t>(i)));
  return projection != nullptr ? projection->apply(gathered) : gathered;
}

GlinerHead::Rows GlinerHead::first_columns(const Rows& rows, int64_t columns) {
  Rows first(rows.count, columns);
  for (int64_t i = 0; i < rows.count; ++i) std::copy_n(rows.row(i), columns, first.row(i));
  return first;
}

std::unique_ptr<const GlinerHead::Matrix> GlinerHead::by_label(const LabelRows& rows, int64_t first, int64_t count) {
  const auto bias = rows.bias.begin() + first;
  return std::make_unique<const Matrix>(rows.first.row(first), count, rows.first.size,
                                        std::vector<float>(bias, bias + count), ops::Precision::fp32);
}

// Packs matrices and counts their bytes.
struct GlinerHead::Packer {
  ops::Precision precision;
  int64_t& bytes;

  std::unique_ptr<Matrix> pack(HeadMatrix matrix) const {
    if (!matrix) return nullptr;
    auto packed = std::make_unique<Matrix>(matrix.values.data(), matrix.N, matrix.K, std::move(matrix.bias), precision);
    bytes += packed->bytes();
    return packed;
  }
  std::unique_ptr<Mlp> pack(HeadMlp mlp) const {
    return std::make_unique<Mlp>(Mlp{std::move(*pack(std::move(mlp.up))), std::move(*pack(std::move(mlp.down)))});
  }
};

GlinerHead::GlinerHead(const hub::GlinerConfig& config) : config_(config) {}
GlinerHead::~GlinerHead() = default;

std::unique_ptr<const GlinerHead> GlinerHead::load(const std::filesystem::path& dir, const hub::GlinerConfig& config,
                                                   int64_t encoder_size, int64_t labels_size,
                                                   ops::Precision precision) {
  std::unique_ptr<GlinerHead> head(new GlinerHead(config));
  head->encoder_size_ = encoder_size;
  head->labels_size_ = labels_size;
  head->precision_ = precision;
  head->pack(read_gliner_weights(dir, config, encoder_size, labels_size));
  return head;
}

std::unique_ptr<const GlinerHead> GlinerHead::load_for_device(const std::filesystem::path& dir,
                                                              const hub::GlinerConfig& config, int64_t encoder_size,
                                                              int64_t labels_size) {
  std::unique_ptr<GlinerHead> head(new GlinerHead(config));
  head->encoder_size_ = encoder_size;
  head->labels_size_ = labels_size;
  head->device_weights_ =
      std::make_shared<const GlinerWeights>(read_gliner_weights(dir, config, encoder_size, labels_size));
  return head;
}

void GlinerHead::pack(GlinerWeights weights) {
  const Packer packer{precision_, bytes_};
  projection_ = packer.pack(std::move(weights.projection));
  labels_projection_ = packer.pack(std::move(weights.labels_projection));
  for (HeadLstm& lstm : weights.lstm)
    lstm_.push_back(
        {std::move(*packer.pack(std::move(lstm.input))), std::move(*packer.pack(std::move(lstm.recurrent)))});
  if (config_.token_level) {
    word_ = packer.pack(std::move(weights.word));
    word_label_ = packer.pack(std::move(weights.word_label));
    mix_word_ = packer.pack(std::move(weights.mix_word));
    mix_label_ = packer.pack(std::move(weights.mix_label));
    mix_both_ = packer.pack(std::move(weights.mix_both));
    mix_out_ = packer.pack(std::move(weights.mix_out));
    return;
  }
  start_ = packer.pack(std::move(weights.start));
  end_ = packer.pack(std::move(weights.end));
  label_ = packer.pack(std::move(weights.label));
  span_start_ = packer.pack(std::move(weights.span_start));
  span_end_ = packer.pack(std::move(weights.span_end));
  span_out_turned_ = packer.pack(std::move(weights.span_out_turned));
  span_out_bias_ = std::move(weights.span_out_bias);
}

int64_t GlinerHead::scratch_bytes(int64_t words, int64_t labels) const {
  const int64_t D = config_.hidden_size, F = 4 * D, E = std::max(encoder_size_, labels_size_);
  const int64_t tokens = config_.pooling == hub::GlinerConfig::Pooling::first ? words : 2 * words;
  const int64_t block = labels_size_ > 0 ? labels : std::max(labels, kLabelsPerBlock);
  // Steps that are not in memory at the same time: pooling, LSTM, products of words, products of labels with scores.
  const int64_t pooling = tokens * (E + D) + words * D, lstm = lstm_.empty() ? 0 : words * 6 * D;
  const int64_t products = words * (config_.token_level ? F + 4 * D : 2 * F + 3 * D);
  const int64_t of_labels = block * (E + 3 * D + 2 * F), packed = (labels + kPackedRows) * F;
  const int64_t scores =
      config_.token_level ? kSpansPerBlock * (2 * F + D) + 3 * words * labels : kSpansPerBlock * (F + labels) + packed;
  const int64_t floats = std::max({pooling, lstm, products + std::max(of_labels, scores)});
  const device::CpuStream stream(nullptr, device::best_isa());
  const int64_t rows = std::max({tokens, block, kSpansPerBlock});
  const int64_t inputs = ops::linear_scratch_bytes(stream, rows, F, F, precision_, 1);
  return static_cast<int64_t>(sizeof(float)) * floats + inputs;
}

GlinerHead::LabelRows GlinerHead::label_rows(const Rows& projected) const {
  LabelRows rows;
  if (!config_.token_level) {
    const Rows labels = label_->apply(projected);
    rows.first = span_out_turned_->apply(labels);
    for (int64_t c = 0; c < labels.count; ++c)
      rows.bias.push_back(std::inner_product(labels.row(c), labels.row(c) + labels.size, span_out_bias_.begin(), 0.0f));
    return rows;
  }
  rows.first = word_label_->apply(projected);
  rows.second = mix_label_->apply(first_columns(rows.first, config_.hidden_size));
  return rows;
}

GlinerHead::LabelRows GlinerHead::label_rows(std::span<const HeadWindow> windows) const {
  std::vector<const float*> rows;
  for (const HeadWindow& window : windows)
    for (const int32_t token : window.labels) rows.push_back(window.hidden + token * encoder_size_);
  return label_rows(gather(rows, encoder_size_, projection_.get()));
}

std::shared_ptr<const GlinerHead::Labels> GlinerHead::device_labels(int64_t count, std::vector<float> vectors) {
  static std::atomic<uint64_t> made{0};
  auto labels = std::make_shared<Labels>();
  labels->vectors = {++made, count, std::move(vectors)};
  return labels;
}

std::shared_ptr<const GlinerHead::Labels> GlinerHead::prepare(std::span<const float> vectors) const {
  if (on_device())
    return device_labels(static_cast<int64_t>(vectors.size()) / labels_size_, {vectors.begin(), vectors.end()});
  std::vector<const float*> rows;
  for (size_t at = 0; at < vectors.size(); at += static_cast<size_t>(labels_size_)) rows.push_back(&vectors[at]);
  auto labels = std::make_shared<Labels>();
  labels->rows = label_rows(gather(rows, labels_size_, labels_projection_.get()));
  const LabelRows& all = labels->rows;
  if (!config_.token_level) {
    labels->by_label = by_label(all, 0, all.first.count);
    std::exchange(labels->rows.first.data, {});  // the matrix is a copy; only the number of rows is needed
  }
  return labels;
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
  const Rows tokens = gather(rows, encoder_size_, projection_.get());
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
  const ops::cpu::RowKernels& kernels = ops::cpu::row_kernels(device::best_isa());
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
          float *g = gates.row(i), *c = cell.row(i), *s = state.row(i);
          kernels.add(g, inputs.row(word), 4 * h);
          kernels.sigmoid(g, g, 2 * h);
          kernels.tanh(g + 2 * h, g + 2 * h, h);
          kernels.sigmoid(g + 3 * h, g + 3 * h, h);
          for (int64_t k = 0; k < h; ++k) c[k] = g[h + k] * c[k] + g[k] * g[2 * h + k];
          kernels.tanh(c, s, h);
          for (int64_t k = 0; k < h; ++k) s[k] *= g[3 * h + k];
          std::copy_n(s, h, next.row(word) + static_cast<int64_t>(direction) * h);
        }
      }
    }
    words = std::move(next);
  }
}

void GlinerHead::score(std::span<const HeadWindow> windows, const Labels* labels, float threshold,
                       std::span<std::vector<SpanScore>> found) const {
  Rows words = word_rows(windows);
  if (words.count == 0) return;
  run_lstm(windows, words);
  const WordProducts products = config_.token_level ? products_of_words(words) : products_of_ends(words);
  int64_t base = 0;
  for (size_t begin = 0; begin < windows.size();) {
    // Labels of several windows are multiplied together.
    const size_t each = std::max<size_t>(windows[begin].labels.size(), 1);
    const size_t count = std::min(windows.size() - begin, std::max<size_t>(1, kLabelsPerBlock / each));
    const LabelRows block = labels != nullptr ? LabelRows() : label_rows(windows.subspan(begin, count));
    const LabelRows& rows = labels != nullptr ? labels->rows : block;
    for (size_t i = 0; i < count; ++i) {
      const auto W = static_cast<int64_t>(windows[begin + i].words.size());
      LabelSlice slice{rows, 0, rows.first.count, labels != nullptr ? labels->by_label.get() : nullptr};
      if (labels == nullptr) slice.first = static_cast<int64_t>(i * each), slice.count = static_cast<int64_t>(each);
      if (config_.token_level)
        score_words(products, base, W, slice, threshold, found[begin + i]);
      else
        score_spans(products, base, W, slice, threshold, found[begin + i]);
      base += W;
    }
    begin += count;
  }
}

GlinerHead::WordProducts GlinerHead::products_of_ends(const Rows& words) const {
  const auto half = [&](const Mlp& mlp, const Matrix& matrix) {
    Rows rows = mlp.apply(words);
    for (float& value : rows.data) value = std::max(value, 0.0f);
    return matrix.apply(rows);
  };
  return {half(*start_, *span_start_), half(*end_, *span_end_)};
}

void GlinerHead::score_spans(const WordProducts& words, int64_t base, int64_t W, const LabelSlice& labels,
                             float threshold, std::vector<SpanScore>& found) const {
  const int64_t F = words.first.size, C = labels.count;
  std::unique_ptr<const Matrix> own;
  if (labels.by_label == nullptr) own = by_label(labels.rows, labels.first, C);
  const Matrix& matrix = own ? *own : *labels.by_label;
  Rows block(kSpansPerBlock, F), scores(kSpansPerBlock, C);
  std::vector<std::pair<int32_t, int32_t>> spans;
  const auto flush = [&] {
    matrix.apply(block.data.data(), static_cast<int64_t>(spans.size()), scores.data.data());
    for (size_t s = 0; s < spans.size(); ++s) {
      const float* row = scores.row(static_cast<int64_t>(s));
      const float score = sigmoid(*std::max_element(row, row + C));
      if (!(score > threshold)) continue;
      const auto best = std::find_if(row, row + C, [&](float logit) { return sigmoid(logit) == score; });
      found.push_back({spans[s].first, spans[s].second, static_cast<int32_t>(best - row), score});
    }
    spans.clear();
  };
  for (int64_t w = 0; w < W; ++w)
    for (int64_t last = w; last < std::min(W, w + config_.max_width); ++last) {
      const float *a = words.first.row(base + w), *b = words.second.row(base + last);
      float* z = block.row(static_cast<int64_t>(spans.size()));
      for (int64_t k = 0; k < F; ++k) z[k] = std::max(a[k] + b[k], 0.0f);
      spans.emplace_back(static_cast<int32_t>(w), static_cast<int32_t>(last));
      if (static_cast<int64_t>(spans.size()) == kSpansPerBlock) flush();
    }
  flush();
}

GlinerHead::WordProducts GlinerHead::products_of_words(const Rows& words) const {
  WordProducts products;
  products.first = word_->apply(words);  // [words, 2 D]: alone, and multiplied with the label
  products.second = mix_word_->apply(first_columns(products.first, config_.hidden_size));
  return products;
}

void GlinerHead::score_words(const WordProducts& words, int64_t base, int64_t W, const LabelSlice& labels,
                             float threshold, std::vector<SpanScore>& found) const {
  const int64_t D = config_.hidden_size, F = 4 * D, C = labels.count, all = W * C;
  Rows products(kSpansPerBlock, D), rest(kSpansPerBlock, F), hidden(kSpansPerBlock, F), out(kSpansPerBlock, 3);
  std::vector<float> scores(static_cast<size_t>(3 * all));
  for (int64_t at = 0; at < all; at += kSpansPerBlock) {
    const int64_t n = std::min(kSpansPerBlock, all - at);
    for (int64_t r = 0; r < n; ++r) {
      const int64_t w = base + (at + r) / C, c = labels.first + (at + r) % C;
      const float *x = words.first.row(w) + D, *y = labels.rows.first.row(c) + D;
      const float *a = words.second.row(w), *b = labels.rows.second.row(c);
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
  join_words(scores.data(), static_cast<size_t>(3 * C), static_cast<size_t>(W), static_cast<size_t>(C), threshold,
             found);
}

void GlinerHead::read_scores(std::span<const float> scores, size_t width, size_t labels, float threshold,
                             std::vector<SpanScore>& found) const {
  const size_t words = width > 0 ? scores.size() / width : 0;
  if (config_.token_level) return join_words(scores.data(), width, words, labels, threshold, found);
  for (size_t word = 0; word < words; ++word)
    for (size_t j = 0; 2 * j < width && word + j < words; ++j) {
      const float* const best = scores.data() + word * width + 2 * j;
      if (best[0] > threshold)
        found.push_back(
            {static_cast<int32_t>(word), static_cast<int32_t>(word + j), static_cast<int32_t>(best[1]), best[0]});
    }
}

// For start, end and inside. A span's score is the lowest of its start, its end and all words inside.
void GlinerHead::join_words(const float* scores, size_t stride, size_t words, size_t labels, float threshold,
                            std::vector<SpanScore>& found) {
  const auto at = [&](size_t word, size_t label, size_t kind) { return scores[word * stride + label * 3 + kind]; };
  std::vector<SpanScore> best(words);  // by last word
  for (size_t first = 0; first < words; ++first) {
    for (size_t last = first; last < words; ++last)
      best[last] = {static_cast<int32_t>(first), static_cast<int32_t>(last), -1, 0};
    for (size_t label = 0; label < labels; ++label) {
      float score = at(first, label, 0);
      if (!(score > threshold)) continue;
      for (size_t last = first; last < words; ++last) {
        const float inside = at(last, label, 2), end = at(last, label, 1);
        if (inside < threshold) break;
        score = std::min(score, inside);
        if (const float whole = std::min(score, end);
            end > threshold && (best[last].label < 0 || whole > best[last].score))
          best[last].label = static_cast<int32_t>(label), best[last].score = whole;
      }
    }
    const size_t begin = found.size();
    std::copy_if(best.begin() + static_cast<std::ptrdiff_t>(first), best.end(), std::back_inserter(found),
                 [](const SpanScore& span) { return span.label >= 0; });
    std::stable_sort(found.begin() + static_cast<std::ptrdiff_t>(begin), found.end(),
                     [](const SpanScore& a, const SpanScore& b) { return a.label < b.label; });
  }
}

}  // namespace brim::engine
