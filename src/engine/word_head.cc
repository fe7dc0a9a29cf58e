// SPDX-License-Identifier: Apache-2.0
#include "engine/word_head.h"

#include <algorithm>
#include <utility>

#include "base/error.h"
#include "engine/entity_task.h"
#include "memory/allocator.h"
#include "model/weights.h"
#include "ops/rows.h"
#include "ops/word_scores.h"
#include "plan/plan.h"

namespace brim::engine {

using memory::Tag;
using model::Exec;
using ops::Activation;
using tensor::DType;
using tensor::TensorView;

namespace {

constexpr int64_t kPairRows = 4096;  // pairs of words and labels multiplied together
constexpr int64_t kBiasColumns = 8;  // the bias of labels is a column of a product, whose columns are aligned
constexpr int64_t kStateRows = 16;   // states of this many windows are multiplied at least, so few sizes occur
constexpr int64_t kScores = 3;       // per word and label: start, end, inside
const int64_t kMostLabels = static_cast<int64_t>(EntityTask::kMostLabels);

int64_t round_up(int64_t n, int64_t unit) { return (n + unit - 1) / unit * unit; }

// Appends rows of zeros, so that their number is aligned.
HeadMatrix with_rows(const HeadMatrix& matrix, int64_t more) {
  HeadMatrix padded = matrix;
  padded.N += more;
  padded.values.resize(static_cast<size_t>(padded.N * padded.K));
  if (!padded.bias.empty()) padded.bias.resize(static_cast<size_t>(padded.N));
  return padded;
}

// Both directions of an LSTM's input, one after the other.
HeadMatrix stacked(const HeadMatrix& a, const HeadMatrix& b) {
  HeadMatrix both = a;
  both.N += b.N;
  both.values.insert(both.values.end(), b.values.begin(), b.values.end());
  both.bias.insert(both.bias.end(), b.bias.begin(), b.bias.end());
  return both;
}

// The bias of span vectors as a further row: its product with a label's vector is added to the label's scores.
HeadMatrix with_bias_row(const HeadMatrix& turned, const std::vector<float>& bias) {
  HeadMatrix all = with_rows(turned, kBiasColumns);
  std::copy(bias.begin(), bias.end(), all.values.begin() + turned.N * turned.K);
  return all;
}

// The bias of an output as a further column.
HeadMatrix with_bias_column(const HeadMatrix& matrix) {
  HeadMatrix all{matrix.N, matrix.K + 1, {}, {}};
  for (int64_t n = 0; n < matrix.N; ++n) {
    all.values.insert(all.values.end(), matrix.values.begin() + n * matrix.K,
                      matrix.values.begin() + (n + 1) * matrix.K);
    all.values.push_back(matrix.bias[static_cast<size_t>(n)]);
  }
  return all;
}

}  // namespace

int64_t word_width(const hub::GlinerConfig& config, size_t labels) {
  return config.token_level ? kScores * static_cast<int64_t>(labels) : 2 * config.max_width;
}

WordHead::WordHead(WordHeadSpec spec, device::DeviceKind target)
    : spec_(std::move(spec)),
      target_(target),
      type_(model::activation_type(spec_.precision, target)),
      D_(spec_.config.hidden_size),
      F_(4 * D_),
      staging_(spec_.config.pooling, spec_.chunk_tokens) {
  lay_out(reinterpret_cast<char*>(memory::kArenaAlignment), nullptr);
  record();
}

WordHead::WordHead(WordHeadSpec spec, device::Device& device, device::Stream& stream, memory::PlannedMemory* planned)
    : WordHead(std::move(spec), device.kind()) {
  weights_ = memory::Ledger::allocate(device, planned, Tag::weights, plan::kWordHead, weight_bytes_);
  scratch_ = memory::Ledger::allocate(device, planned, Tag::activations, plan::kWordHead, scratch_bytes());
  std::vector<std::byte> values(static_cast<size_t>(weight_bytes_));
  lay_out(static_cast<char*>(weights_.data()), &values);
  stream.copy(weights_.data(), values.data(), values.size());
  stream.synchronize();
}

WordHead::DeviceMatrix WordHead::place(const HeadMatrix& matrix, char* base, std::vector<std::byte>* values,
                                       int64_t pad_rows) {
  if (!matrix) return {};
  if (pad_rows > 0) return place(with_rows(matrix, pad_rows), base, values);
  const auto add = [&](const std::vector<float>& from, std::initializer_list<int64_t> dims) {
    const TensorView view(base + weight_bytes_, type_, dims);
    if (values != nullptr)
      tensor::convert_elements(from.data(), DType::f32, values->data() + weight_bytes_, type_,
                               static_cast<int64_t>(from.size()));
    weight_bytes_ += memory::align_up(view.bytes());
    return view;
  };
  DeviceMatrix placed;
  placed.w.N = matrix.N;
  placed.w.K = matrix.K;
  placed.w.precision = spec_.precision;
  placed.w.data = add(matrix.values, {matrix.N, matrix.K});
  if (!matrix.bias.empty()) placed.bias = add(matrix.bias, {matrix.N});
  return placed;
}

// Assigns addresses from `base`; `values`: also stores the weights in the type of the device.
void WordHead::lay_out(char* base, std::vector<std::byte>* values) {
  const GlinerWeights& w = *spec_.weights;
  weight_bytes_ = 0;
  const auto put = [&](const HeadMatrix& matrix) { return place(matrix, base, values); };
  projection_ = put(w.projection);
  labels_projection_ = put(w.labels_projection);
  lstm_.clear();
  for (size_t i = 0; i < w.lstm.size(); i += 2) {
    lstm_.push_back({put(stacked(w.lstm[i].input, w.lstm[i + 1].input)), {}});
    for (size_t direction = 0; direction < 2; ++direction)
      lstm_.back().recurrent[direction] = put(w.lstm[i + direction].recurrent);
  }
  if (spec_.config.token_level) {
    word_ = put(w.word);
    word_label_ = put(w.word_label);
    mix_word_ = put(w.mix_word);
    mix_label_ = put(w.mix_label);
    mix_both_ = put(w.mix_both);
    mix_out_ = put(with_bias_column(w.mix_out));
    return;
  }
  start_[0] = put(w.start.up);
  start_[1] = put(w.start.down);
  start_[2] = put(w.span_start);
  end_[0] = put(w.end.up);
  end_[1] = put(w.end.down);
  end_[2] = put(w.span_end);
  label_[0] = put(w.label.up);
  label_[1] = put(w.label.down);
  turned_ = put(with_bias_row(w.span_out_turned, w.span_out_bias));
}

TensorView WordHead::rows(Exec& e, int64_t n, int64_t columns) const {
  return e.memory.allocate(Tag::activations, type_, {n, columns});
}

TensorView WordHead::multiply(Exec& e, const TensorView& x, const DeviceMatrix& matrix, Activation activation) const {
  ops::LinearArgs args;
  args.x = x;
  args.w = matrix.w;
  args.bias = matrix.bias;
  args.y = rows(e, x.rows(), matrix.w.N);
  args.activation = activation;
  args.scratch = e.memory.scratch(
      ops::linear_scratch_bytes(e.stream, x.rows(), matrix.w.N, matrix.w.K, spec_.precision, e.threads));
  ops::linear(e.stream, args);
  return args.y;
}

// `to`: where the products are kept; null: in the memory of the pass.
WordHead::LabelRows WordHead::label_rows(Exec& e, const TensorView& projected, const LabelRows* to) const {
  LabelRows made;
  if (spec_.config.token_level) {
    made.first = multiply(e, projected, word_label_);
    made.second = multiply(e, made.first.slice_cols(0, D_), mix_label_);
  } else {
    const TensorView up = multiply(e, projected, label_[0], Activation::relu);
    made.first = multiply(e, multiply(e, up, label_[1]), turned_);
  }
  if (to == nullptr) return made;
  e.stream.copy(to->first.data, made.first.data, static_cast<size_t>(made.first.bytes()));
  if (made.second) e.stream.copy(to->second.data, made.second.data, static_cast<size_t>(made.second.bytes()));
  return *to;
}

// All windows advance together, the longest first, so that a step is one product per direction for those not finished.
TensorView WordHead::run_lstm(Exec& e, const Ints& ints, TensorView words) const {
  const int64_t h = D_ / 2, n = ints.lengths.rows();
  for (const DeviceLstm& layer : lstm_) {
    const TensorView inputs = multiply(e, words, layer.input), next = rows(e, words.rows(), D_);
    const TensorView gates = rows(e, 2 * n, 4 * h), state = rows(e, 2 * n, h);
    const TensorView cell = e.memory.allocate(Tag::activations, DType::f32, {2 * n, h});
    const TensorView scratch =
        e.memory.scratch(ops::linear_scratch_bytes(e.stream, n, 4 * h, h, spec_.precision, e.threads));
    int64_t active = n;
    for (int64_t step = 0; step < ints.host_lengths[0]; ++step) {
      while (ints.host_lengths[active - 1] <= step) --active;
      for (int64_t direction = 0; direction < 2 && step > 0; ++direction) {
        const int64_t first = direction * n, last = first + std::min(n, round_up(active, kStateRows));
        ops::linear(e.stream, {.x = state.slice_rows(first, last),
                               .w = layer.recurrent[direction].w,
                               .bias = {},
                               .residual = {},
                               .y = gates.slice_rows(first, last),
                               .scratch = scratch,
                               .x_scale = {},
                               .y_scale = {}});
      }
      ops::LstmStepArgs args{.inputs = inputs,
                             .recurrent = {},
                             .cell = cell,
                             .state = state,
                             .y = next,
                             .first_word = ints.first_words,
                             .lengths = ints.lengths,
                             .step = step,
                             .active = active};
      if (step > 0) args.recurrent = gates;
      ops::lstm_step(e.stream, args);
    }
    words = next;
  }
  return words;
}

void WordHead::score_spans(Exec& e, const Ints& ints, const TensorView& words, const LabelRows& labels,
                           const TensorView& scores) const {
  const auto half = [&](const DeviceMatrix(&matrices)[3]) {
    const TensorView up = multiply(e, words, matrices[0], Activation::relu);
    return multiply(e, multiply(e, up, matrices[1], Activation::relu), matrices[2]);
  };
  const TensorView starts = half(start_), ends = half(end_);
  ops::span_scores(e.stream, {.starts = starts,
                              .ends = ends,
                              .labels = labels.first.slice_cols(0, F_ + 1),
                              .words = ints.infos,
                              .scores = scores});
}

void WordHead::score_words(Exec& e, const Ints& ints, const TensorView& words, const LabelRows& labels,
                           const TensorView& scores) const {
  const int64_t W = words.rows();
  const TensorView all = multiply(e, words, word_), own = all.slice_cols(D_, 2 * D_);  // alone; times the label
  const TensorView mixed = multiply(e, all.slice_cols(0, D_), mix_word_);
  const TensorView product = rows(e, kPairRows, D_), both = rows(e, kPairRows, F_);
  const TensorView scratch =
      e.memory.scratch(ops::linear_scratch_bytes(e.stream, kPairRows, F_, D_, spec_.precision, e.threads));
  const int32_t* pairs = ints.host_pairs;
  for (int64_t begin = 0, end = 0; begin < W; begin = end) {
    // host_pairs has a further value: the number of all pairs.
    for (end = begin + 1; end < W && pairs[end + 1] - pairs[begin] <= kPairRows;) ++end;
    const int64_t P = pairs[end] - pairs[begin];
    const TensorView x = product.slice_rows(0, P), y = both.slice_rows(0, P);
    const TensorView infos = ints.infos.slice_rows(begin, end), at = ints.pairs.slice_rows(begin, end);
    ops::word_pairs(e.stream, {.x = own.slice_rows(begin, end),
                               .labels = labels.first.slice_cols(D_, 2 * D_),
                               .words = infos,
                               .pairs = at,
                               .y = x});
    ops::linear(e.stream, {.x = x,
                           .w = mix_both_.w,
                           .bias = {},
                           .residual = {},
                           .y = y,
                           .scratch = scratch,
                           .x_scale = {},
                           .y_scale = {}});
    ops::pair_scores(e.stream, {.both = y,
                                .x = mixed.slice_rows(begin, end),
                                .labels = labels.second,
                                .out = mix_out_.w.data,
                                .words = infos,
                                .pairs = at,
                                .scores = scores});
  }
}

TensorView WordHead::run_chunk(Exec& e, const TensorView& hidden, const WordChunk& chunk, const Ints& ints) const {
  TensorView tokens = rows(e, chunk.rows, spec_.weights->encoder_size);
  ops::gather_rows(e.stream, {.x = hidden, .rows = ints.rows, .y = tokens});
  if (projection_.w.N > 0) tokens = multiply(e, tokens, projection_);
  const TensorView pooled = rows(e, chunk.words, D_);
  ops::pool_words(e.stream, {.x = tokens.slice_rows(0, chunk.word_rows),
                             .starts = ints.starts,
                             .y = pooled,
                             .max = spec_.config.pooling == hub::GlinerConfig::Pooling::max});
  const LabelRows labels = spec_.weights->labels_size > 0
                               ? kept_rows(chunk.labels)
                               : label_rows(e, tokens.slice_rows(chunk.word_rows, chunk.rows), nullptr);
  const TensorView words = run_lstm(e, ints, pooled);
  const TensorView scores = e.memory.allocate(Tag::activations, DType::f32, {chunk.tokens, spec_.width});
  e.stream.fill_zero(scores.data, static_cast<size_t>(scores.bytes()));
  if (spec_.config.token_level)
    score_words(e, ints, words, labels, scores);
  else
    score_spans(e, ints, words, labels, scores);
  return scores;
}

// Dry runs of the largest chunk and of the most labels.
void WordHead::record() {
  const int64_t C = spec_.chunk_tokens, n = WordStaging::most_windows(C);
  auto* nowhere = reinterpret_cast<void*>(memory::kArenaAlignment);
  {
    memory::LifetimeRecorder recorder;
    device::NullStream stream(&recorder, target_, device::Isa::generic);
    Exec e{stream, recorder, type_, spec_.precision, 1};
    WordChunk most;
    // A sequence has at least as many tokens as words, and as rows of words and labels.
    most.tokens = most.words = most.rows = C;
    most.labels = spec_.weights->labels_size > 0 ? kMostLabels : C;
    std::vector<int32_t> lengths(static_cast<size_t>(n), 2), pairs(static_cast<size_t>(C + 1));
    for (size_t w = 0; w < pairs.size(); ++w) pairs[w] = static_cast<int32_t>(w);
    Ints ints{.rows = TensorView(nowhere, DType::i32, {most.rows}),
              .starts = TensorView(nowhere, DType::i32, {C + 1}),
              .infos = TensorView(nowhere, DType::i32, {C, ops::kWordInts}),
              .pairs = TensorView(nowhere, DType::i32, {C}),
              .first_words = TensorView(nowhere, DType::i32, {n}),
              .lengths = TensorView(nowhere, DType::i32, {n}),
              .host_lengths = lengths.data(),
              .host_pairs = pairs.data()};
    const TensorView hidden(nowhere, type_, {C, spec_.weights->encoder_size});
    recorder.keep(run_chunk(e, hidden, most, ints));
    chunk_plan_ = memory::place(recorder.lifetimes());
  }
  if (spec_.weights->labels_size == 0) return;
  memory::LifetimeRecorder recorder;
  device::NullStream stream(&recorder, target_, device::Isa::generic);
  Exec e{stream, recorder, type_, spec_.precision, 1};
  TensorView vectors = rows(e, kMostLabels, spec_.weights->labels_size);
  if (labels_projection_.w.N > 0) vectors = multiply(e, vectors, labels_projection_);
  const LabelRows made = label_rows(e, vectors, nullptr);
  recorder.keep(made.first);
  if (made.second) recorder.keep(made.second);
  labels_plan_ = memory::place(recorder.lifetimes());
}

// Integers of a chunk, products of prepared labels, tensors of a pass.
int64_t WordHead::scratch_bytes() const {
  const int64_t kept = spec_.weights->labels_size == 0
                           ? 0
                           : (kept_rows(kMostLabels).second ? 2 * D_ + F_ : F_ + kBiasColumns) * kMostLabels *
                                     tensor::dtype_bytes(type_) +
                                 memory::kArenaAlignment;
  return memory::align_up(WordStaging::chunk_bytes(spec_.chunk_tokens)) + memory::align_up(kept) +
         std::max(chunk_plan_.peak_bytes, labels_plan_.peak_bytes);
}

const GlinerHead::Labels* WordHead::any_labels() {
  const int64_t size = spec_.weights->labels_size;
  if (size > 0 && any_labels_ == nullptr)
    any_labels_ = GlinerHead::device_labels(1, std::vector<float>(static_cast<size_t>(size)));
  return any_labels_.get();
}

WordHead::LabelRows WordHead::kept_rows(int64_t labels) const {
  char* base = static_cast<char*>(scratch_.data()) + memory::align_up(WordStaging::chunk_bytes(spec_.chunk_tokens));
  if (!scratch_) base = reinterpret_cast<char*>(memory::kArenaAlignment);
  if (!spec_.config.token_level) return {TensorView(base, type_, {labels, F_ + kBiasColumns}), {}};
  const TensorView all(base, type_, {kMostLabels, 2 * D_});
  return {all.slice_rows(0, labels), TensorView(base + memory::align_up(all.bytes()), type_, {labels, F_})};
}

WordHead::Ints WordHead::ints_of(const WordChunk& chunk, int32_t* device, const int32_t* host) const {
  const auto view = [&](int64_t at, std::initializer_list<int64_t> dims) {
    return TensorView(device + at, DType::i32, dims);
  };
  return {.rows = view(0, {chunk.rows}),
          .starts = view(chunk.starts, {chunk.words + 1}),
          .infos = view(chunk.infos, {chunk.words, ops::kWordInts}),
          .pairs = view(chunk.pairs, {chunk.words}),
          .first_words = view(chunk.first_words, {chunk.windows}),
          .lengths = view(chunk.lengths, {chunk.windows}),
          .host_lengths = host + chunk.begin + chunk.lengths,
          .host_pairs = host + chunk.begin + chunk.pairs};
}

// Computes the products of these labels unless they are on the device.
void WordHead::prepare(device::Stream& stream, const DeviceLabels& labels) {
  if (labels.id == prepared_) return;
  stream.synchronize();  // vectors_ may still be read
  const int64_t size = spec_.weights->labels_size, n = labels.count * size;
  vectors_.resize(static_cast<size_t>(n * tensor::dtype_bytes(type_)));
  tensor::convert_elements(labels.vectors.data(), DType::f32, vectors_.data(), type_, n);
  memory::PlannedAllocator memory(static_cast<char*>(scratch_.data()) + scratch_.bytes() -
                                      std::max(chunk_plan_.peak_bytes, labels_plan_.peak_bytes),
                                  &labels_plan_);
  Exec e{stream, memory, type_, spec_.precision, 1};
  TensorView vectors = rows(e, labels.count, size);
  stream.copy(vectors.data, vectors_.data(), vectors_.size());
  if (labels_projection_.w.N > 0) vectors = multiply(e, vectors, labels_projection_);
  const LabelRows kept = kept_rows(labels.count);
  label_rows(e, vectors, &kept);
  prepared_ = labels.id;
}

void WordHead::run(device::Stream& stream, const TensorView& hidden, const batch::PackedBatch& batch, int32_t* staged,
                   float* scores) {
  char* const tensors = static_cast<char*>(scratch_.data()) + scratch_.bytes() -
                        std::max(chunk_plan_.peak_bytes, labels_plan_.peak_bytes);
  auto* const device = static_cast<int32_t*>(scratch_.data());
  for (const WordChunk& chunk : staging_.stage(batch, staged)) {
    float* const to = scores + chunk.first_token * spec_.width;
    if (chunk.words == 0 || chunk.labels == 0) {
      std::fill_n(to, chunk.tokens * spec_.width, 0.0f);
      continue;
    }
    BRIM_CHECK((chunk.prepared != nullptr) == (spec_.weights->labels_size > 0), "the labels are those of another head");
    if (chunk.prepared != nullptr)
      prepare(stream, GlinerHead::vectors_of(*static_cast<const GlinerHead::Labels*>(chunk.prepared)));
    stream.copy(device, staged + chunk.begin, static_cast<size_t>(chunk.ints) * sizeof(int32_t));
    memory::PlannedAllocator memory(tensors, &chunk_plan_);
    Exec e{stream, memory, type_, spec_.precision, 1};
    const TensorView made = run_chunk(e, hidden, chunk, ints_of(chunk, device, staged));
    stream.copy(to, made.data, static_cast<size_t>(made.bytes()));
  }
}

}  // namespace brim::engine
