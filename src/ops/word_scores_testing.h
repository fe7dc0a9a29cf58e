// SPDX-License-Identifier: Apache-2.0
// Tests of word scores on any device against loops in fp64. `up` passes a host tensor to the device and returns what
// reads it back: values().
#pragma once
#include "ops/testing.h"
#include "ops/word_scores.h"

namespace brim::ops::testing {

inline double rounding_of(tensor::DType type) {
  return type == tensor::DType::bf16 ? kEpsBf16 : type == tensor::DType::f16 ? kEpsF16 : kEps32;
}

// Windows of these lengths, with one label more each; rows of scores are spread.
struct WordCase {
  std::vector<int32_t> lengths;
  std::vector<WordOfWindow> words;
  std::vector<int32_t> first, pairs;
  int64_t labels = 0, pair_rows = 0, score_rows = 0;

  explicit WordCase(std::vector<int32_t> all, int32_t least_labels = 1) : lengths(std::move(all)) {
    int32_t label = 0, more = least_labels;
    for (const int32_t n : lengths) {
      const auto begin = static_cast<int32_t>(words.size());
      first.push_back(begin);
      for (int32_t w = 0; w < n; ++w) {
        words.push_back({begin + n, label, more, 2 * (begin + w) + 1});
        pairs.push_back(static_cast<int32_t>(pair_rows));
        pair_rows += more;
      }
      label += more++;
    }
    labels = label;
    score_rows = 2 * static_cast<int64_t>(words.size()) + 1;
  }
  int64_t count() const { return static_cast<int64_t>(words.size()); }
  HostTensor ints() const {
    HostTensor t(tensor::DType::i32, {count(), kWordInts});
    if (!words.empty()) std::memcpy(t.view().data, words.data(), words.size() * sizeof(WordOfWindow));
    return t;
  }
};
inline std::vector<WordCase> word_cases() {
  return {WordCase({1}), WordCase({3, 1, 14}), WordCase({2, 5}, 9), WordCase({7, 30, 1, 4}, 3)};
}

template <class Up>
void check_pool_words(device::Stream& stream, tensor::DType type, Up up) {
  for (const int64_t D : {1, 37, 256})
    for (const bool max : {false, true}) {
      const std::vector<int32_t> starts{0, 1, 1, 4, 6, 6};
      const HostTensor x = random_tensor(type, {6, D}, 1, 1, 0, 3), out(type, {5, D}, 2), at = int_tensor(starts);
      auto&& dx = up(x);
      auto&& ds = up(at);
      auto&& dy = up(out);
      pool_words(stream, {.x = dx, .starts = ds, .y = dy, .max = max});
      std::vector<double> want;
      for (size_t w = 0; w + 1 < starts.size(); ++w)
        for (int64_t d = 0; d < D; ++d) {
          const int32_t n = starts[w + 1] - starts[w];
          double value = 0;
          for (int32_t r = starts[w]; r < starts[w + 1]; ++r)
            value = r == starts[w] ? x.at(r, d) : max ? std::max(value, x.at(r, d)) : value + x.at(r, d);
          want.push_back(max || n == 0 ? value : value / n);
        }
      EXPECT_TRUE(close(dy.values(), want, 8 * rounding_of(type)));
    }
}

// Two steps of windows of unequal lengths; the second continues from the state of the first.
template <class Up>
void check_lstm_step(device::Stream& stream, tensor::DType type, Up up) {
  const WordCase c({4, 2, 1});
  const int64_t n = 3;
  for (const int64_t h : {1, 8, 130}) {
    const HostTensor inputs = random_tensor(type, {c.count(), 8 * h}, 1, 1.5, 0, 4),
                     recurrent = random_tensor(type, {2 * n, 4 * h}, 2, 1.5), cell(tensor::DType::f32, {2 * n, h}),
                     state(type, {2 * n, h}), y(type, {c.count(), 2 * h}, 3), first = int_tensor(c.first),
                     lengths = int_tensor(c.lengths);
    auto&& d_inputs = up(inputs);
    auto&& d_recurrent = up(recurrent);
    auto&& d_cell = up(cell);
    auto&& d_state = up(state);
    auto&& d_y = up(y);
    auto&& d_first = up(first);
    auto&& d_lengths = up(lengths);
    std::vector<double> cells(static_cast<size_t>(2 * n * h));
    for (const int64_t step : {0, 1}) {
      const int64_t active = step == 0 ? 3 : 2;
      LstmStepArgs args;
      args.inputs = d_inputs;
      args.cell = d_cell;
      args.state = d_state;
      args.y = d_y;
      if (step > 0) args.recurrent = d_recurrent;
      args.first_word = d_first;
      args.lengths = d_lengths;
      args.step = step;
      args.active = active;
      lstm_step(stream, args);
      const std::vector<double> got_state = d_state.values(), got_y = d_y.values();
      for (int64_t direction = 0; direction < 2; ++direction)
        for (int64_t i = 0; i < active; ++i)
          for (int64_t k = 0; k < h; ++k) {
            const int64_t row = direction * n + i, length = c.lengths[static_cast<size_t>(i)],
                          word = c.first[static_cast<size_t>(i)] + (direction == 0 ? step : length - 1 - step);
            const auto gate = [&](int64_t g) {
              return inputs.at(word, direction * 4 * h + g * h + k) + (step > 0 ? recurrent.at(row, g * h + k) : 0);
            };
            double& kept = cells[static_cast<size_t>(row * h + k)];
            kept = (step > 0 ? sigmoid64(gate(1)) * kept : 0) + sigmoid64(gate(0)) * std::tanh(gate(2));
            const double out = sigmoid64(gate(3)) * std::tanh(kept), tolerance = 2 * rounding_of(type) + 40 * kEps32;
            EXPECT_NEAR(got_state[static_cast<size_t>(row * h + k)], out, tolerance) << step << " " << row << " " << k;
            EXPECT_NEAR(got_y[static_cast<size_t>(word * 2 * h + direction * h + k)], out, tolerance);
          }
    }
  }
}

inline double span_logit(const HostTensor& starts, const HostTensor& ends, const HostTensor& labels, int64_t first,
                         int64_t last, int64_t label) {
  const int64_t F = starts.cols();
  double sum = labels.at(label, F);
  for (int64_t k = 0; k < F; ++k) sum += std::max(0.0, starts.at(first, k) + ends.at(last, k)) * labels.at(label, k);
  return sum;
}

template <class Up>
void check_span_scores(device::Stream& stream, tensor::DType type, Up up) {
  for (const WordCase& c : word_cases())
    for (const int64_t F : {4, 64, 264}) {
      const int64_t width = F == 64 ? 12 : 3;
      const double scale = 1 / std::sqrt(static_cast<double>(F));
      const HostTensor starts = random_tensor(type, {c.count(), F}, 1), ends = random_tensor(type, {c.count(), F}, 2),
                       labels = random_tensor(type, {c.labels, F + 1}, 3, scale, 0, F == 64 ? 7 : 2),
                       out(tensor::DType::f32, {c.score_rows, 2 * width}), words = c.ints();
      auto&& d_starts = up(starts);
      auto&& d_ends = up(ends);
      auto&& d_labels = up(labels);
      auto&& d_words = up(words);
      auto&& d_out = up(out);
      span_scores(stream, {.starts = d_starts, .ends = d_ends, .labels = d_labels, .words = d_words, .scores = d_out});
      const std::vector<double> got = d_out.values();
      for (int64_t w = 0; w < c.count(); ++w)
        for (int64_t j = 0; j < width; ++j) {
          const WordOfWindow& word = c.words[static_cast<size_t>(w)];
          const size_t at = static_cast<size_t>(word.row * 2 * width + 2 * j);
          if (w + j >= word.end) {
            EXPECT_TRUE(std::isnan(got[at])) << "a span across windows was written";
            continue;
          }
          double best = 0;
          for (int32_t label = 0; label < word.labels; ++label)
            best = std::max(best, sigmoid64(span_logit(starts, ends, labels, w, w + j, word.label + label)));
          ASSERT_NEAR(got[at], best, 1e-5) << w << " " << j;
          const auto label = static_cast<int64_t>(got[at + 1]);
          ASSERT_TRUE(0 <= label && label < word.labels) << label;
          ASSERT_NEAR(sigmoid64(span_logit(starts, ends, labels, w, w + j, word.label + label)), best, 1e-5);
        }
    }
}

// The first of equal scores, and NaN for a score that is not finite.
template <class Up>
void check_span_ties(device::Stream& stream, Up up) {
  const WordCase c({1, 1}, 3);
  HostTensor starts = random_tensor(tensor::DType::f32, {2, 8}, 1), labels(tensor::DType::f32, {c.labels, 9});
  for (int64_t label = 0; label < c.labels; ++label)
    for (int64_t k = 0; k < 9; ++k) labels.set(label, k, k < 8 ? 0 : label == 0 ? -1 : 1);
  labels.set(4, 8, std::numeric_limits<double>::infinity());  // a label of the second window
  const HostTensor out(tensor::DType::f32, {c.score_rows, 2}), words = c.ints();
  auto&& d_starts = up(starts);
  auto&& d_labels = up(labels);
  auto&& d_words = up(words);
  auto&& d_out = up(out);
  span_scores(stream, {.starts = d_starts, .ends = d_starts, .labels = d_labels, .words = d_words, .scores = d_out});
  const std::vector<double> got = d_out.values();
  EXPECT_EQ(got[static_cast<size_t>(2 * c.words[0].row + 1)], 1);
  EXPECT_TRUE(std::isnan(got[static_cast<size_t>(2 * c.words[1].row)]));
}

// Words from the second one on, as in a later part of a batch.
template <class Up>
void check_pair_scores(device::Stream& stream, tensor::DType type, Up up) {
  for (const WordCase& c : word_cases())
    for (const int64_t F : {4, 72}) {
      const int64_t D = F / 4, from = c.count() > 1 ? 1 : 0, W = c.count() - from,
                    first = c.pairs[static_cast<size_t>(from)];
      const int64_t P = c.pair_rows - first;
      const HostTensor x = random_tensor(type, {c.count(), D}, 1, 1, 0, 5),
                       own = random_tensor(type, {c.labels, D}, 2, 1, 0, 1), product(type, {P, D}),
                       both = random_tensor(type, {P, F}, 3), a = random_tensor(type, {c.count(), F}, 4),
                       b = random_tensor(type, {c.labels, F}, 5), out = random_tensor(type, {3, F + 1}, 6, 0.2, 0, 3),
                       scores(tensor::DType::f32, {c.score_rows, 3 * 16}), words = c.ints(),
                       pairs = int_tensor(c.pairs);
      auto&& d_x = up(x);
      auto&& d_own = up(own);
      auto&& d_product = up(product);
      auto&& d_both = up(both);
      auto&& d_a = up(a);
      auto&& d_b = up(b);
      auto&& d_out = up(out);
      auto&& d_scores = up(scores);
      auto&& d_words = up(words);
      auto&& d_pairs = up(pairs);
      const auto part = [&](const tensor::TensorView& view) { return view.slice_rows(from, from + W); };
      word_pairs(stream,
                 {.x = part(d_x), .labels = d_own, .words = part(d_words), .pairs = part(d_pairs), .y = d_product});
      pair_scores(stream, {.both = d_both,
                           .x = part(d_a),
                           .labels = d_b,
                           .out = d_out,
                           .words = part(d_words),
                           .pairs = part(d_pairs),
                           .scores = d_scores});
      const std::vector<double> products = d_product.values(), got = d_scores.values();
      for (int64_t w = from; w < c.count(); ++w) {
        const WordOfWindow& word = c.words[static_cast<size_t>(w)];
        for (int32_t label = 0; label < word.labels; ++label) {
          const int64_t pair = c.pairs[static_cast<size_t>(w)] - first + label;
          for (int64_t d = 0; d < D; ++d) {
            const double want = x.at(w, d) * own.at(word.label + label, d);
            ASSERT_NEAR(products[static_cast<size_t>(pair * D + d)], want,
                        2 * rounding_of(type) * std::fabs(want) + 1e-7);
          }
          for (int64_t o = 0; o < 3; ++o) {
            double sum = out.at(o, F);
            for (int64_t k = 0; k < F; ++k)
              sum += std::max(0.0, both.at(pair, k) + a.at(w, k) + b.at(word.label + label, k)) * out.at(o, k);
            ASSERT_NEAR(got[static_cast<size_t>(word.row * 48 + 3 * label + o)], sigmoid64(sum), 1e-5)
                << w << " " << label;
          }
        }
      }
    }
}

}  // namespace brim::ops::testing
